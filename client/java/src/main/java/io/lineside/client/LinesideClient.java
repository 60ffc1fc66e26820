package io.lineside.client;

import io.grpc.Channel;
import io.grpc.ClientInterceptors;
import io.grpc.Context;
import io.grpc.Deadline;
import io.grpc.ManagedChannel;
import io.grpc.Status;
import io.lineside.v1.DispatchServiceGrpc;
import io.lineside.v1.DispatchServiceGrpc.DispatchServiceStub;
import io.lineside.v1.ErrorKind;
import io.lineside.v1.Outcome;
import io.lineside.v1.ToolAnswer;
import io.lineside.v1.ToolCall;
import java.time.Duration;
import java.util.Iterator;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;

/**
 * Calls tools through a Lineside service: one connection, one call, one exception type. It serves any number of threads
 * and connects at its first call.
 *
 * <p>Retrying is the service's work; this client repeats only what the wire lost, and only under an idempotency key.
 */
public final class LinesideClient implements AutoCloseable {
    /** The time of a call for which nothing else is said; the service's own default too. */
    public static final Duration DEFAULT_TIMEOUT = Duration.ofSeconds(60);

    private final ManagedChannel connection;
    private final Channel channel;

    private LinesideClient(Endpoint endpoint) {
        connection = endpoint.channel();
        channel = ClientInterceptors.intercept(connection, new CallHeaders(endpoint.token()));
    }

    /** A client of the service at {@code host:port}, in plaintext. */
    public static LinesideClient connect(String target) {
        return connect(Endpoint.at(target));
    }

    /** A client of the service at an endpoint, which also says TLS and token. */
    public static LinesideClient connect(Endpoint endpoint) {
        return new LinesideClient(endpoint);
    }

    /** {@link #dispatch(ToolCall, Duration)} within 60 s. */
    public ToolAnswer dispatch(ToolCall call) {
        return dispatch(call, DEFAULT_TIMEOUT);
    }

    /**
     * Runs one tool call and waits for its answer. A tool that ran and said no is an answer with {@code tool_error} set.
     * With an idempotency key a call whose connection was lost is sent again within its time: the service runs it once.
     *
     * @param timeout bounds waiting, attempts and back-off together; the deadline of gRPC's current {@link Context} does
     *     so too. Cancelling that context, or interrupting the thread, gives the call up.
     * @throws LinesideException for every failure
     */
    public ToolAnswer dispatch(ToolCall call, Duration timeout) {
        CompletableFuture<ToolAnswer> answer = dispatchAsync(call, timeout);
        try {
            return answer.get();
        } catch (InterruptedException e) {
            answer.cancel(true);
            Thread.currentThread().interrupt();
            String message = "the thread that waited was interrupted";
            throw LinesideException.of(
                    Status.Code.CANCELLED, ErrorKind.ERROR_KIND_UNSPECIFIED, Outcome.OUTCOME_UNKNOWN, message);
        } catch (ExecutionException e) {
            if (e.getCause() instanceof LinesideException failure) {
                throw failure;
            }
            throw new IllegalStateException(e.getCause());
        }
    }

    /** The same without waiting: the future ends with the answer or a {@link LinesideException}; cancel gives it up. */
    public CompletableFuture<ToolAnswer> dispatchAsync(ToolCall call, Duration timeout) {
        return new UnaryCall(stub(), connection, call, deadline(timeout)).start();
    }

    /** {@link #batch(Iterator, Duration)} without a time limit of its own; each call has its own. */
    public Batch batch(Iterator<ToolCall> calls) {
        return batch(calls, null);
    }

    /**
     * Runs many calls over one stream and tells their results as they finish; see {@link Batch}.
     *
     * @param calls is read by a thread of the batch's own, only while fewer than 256 calls are unanswered
     * @param timeout bounds the whole batch; null: only the current {@link Context} does
     */
    public Batch batch(Iterator<ToolCall> calls, Duration timeout) {
        Deadline deadline = timeout == null ? Context.current().getDeadline() : deadline(timeout);
        return new Batch(stub(), connection, calls, deadline);
    }

    /** For the stubs of the other services; it sends the token and the caller's trace along. */
    public Channel channel() {
        return channel;
    }

    /** Ends the connection; calls under way end as cancelled. */
    @Override
    public void close() {
        connection.shutdownNow();
    }

    private DispatchServiceStub stub() {
        return DispatchServiceGrpc.newStub(channel);
    }

    private static Deadline deadline(Duration timeout) {
        Deadline asked = Deadline.after(timeout.toNanos(), TimeUnit.NANOSECONDS);
        Deadline outer = Context.current().getDeadline();
        return outer == null ? asked : asked.minimum(outer);
    }
}
