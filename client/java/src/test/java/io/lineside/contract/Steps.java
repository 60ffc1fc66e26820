package io.lineside.contract;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.protobuf.Empty;
import com.google.protobuf.Message;
import io.grpc.Channel;
import io.grpc.ClientInterceptors;
import io.grpc.Context;
import io.grpc.Context.CancellableContext;
import io.grpc.Metadata;
import io.grpc.MethodDescriptor;
import io.grpc.MethodDescriptor.MethodType;
import io.grpc.MethodDescriptor.PrototypeMarshaller;
import io.grpc.ServiceDescriptor;
import io.grpc.StatusRuntimeException;
import io.grpc.CallOptions;
import io.grpc.health.v1.HealthGrpc;
import io.grpc.protobuf.ProtoUtils;
import io.grpc.stub.ClientCalls;
import io.grpc.stub.MetadataUtils;
import io.grpc.stub.StreamObserver;
import io.lineside.client.Batch;
import io.lineside.client.BatchResult;
import io.lineside.client.LinesideClient;
import io.lineside.client.LinesideException;
import io.lineside.v1.CallServiceGrpc;
import io.lineside.v1.DispatchBatchRequest;
import io.lineside.v1.DispatchBatchResponse;
import io.lineside.v1.DispatchRequest;
import io.lineside.v1.DispatchServiceGrpc;
import io.lineside.v1.QuotaServiceGrpc;
import io.lineside.v1.RunServiceGrpc;
import io.lineside.v1.ToolCall;
import io.lineside.v1.ToolServiceGrpc;
import io.lineside.v1.WorkServiceGrpc;
import io.opentelemetry.api.trace.propagation.W3CTraceContextPropagator;
import io.opentelemetry.context.Scope;
import io.opentelemetry.context.propagation.TextMapGetter;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.stream.Stream;
import java.util.stream.StreamSupport;

/** Does the steps of a scenario, with one client. */
final class Steps {
    private static final ExecutorService PARALLEL = Executors.newCachedThreadPool();
    private static final List<ServiceDescriptor> SERVICES = List.of(
            DispatchServiceGrpc.getServiceDescriptor(),
            CallServiceGrpc.getServiceDescriptor(),
            ToolServiceGrpc.getServiceDescriptor(),
            RunServiceGrpc.getServiceDescriptor(),
            QuotaServiceGrpc.getServiceDescriptor(),
            WorkServiceGrpc.getServiceDescriptor(),
            HealthGrpc.getServiceDescriptor());
    private static final TextMapGetter<String> ONLY_PARENT = new TextMapGetter<>() {
        @Override
        public Iterable<String> keys(String parent) {
            return List.of("traceparent");
        }

        @Override
        public String get(String parent, String name) {
            return name.equals("traceparent") ? parent : null;
        }
    };

    private final LinesideClient client;

    Steps(LinesideClient client) {
        this.client = client;
    }

    /** What a step is answered with. */
    JsonElement run(JsonObject step) {
        if (step.has("parallel")) {
            return parallel(step.getAsJsonArray("parallel"));
        }
        String parent = step.has("parent") ? step.get("parent").getAsString() : null;
        CancellableContext context = Context.current().withCancellation();
        if (step.has("cancel_after_s")) {
            long afterMs = seconds(step, "cancel_after_s").toMillis();
            CompletableFuture.delayedExecutor(afterMs, TimeUnit.MILLISECONDS).execute(() -> context.cancel(null));
        }
        try (Scope ignored = W3CTraceContextPropagator.getInstance()
                .extract(io.opentelemetry.context.Context.root(), parent, ONLY_PARENT)
                .makeCurrent()) {
            return context.call(() -> one(step));
        } catch (Exception e) {
            throw new IllegalStateException("step " + step.keySet(), e);
        } finally {
            context.cancel(null);
        }
    }

    private JsonArray parallel(JsonArray steps) {
        List<CompletableFuture<JsonElement>> started = elements(steps)
                .map(step -> CompletableFuture.supplyAsync(() -> run(step.getAsJsonObject()), PARALLEL))
                .toList();
        JsonArray answers = new JsonArray();
        started.forEach(answer -> answers.add(answer.join()));
        return answers;
    }

    private JsonElement one(JsonObject step) throws InterruptedException {
        if (step.has("dispatch")) {
            ToolCall call = call(step.get("dispatch"));
            return step.has("metadata") ? dispatchByStub(step, call) : dispatch(step, call);
        }
        if (step.has("batch")) {
            return batch(step);
        }
        if (step.has("frames")) {
            return frames(step);
        }
        return unary(step);
    }

    /** One call by the client's own function. */
    private JsonObject dispatch(JsonObject step, ToolCall call) {
        try {
            return Answers.succeeded(client.dispatch(call, timeout(step)));
        } catch (LinesideException failure) {
            return Answers.failedCall(failure);
        }
    }

    private JsonObject dispatchByStub(JsonObject step, ToolCall call) {
        DispatchRequest request = DispatchRequest.newBuilder().setCall(call).build();
        try {
            return Answers.succeeded(DispatchServiceGrpc.newBlockingStub(channel(step))
                    .withDeadlineAfter(timeout(step))
                    .dispatch(request)
                    .getAnswer());
        } catch (StatusRuntimeException end) {
            return Answers.failedCall(LinesideException.of(end));
        }
    }

    /** All calls on one stream by the client's own function. */
    private JsonObject batch(JsonObject step) {
        List<ToolCall> calls = elements(step.getAsJsonArray("batch")).map(Steps::call).toList();
        JsonObject told = Answers.stream();
        Duration timeout = step.has("timeout_s") ? timeout(step) : null;
        try (Batch batch = client.batch(calls.iterator(), timeout)) {
            for (BatchResult result : batch) {
                String id = result.call().getItemId();
                told.getAsJsonArray("items")
                        .add(result instanceof BatchResult.Failed failed
                                ? Answers.item(id, failed.error())
                                : Answers.item(id, result.answer()));
            }
        }
        return told;
    }

    /** These frames by the stub as they are, then half-close. */
    private JsonObject frames(JsonObject step) throws InterruptedException {
        DispatchServiceGrpc.DispatchServiceStub stub = DispatchServiceGrpc.newStub(channel(step));
        if (step.has("timeout_s")) {
            stub = stub.withDeadlineAfter(timeout(step));
        }
        Heard heard = new Heard();
        StreamObserver<DispatchBatchRequest> stream = stub.dispatchBatch(heard);
        for (JsonElement frame : step.getAsJsonArray("frames")) {
            List<ToolCall> calls = elements(frame.getAsJsonArray()).map(Steps::call).toList();
            stream.onNext(DispatchBatchRequest.newBuilder().addAllCalls(calls).build());
        }
        stream.onCompleted();
        return heard.end.join();
    }

    private static final class Heard implements StreamObserver<DispatchBatchResponse> {
        private final JsonObject told = Answers.stream();
        private final CompletableFuture<JsonObject> end = new CompletableFuture<>();

        @Override
        public void onNext(DispatchBatchResponse response) {
            Answers.hear(told, response);
        }

        @Override
        public void onError(Throwable failure) {
            LinesideException said = LinesideException.of(failure);
            Answers.end(told, said.code(), said.status().getMessage());
            end.complete(told);
        }

        @Override
        public void onCompleted() {
            end.complete(told);
        }
    }

    /** One RPC by its name. */
    private JsonObject unary(JsonObject step) {
        JsonObject asked = step.getAsJsonObject("unary");
        MethodDescriptor<Message, Message> method = method(asked.get("method").getAsString());
        Message shape = ((PrototypeMarshaller<Message>) method.getRequestMarshaller()).getMessagePrototype();
        Message request = Answers.read(asked.getAsJsonObject("request"), shape.newBuilderForType()).build();
        CallOptions options =
                CallOptions.DEFAULT.withDeadlineAfter(timeout(step).toMillis(), TimeUnit.MILLISECONDS);
        try {
            return Answers.succeeded(ClientCalls.blockingUnaryCall(channel(step), method, options, request));
        } catch (StatusRuntimeException end) {
            return Answers.failed(LinesideException.of(end));
        }
    }

    @SuppressWarnings("unchecked") // every stub's messages are Messages
    private static MethodDescriptor<Message, Message> method(String name) {
        for (ServiceDescriptor service : SERVICES) {
            for (MethodDescriptor<?, ?> method : service.getMethods()) {
                if (method.getFullMethodName().equals(name)) {
                    return (MethodDescriptor<Message, Message>) method;
                }
            }
        }
        MethodDescriptor.Marshaller<Message> nothing = ProtoUtils.marshaller(Empty.getDefaultInstance());
        return MethodDescriptor.newBuilder(nothing, nothing)
                .setType(MethodType.UNARY)
                .setFullMethodName(name)
                .build();
    }

    private Channel channel(JsonObject step) {
        Metadata headers = new Metadata();
        if (step.has("metadata")) {
            step.getAsJsonObject("metadata")
                    .asMap()
                    .forEach((name, value) -> headers.put(
                            Metadata.Key.of(name, Metadata.ASCII_STRING_MARSHALLER), value.getAsString()));
        }
        return ClientInterceptors.intercept(client.channel(), MetadataUtils.newAttachHeadersInterceptor(headers));
    }

    private static Duration timeout(JsonObject step) {
        return step.has("timeout_s") ? seconds(step, "timeout_s") : LinesideClient.DEFAULT_TIMEOUT;
    }

    private static Duration seconds(JsonObject step, String option) {
        return Duration.ofNanos((long) (step.get(option).getAsDouble() * 1e9));
    }

    private static ToolCall call(JsonElement told) {
        return Answers.read(told.getAsJsonObject(), ToolCall.newBuilder()).build();
    }

    private static Stream<JsonElement> elements(JsonArray array) {
        return StreamSupport.stream(array.spliterator(), false);
    }
}
