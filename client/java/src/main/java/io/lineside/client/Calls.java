package io.lineside.client;

import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import com.google.protobuf.ByteString;
import com.google.protobuf.Duration;
import io.lineside.v1.ToolAnswer;
import io.lineside.v1.ToolCall;
import io.lineside.v1.TraceContext;
import io.opentelemetry.context.Context;

/**
 * Calls and their results, as JSON text: that keeps 64-bit integers and big numbers exact. A call's other fields are set
 * on its builder: {@code setIdempotencyKey}, {@code setCallTimeout}, ...
 */
public final class Calls {
    private static final Gson JSON =
            new GsonBuilder().disableHtmlEscaping().serializeNulls().create();

    private Calls() {}

    /** A call of a tool; arguments: a map, a record, a JsonObject: what Gson writes as one JSON object. */
    public static ToolCall.Builder call(String tool, Object arguments) {
        return ofJson(tool, JSON.toJson(arguments));
    }

    /** A call of a tool with arguments that are the text of one JSON object; it goes untouched. */
    public static ToolCall.Builder ofJson(String tool, String arguments) {
        return ToolCall.newBuilder().setTool(tool).setArgumentsJson(ByteString.copyFromUtf8(arguments));
    }

    /** The result's JSON text, untouched. */
    public static String json(ToolAnswer answer) {
        return answer.getResultJson().toStringUtf8();
    }

    /** The result as a class, a record or a JsonElement, as Gson reads it. */
    public static <T> T result(ToolAnswer answer, Class<T> type) {
        return JSON.fromJson(json(answer), type);
    }

    /** The current span, for {@code setTraceContext}: calls of a batch that come from several traces. */
    public static TraceContext currentTrace() {
        return CallHeaders.traceOf(Context.current());
    }

    /** A time as the contract has it, for {@code setCallTimeout} and {@code setAttemptTimeout}. */
    public static Duration time(java.time.Duration time) {
        return Duration.newBuilder()
                .setSeconds(time.getSeconds())
                .setNanos(time.getNano())
                .build();
    }

    /** A time of the contract's. */
    static java.time.Duration time(Duration time) {
        return java.time.Duration.ofSeconds(time.getSeconds(), time.getNanos());
    }
}
