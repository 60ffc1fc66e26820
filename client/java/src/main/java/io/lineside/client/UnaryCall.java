package io.lineside.client;

import io.grpc.Context;
import io.grpc.Deadline;
import io.grpc.ManagedChannel;
import io.grpc.Status;
import io.grpc.stub.ClientCallStreamObserver;
import io.grpc.stub.ClientResponseObserver;
import io.lineside.v1.DispatchRequest;
import io.lineside.v1.DispatchResponse;
import io.lineside.v1.DispatchServiceGrpc.DispatchServiceStub;
import io.lineside.v1.ErrorKind;
import io.lineside.v1.Outcome;
import io.lineside.v1.ToolAnswer;
import io.lineside.v1.ToolCall;
import java.time.Duration;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;

/** One call until its end: sent once, and under a key again when the wire lost it. */
final class UnaryCall {
    /** A call ends this long, or a tenth of its time, before its RPC: so the typed error comes first. */
    private static final Duration REPLY_MARGIN = Duration.ofMillis(20);
    private static final Duration LATE_REPLY = Duration.ofSeconds(1); // its own time is the service's to keep; the answer may be so late

    private final DispatchServiceStub stub;
    private final ManagedChannel connection;
    private final ToolCall call;
    private final Deadline deadline; // of the RPC
    private final Deadline until; // the call may run and be sent again
    private final Context context = Context.current();
    private final io.opentelemetry.context.Context span = io.opentelemetry.context.Context.current();
    private final CompletableFuture<ToolAnswer> answer = new CompletableFuture<>();

    private volatile ClientCallStreamObserver<DispatchRequest> rpc;
    private int resends;
    private boolean isOpen; // an earlier sending was lost and may have run

    UnaryCall(DispatchServiceStub stub, ManagedChannel connection, ToolCall call, Deadline deadline) {
        this.stub = stub;
        this.connection = connection;
        this.call = call;
        Duration own = Calls.time(call.getCallTimeout());
        boolean isStated = own.compareTo(Duration.ZERO) > 0; // zero is for the service to refuse
        this.until = isStated ? deadline.minimum(after(own)) : deadline;
        this.deadline = isStated ? deadline.minimum(after(own.plus(LATE_REPLY))) : deadline;
    }

    private static Deadline after(Duration time) {
        return Deadline.after(time.toMillis(), TimeUnit.MILLISECONDS);
    }

    /** Sends it. Cancelling what is returned gives the call up. */
    CompletableFuture<ToolAnswer> start() {
        answer.whenComplete((result, failure) -> giveUpIfCancelled());
        send();
        return answer;
    }

    private void send() {
        if (!answer.isDone()) {
            DispatchRequest request = DispatchRequest.newBuilder().setCall(timed()).build();
            stub.withDeadline(deadline).dispatch(request, new Sending());
            giveUpIfCancelled();
        }
    }

    /** Says the call's time exactly: the service sees the RPC's own only as gRPC rounds it. */
    private ToolCall timed() {
        Duration left = Duration.ofNanos(deadline.timeRemaining(TimeUnit.NANOSECONDS));
        Duration margin = left.dividedBy(10);
        left = left.minus(margin.compareTo(REPLY_MARGIN) < 0 ? margin : REPLY_MARGIN);
        Duration own = Duration.ofNanos(until.timeRemaining(TimeUnit.NANOSECONDS));
        left = Resend.longer(own.compareTo(left) < 0 ? own : left, Duration.ofMillis(1));
        boolean isTighter = !call.hasCallTimeout() || left.compareTo(Calls.time(call.getCallTimeout())) < 0;
        return isTighter ? call.toBuilder().setCallTimeout(Calls.time(left)).build() : call;
    }

    private void giveUpIfCancelled() {
        ClientCallStreamObserver<DispatchRequest> present = rpc;
        if (answer.isCancelled() && present != null) {
            present.cancel("the caller gave the call up", null);
        }
    }

    private void ended(LinesideException said) {
        LinesideException failure = isOpen ? said.sinceLost() : said;
        Optional<Duration> pause = Resend.pause(said, resends);
        if (!call.hasIdempotencyKey() || pause.isEmpty() || !maySendAfter(pause.get())) {
            answer.completeExceptionally(failure);
            return;
        }
        isOpen |= failure.outcome() == Outcome.OUTCOME_UNKNOWN;
        resends++;
        CompletableFuture.delayedExecutor(pause.get().toNanos(), TimeUnit.NANOSECONDS).execute(span.wrap(context.wrap(this::sendAgain)));
    }

    private void sendAgain() {
        connection.resetConnectBackoff(); // a service that restarts is back within seconds
        send();
    }

    private boolean maySendAfter(Duration pause) {
        long neededNanos = pause.plus(Resend.MIN_TIME_LEFT).toNanos();
        return until.timeRemaining(TimeUnit.NANOSECONDS) >= neededNanos && !context.isCancelled()
                && !connection.isShutdown();
    }

    private final class Sending implements ClientResponseObserver<DispatchRequest, DispatchResponse> {
        private DispatchResponse heard;

        @Override
        public void beforeStart(ClientCallStreamObserver<DispatchRequest> sending) {
            rpc = sending;
        }

        @Override
        public void onNext(DispatchResponse response) {
            heard = response; // its status comes after it
        }

        @Override
        public void onError(Throwable end) {
            try {
                ended(LinesideException.of(end));
            } catch (RuntimeException | LinkageError fault) { // libraries that do not fit: nobody shall wait for ever
                answer.completeExceptionally(fault);
            }
        }

        @Override
        public void onCompleted() {
            if (heard != null) {
                answer.complete(heard.getAnswer());
            } else { // something in between may do that
                ended(LinesideException.of(
                        Status.Code.INTERNAL,
                        ErrorKind.ERROR_KIND_UNSPECIFIED,
                        Outcome.OUTCOME_UNKNOWN,
                        "the call ended well, without an answer"));
            }
        }
    }
}
