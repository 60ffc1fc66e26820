package io.lineside.client;

import com.google.protobuf.Any;
import com.google.protobuf.ByteString;
import com.google.rpc.Code;
import io.grpc.Grpc;
import io.grpc.InsecureServerCredentials;
import io.grpc.Metadata;
import io.grpc.Server;
import io.grpc.protobuf.StatusProto;
import io.grpc.stub.StreamObserver;
import io.lineside.v1.BatchItem;
import io.lineside.v1.DispatchBatchRequest;
import io.lineside.v1.DispatchBatchResponse;
import io.lineside.v1.DispatchError;
import io.lineside.v1.DispatchRequest;
import io.lineside.v1.DispatchResponse;
import io.lineside.v1.DispatchServiceGrpc;
import io.lineside.v1.ErrorKind;
import io.lineside.v1.Outcome;
import io.lineside.v1.ToolAnswer;
import io.lineside.v1.ToolCall;
import java.io.IOException;
import java.util.List;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.IntFunction;

/** Answers as a test says, over a real connection: what a real service says only while it drains or breaks. */
final class Scripted extends DispatchServiceGrpc.DispatchServiceImplBase implements AutoCloseable {
    /** What happens to a sending, counted from 1: nothing, and it is answered, or a status is thrown. */
    interface OnDispatch {
        void sending(int number);
    }

    private final OnDispatch onDispatch;
    private final IntFunction<RuntimeException> onFrame; // by the stream's number; null: answered
    private final List<ToolCall> sent = new CopyOnWriteArrayList<>();
    private final AtomicInteger streams = new AtomicInteger();
    private final Server server;

    Scripted(OnDispatch onDispatch, IntFunction<RuntimeException> onFrame) throws IOException {
        this.onDispatch = onDispatch;
        this.onFrame = onFrame;
        server = Grpc.newServerBuilderForPort(0, InsecureServerCredentials.create())
                .addService(this)
                .build()
                .start();
    }

    String address() {
        return "127.0.0.1:" + server.getPort();
    }

    /** The calls that came by themselves. */
    List<ToolCall> sent() {
        return sent;
    }

    @Override
    public void dispatch(DispatchRequest request, StreamObserver<DispatchResponse> answers) {
        sent.add(request.getCall());
        try {
            onDispatch.sending(sent.size());
            answers.onNext(DispatchResponse.newBuilder().setAnswer(answer()).build());
            answers.onCompleted();
        } catch (RuntimeException refusal) {
            answers.onError(refusal);
        }
    }

    @Override
    public StreamObserver<DispatchBatchRequest> dispatchBatch(StreamObserver<DispatchBatchResponse> answers) {
        RuntimeException end = onFrame.apply(streams.incrementAndGet());
        return new StreamObserver<>() {
            @Override
            public void onNext(DispatchBatchRequest frame) {
                if (end != null) {
                    answers.onError(end);
                    return;
                }
                DispatchBatchResponse.Builder response = DispatchBatchResponse.newBuilder();
                for (ToolCall call : frame.getCallsList()) {
                    response.addItems(BatchItem.newBuilder().setItemId(call.getItemId()).setAnswer(answer()));
                }
                answers.onNext(response.build());
            }

            @Override
            public void onError(Throwable gone) {}

            @Override
            public void onCompleted() {
                if (end == null) {
                    answers.onCompleted();
                }
            }
        };
    }

    @Override
    public void close() {
        server.shutdownNow();
    }

    /** The end of a stream of a draining service, which took so many frames. */
    static RuntimeException drained(int frames) {
        return refusal(Code.UNAVAILABLE, ErrorKind.ERROR_KIND_UNAVAILABLE, "lineside-frames-accepted", "" + frames);
    }

    /** An error as the service writes one about a call that did not run, with a trailer if that is not empty. */
    static RuntimeException refusal(Code code, ErrorKind kind, String trailer, String value) {
        DispatchError error = DispatchError.newBuilder()
                .setKind(kind)
                .setOutcome(Outcome.OUTCOME_NOT_RUN)
                .setMessage("as the test says")
                .build();
        Metadata trailers = new Metadata();
        if (!value.isEmpty()) {
            trailers.put(Metadata.Key.of(trailer, Metadata.ASCII_STRING_MARSHALLER), value);
        }
        com.google.rpc.Status.Builder status =
                com.google.rpc.Status.newBuilder().setCode(code.getNumber()).setMessage("as the test says");
        return StatusProto.toStatusRuntimeException(
                (kind == ErrorKind.ERROR_KIND_UNSPECIFIED ? status : status.addDetails(Any.pack(error))).build(),
                trailers);
    }

    private static ToolAnswer answer() {
        return ToolAnswer.newBuilder()
                .setResultJson(ByteString.copyFromUtf8("1"))
                .setAttempts(1)
                .build();
    }
}
