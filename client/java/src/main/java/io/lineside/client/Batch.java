package io.lineside.client;

import io.grpc.Context;
import io.grpc.Deadline;
import io.grpc.ManagedChannel;
import io.grpc.Status;
import io.grpc.stub.ClientCallStreamObserver;
import io.grpc.stub.ClientResponseObserver;
import io.lineside.v1.DispatchBatchRequest;
import io.lineside.v1.DispatchBatchResponse;
import io.lineside.v1.DispatchServiceGrpc.DispatchServiceStub;
import io.lineside.v1.ToolCall;
import java.time.Duration;
import java.util.Iterator;
import java.util.NoSuchElementException;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executor;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;

/**
 * Calls over one stream, and their results as they finish, each call's exactly once. To be looped over once, by one
 * thread, within try-with-resources: closing gives up what is under way.
 *
 * <p>It takes calls only while fewer than 256 are without a result that was read, sends only while the transport takes
 * more, and reads no answers while nobody asks for the next result.
 *
 * <p>When the stream breaks it goes on over another one: calls in frames that the service did not take are sent again,
 * and so are those with a key; a call without one that the service may have begun ends with outcome UNKNOWN. Once the
 * batch's own time is over, or its context was cancelled, no more calls are taken; those that were have their results.
 */
public final class Batch implements Iterable<BatchResult>, AutoCloseable {
    /** Calls taken from the caller whose results were not read; the service takes as many unanswered ones. */
    static final int WINDOW = 256;

    /** Streams in a row without an answer: with the pauses about 12 to 20 s. */
    private static final int MAX_RECONNECTS = 12;

    private static final Duration UNBOUNDED = Duration.ofDays(365);

    private final DispatchServiceStub stub;
    private final ManagedChannel connection;
    private final Deadline deadline; // null: none
    private final Context context = Context.current();
    private final io.opentelemetry.context.Context span = io.opentelemetry.context.Context.current();
    private final Context.CancellationListener onCancel = gone -> tell(this::cancelled);
    private final Thread feeder;
    private final Semaphore room = new Semaphore(WINDOW);

    /** What the feeder's and gRPC's threads have to say; it is done by the thread that loops, which owns the rest. */
    private final BlockingQueue<Runnable> mailbox = new LinkedBlockingQueue<>();

    private final Outbox outbox = new Outbox();
    private Stream stream; // null between two of them, and after the last
    private StreamEnd lastEnd; // once there is no further stream
    private RuntimeException sourceFailure;
    private boolean hasAllCalls;
    private boolean isFinished;
    private int fruitless;

    Batch(DispatchServiceStub stub, ManagedChannel connection, Iterator<ToolCall> calls, Deadline deadline) {
        this.stub = deadline == null ? stub : stub.withDeadline(deadline);
        this.connection = connection;
        this.deadline = deadline;
        feeder = new Thread(span.wrap(context.wrap(() -> feed(calls))), "lineside-batch");
        feeder.setDaemon(true);
        feeder.start();
        context.addListener(onCancel, Runnable::run);
        open();
    }

    /** The results; the loop ends once all calls were taken and each has its result. */
    @Override
    public Iterator<BatchResult> iterator() {
        return new Iterator<>() {
            @Override
            public boolean hasNext() {
                advance();
                return outbox.hasResult();
            }

            @Override
            public BatchResult next() {
                if (!hasNext()) {
                    throw new NoSuchElementException();
                }
                room.release();
                return outbox.nextResult();
            }
        };
    }

    /** Gives up what is under way, and takes no more calls. */
    @Override
    public void close() {
        isFinished = true;
        context.removeListener(onCancel);
        feeder.interrupt();
        if (stream != null) {
            stream.rpc.cancel("the caller left the batch", null);
            stream = null;
        }
    }

    /** Works until there is a result, or no more of them. */
    private void advance() {
        while (!outbox.hasResult() && !isFinished) {
            if (stream != null) {
                stream.readOn();
                stream.write();
            }
            if (lastEnd != null && hasAllCalls) {
                close();
            } else {
                work();
            }
        }
        if (isFinished && !outbox.hasResult() && sourceFailure != null) {
            throw sourceFailure;
        }
    }

    /** Waits for the mailbox and does what is in it: calls that come together share a frame. */
    private void work() {
        try {
            Runnable told = mailbox.poll(timeLeft().toNanos(), TimeUnit.NANOSECONDS);
            if (told == null && stream == null) {
                cancelled(); // with a stream, it is gRPC that tells of the deadline
            }
            for (; told != null; told = mailbox.poll()) {
                told.run();
            }
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            LinesideException failure = StreamEnd.ofOurs(Status.Code.CANCELLED, "the thread that looped was interrupted")
                    .failure();
            close();
            throw failure;
        }
    }

    private Duration timeLeft() {
        if (deadline == null) {
            return UNBOUNDED;
        }
        // a second more for the stream's own end to come first
        long slackNanos = stream == null ? 0 : TimeUnit.SECONDS.toNanos(1);
        return Duration.ofNanos(Math.max(0, deadline.timeRemaining(TimeUnit.NANOSECONDS) + slackNanos));
    }

    private void tell(Runnable what) {
        mailbox.add(what);
    }

    // --- the caller's calls ---

    /** The feeder's work: an iterator may wait for its next call, while results are read. */
    private void feed(Iterator<ToolCall> calls) {
        RuntimeException failure = null;
        try {
            room.acquire();
            while (calls.hasNext()) {
                ToolCall call = calls.next();
                tell(() -> take(call));
                room.acquire();
            }
        } catch (InterruptedException e) {
            return; // closed
        } catch (RuntimeException e) {
            failure = e;
        }
        RuntimeException failed = failure;
        tell(() -> {
            hasAllCalls = true;
            sourceFailure = failed;
        });
    }

    private void take(ToolCall call) {
        outbox.add(call);
        if (lastEnd != null) {
            outbox.giveUp(lastEnd.failure());
        }
    }

    // --- streams ---

    private void open() {
        Stream opened = new Stream();
        stream = opened;
        Runnable opening = () -> stub.dispatchBatch(opened);
        span.wrap(context.wrap(opening)).run();
    }

    private void ended(StreamEnd end) {
        boolean hasAnswered = stream.hasAnswered;
        stream = null;
        outbox.broke(end);
        fruitless = hasAnswered ? 0 : fruitless;
        Duration pause = outbox.expire(end.pause(fruitless));
        if (!end.mayResume() || fruitless >= MAX_RECONNECTS || !hasTimeFor(pause)) {
            giveUp(end);
            return;
        }
        fruitless++;
        Executor later = CompletableFuture.delayedExecutor(pause.toNanos(), TimeUnit.NANOSECONDS);
        later.execute(() -> tell(this::reopen));
    }

    private void reopen() {
        outbox.expire(Duration.ZERO);
        if (hasAllCalls && outbox.isSettled()) {
            close(); // everything ran out of time meanwhile
        } else if (lastEnd == null && !isFinished) {
            connection.resetConnectBackoff(); // a service that restarts is back within seconds
            open();
        }
    }

    private boolean hasTimeFor(Duration pause) {
        return !context.isCancelled()
                && !connection.isShutdown()
                && timeLeft().compareTo(pause.plus(Resend.MIN_TIME_LEFT)) >= 0;
    }

    /** No further stream; what the caller still hands in does not run. */
    private void giveUp(StreamEnd end) {
        lastEnd = end;
        outbox.giveUp(end.failure());
        boolean isLate = deadline != null && deadline.isExpired();
        boolean isOver = isLate || context.isCancelled() || connection.isShutdown();
        hasAllCalls |= isOver; // nobody waits for more of them
    }

    /** The caller's context or the deadline ended; an open stream tells of that itself. */
    private void cancelled() {
        if (stream != null) {
            return;
        }
        boolean isLate = deadline != null && deadline.isExpired();
        giveUp(StreamEnd.ofOurs(
                isLate ? Status.Code.DEADLINE_EXCEEDED : Status.Code.CANCELLED,
                isLate ? "the batch's time is over" : "the caller cancelled"));
    }

    /** One stream. Its callbacks run on gRPC's threads and only fill the mailbox. */
    private final class Stream implements ClientResponseObserver<DispatchBatchRequest, DispatchBatchResponse> {
        private ClientCallStreamObserver<DispatchBatchRequest> rpc;
        private boolean isAsked = true; // for its next message; gRPC asks for the first
        private boolean isHalfClosed;
        private boolean hasAnswered;

        @Override
        public void beforeStart(ClientCallStreamObserver<DispatchBatchRequest> started) {
            rpc = started;
            rpc.disableAutoRequestWithInitial(1);
            rpc.setOnReadyHandler(() -> tell(() -> {})); // wakes the loop
        }

        @Override
        public void onNext(DispatchBatchResponse response) {
            tell(() -> {
                hasAnswered = true;
                isAsked = false;
                if (stream == this) {
                    outbox.hear(response);
                }
            });
        }

        @Override
        public void onError(Throwable end) {
            tell(() -> over(StreamEnd.of(end)));
        }

        @Override
        public void onCompleted() {
            tell(() -> {
                if (stream == this && hasAllCalls && outbox.isSettled()) {
                    close();
                } else {
                    over(StreamEnd.early());
                }
            });
        }

        private void over(StreamEnd end) {
            if (stream == this) {
                ended(end);
            }
        }

        /** Asks for the next message, as somebody waits for it. */
        void readOn() {
            if (!isAsked) {
                isAsked = true;
                rpc.request(1);
            }
        }

        /** Sends what is queued while the transport takes it; then half-closes if that was all. */
        void write() {
            while (rpc.isReady() && outbox.hasQueued()) {
                DispatchBatchRequest frame = outbox.nextFrame();
                if (frame != null) {
                    rpc.onNext(frame);
                }
            }
            if (hasAllCalls && !outbox.hasQueued() && !isHalfClosed) {
                isHalfClosed = true;
                rpc.onCompleted(); // the service answers what it has and ends the stream
            }
        }
    }
}
