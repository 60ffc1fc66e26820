package io.lineside.contract;

import com.google.gson.JsonArray;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import com.google.protobuf.Any;
import com.google.protobuf.InvalidProtocolBufferException;
import com.google.protobuf.Message;
import com.google.protobuf.MessageOrBuilder;
import com.google.protobuf.util.JsonFormat;
import com.google.rpc.ErrorDetailsProto;
import io.grpc.Status;
import io.lineside.client.LinesideException;
import io.lineside.v1.BatchItem;
import io.lineside.v1.DispatchBatchResponse;
import io.lineside.v1.DispatchError;
import io.lineside.v1.Outcome;
import io.lineside.v1.ToolAnswer;

/** Answers as the contract suite wants them told. */
final class Answers {
    private static final JsonFormat.TypeRegistry TYPES = JsonFormat.TypeRegistry.newBuilder()
            .add(ErrorDetailsProto.getDescriptor().getMessageTypes())
            .add(DispatchError.getDescriptor())
            .build();
    private static final JsonFormat.Printer PRINTER = JsonFormat.printer()
            .usingTypeRegistry(TYPES)
            .preservingProtoFieldNames()
            .omittingInsignificantWhitespace();

    private Answers() {}

    /** Proto3 JSON with the proto's field names. */
    static JsonObject json(MessageOrBuilder message) {
        try {
            return JsonParser.parseString(PRINTER.print(message)).getAsJsonObject();
        } catch (InvalidProtocolBufferException e) {
            throw new IllegalStateException(e); // a detail of a type that nobody knows
        }
    }

    /** Reads proto3 JSON into a builder. */
    static <B extends Message.Builder> B read(JsonObject json, B builder) {
        try {
            JsonFormat.parser().merge(json.toString(), builder);
            return builder;
        } catch (InvalidProtocolBufferException e) {
            throw new IllegalArgumentException(e);
        }
    }

    static JsonObject succeeded(Message response) {
        JsonObject told = new JsonObject();
        told.addProperty("code", "OK");
        told.add("response", json(response));
        return told;
    }

    /** What the status says. */
    static JsonObject failed(LinesideException failure) {
        JsonObject told = new JsonObject();
        told.addProperty("code", failure.code().name());
        told.addProperty("message", failure.status().getMessage());
        JsonArray details = new JsonArray();
        for (Any detail : failure.status().getDetailsList()) {
            details.add(json(detail));
        }
        told.add("details", details);
        failure.pushbackMs().ifPresent(millis -> told.addProperty("pushback_ms", millis));
        return told;
    }

    /** That, and what the client's own exception says of the call. */
    static JsonObject failedCall(LinesideException failure) {
        JsonObject told = failed(failure);
        failure.dispatchError().ifPresent(error -> {
            told.addProperty("kind", failure.kind().name());
            told.addProperty("attempts", failure.attempts());
        });
        if (failure.outcome() != Outcome.OUTCOME_UNSPECIFIED) {
            told.addProperty("outcome", failure.outcome().name());
        }
        return told;
    }

    static JsonObject item(String id, ToolAnswer answer) {
        JsonObject told = new JsonObject();
        told.addProperty("item_id", id);
        told.add("response", json(answer));
        return told;
    }

    static JsonObject item(String id, LinesideException failure) {
        JsonObject told = new JsonObject();
        told.addProperty("item_id", id);
        told.add("error", failedCall(failure));
        return told;
    }

    /** A whole stream, as far as nothing was heard. */
    static JsonObject stream() {
        JsonObject told = new JsonObject();
        told.addProperty("code", "OK");
        told.addProperty("message", "");
        told.add("items", new JsonArray());
        told.add("frame_errors", new JsonArray());
        return told;
    }

    /** Adds what the service wrote. */
    static void hear(JsonObject stream, DispatchBatchResponse response) {
        for (BatchItem item : response.getItemsList()) {
            stream.getAsJsonArray("items")
                    .add(item.hasAnswer()
                            ? item(item.getItemId(), item.getAnswer())
                            : item(item.getItemId(), LinesideException.of(item.getError())));
        }
        if (response.hasFrameError()) {
            JsonObject told = new JsonObject();
            told.addProperty("frame", response.getFrameError().getFrame());
            told.add("error", failedCall(LinesideException.of(response.getFrameError().getStatus())));
            stream.getAsJsonArray("frame_errors").add(told);
        }
    }

    /** Adds how it ended. */
    static void end(JsonObject stream, Status.Code code, String message) {
        stream.addProperty("code", code.name());
        stream.addProperty("message", message);
    }
}
