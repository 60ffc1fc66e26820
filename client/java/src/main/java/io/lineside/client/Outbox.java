package io.lineside.client;

import io.grpc.Status;
import io.lineside.v1.BatchItem;
import io.lineside.v1.DispatchBatchRequest;
import io.lineside.v1.DispatchBatchResponse;
import io.lineside.v1.ErrorKind;
import io.lineside.v1.Outcome;
import io.lineside.v1.ToolAnswer;
import io.lineside.v1.ToolCall;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.Deque;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;

/**
 * What a batch still has to send, to hear about and to tell. A call is queued, handed to the transport, or among the
 * results. For one thread.
 */
final class Outbox {
    private static final int MAX_FRAME_CALLS = 256;

    /** The service takes 4 MiB; the rest is room for lengths and tags. */
    private static final int MAX_FRAME_BYTES = (4 << 20) - (64 << 10);

    /** Bytes of a call's tag and length in its frame, and of a call_timeout that is set later. */
    private static final int CALL_OVERHEAD = 24;

    /** One call on its way. */
    private static final class Item {
        final int position;
        final ToolCall call; // the caller's
        ToolCall wire; // as sent: with an id of ours
        long deadlineNanos; // by System.nanoTime, once begun
        boolean isBegun; // it was put into a frame at least once
        int frame; // of the present stream, from 1
        boolean isOpen; // an earlier sending was lost and may have run

        Item(int position, ToolCall call) {
            this.position = position;
            this.call = call;
            this.wire = call.toBuilder().setItemId(Integer.toString(position)).build();
        }

        int size() {
            return wire.getSerializedSize() + CALL_OVERHEAD;
        }
    }

    private final Deque<Item> queue = new ArrayDeque<>();
    private final Map<String, Item> handed = new HashMap<>();
    private final Deque<BatchResult> results = new ArrayDeque<>();
    private int added;
    private int frames; // of the present stream

    /** Takes a call in. */
    void add(ToolCall call) {
        Item item = new Item(added++, call);
        if (item.size() > MAX_FRAME_BYTES) {
            String message = "the call has " + item.size() + " bytes; a frame takes " + MAX_FRAME_BYTES;
            fail(item, notRun(Status.Code.INVALID_ARGUMENT, ErrorKind.ERROR_KIND_SCHEMA, message));
        } else {
            queue.add(item);
        }
    }

    /** What goes out next, null when nothing is queued. It counts as handed to the transport from here on. */
    DispatchBatchRequest nextFrame() {
        DispatchBatchRequest.Builder frame = DispatchBatchRequest.newBuilder();
        int size = 0;
        while (!queue.isEmpty()
                && frame.getCallsCount() < MAX_FRAME_CALLS
                && size + queue.peek().size() <= MAX_FRAME_BYTES) {
            Item item = queue.remove();
            if (hasTime(item)) {
                item.frame = frames + 1;
                handed.put(item.wire.getItemId(), item);
                frame.addCalls(item.wire);
                size += item.size();
            }
        }
        if (frame.getCallsCount() == 0) {
            return null;
        }
        frames++;
        return frame.build();
    }

    /** Reads what the service wrote. */
    void hear(DispatchBatchResponse response) {
        for (BatchItem told : response.getItemsList()) {
            Item item = handed.remove(told.getItemId());
            if (item == null) {
                continue; // not one of ours, or answered before
            }
            if (told.hasAnswer()) {
                end(item, told.getAnswer());
            } else {
                fail(item, LinesideException.of(told.getError()));
            }
        }
        if (response.hasFrameError()) {
            LinesideException refusal =
                    LinesideException.of(response.getFrameError().getStatus());
            for (Item item : List.copyOf(handed.values())) {
                if (item.frame == response.getFrameError().getFrame()) {
                    handed.remove(item.wire.getItemId());
                    fail(item, refusal);
                }
            }
        }
    }

    /** The stream is gone: ends what must not be sent again, and queues the rest in its old order, first. */
    void broke(StreamEnd end) {
        List<Item> lost = new ArrayList<>(handed.values());
        lost.sort(Comparator.comparingInt((Item item) -> item.position).reversed());
        handed.clear();
        frames = 0;
        for (Item item : lost) {
            boolean mayHaveRun = end.took(item.frame);
            if (mayHaveRun && !item.call.hasIdempotencyKey()) {
                fail(item, end.failure().with(Outcome.OUTCOME_UNKNOWN));
            } else {
                item.isOpen |= mayHaveRun;
                queue.addFirst(item);
            }
        }
    }

    /** Ends what ran out of time while no stream could be had; the pause, or less where the time of a call ends before. */
    Duration expire(Duration pause) {
        queue.removeIf(item -> !hasTime(item));
        Duration least = pause;
        for (Item item : queue) {
            Duration left = Duration.ofNanos(item.deadlineNanos - System.nanoTime());
            least = left.compareTo(least) < 0 ? left : least;
        }
        return least.isNegative() ? Duration.ZERO : least;
    }

    /** No further stream: what is queued was not taken, or its outcome is open. */
    void giveUp(LinesideException failure) {
        while (!queue.isEmpty()) {
            fail(queue.remove(), failure.with(Outcome.OUTCOME_NOT_RUN));
        }
    }

    /** The next result, null when there is none. */
    BatchResult nextResult() {
        return results.poll();
    }

    boolean hasResult() {
        return !results.isEmpty();
    }

    boolean hasQueued() {
        return !queue.isEmpty();
    }

    /** Whether every call so far is among the results. */
    boolean isSettled() {
        return queue.isEmpty() && handed.isEmpty();
    }

    /** A call's time runs from its first sending, as the service counts it, or from the first try at it. */
    private boolean hasTime(Item item) {
        long now = System.nanoTime();
        if (!item.isBegun) {
            Duration time = item.call.hasCallTimeout()
                    ? Calls.time(item.call.getCallTimeout())
                    : LinesideClient.DEFAULT_TIMEOUT;
            item.isBegun = true;
            item.deadlineNanos = now + TimeUnit.MILLISECONDS.toNanos(time.toMillis());
            return true;
        }
        Duration left = Duration.ofNanos(item.deadlineNanos - now);
        if (left.compareTo(Resend.MIN_TIME_LEFT) < 0) {
            String message = "the call's time ran out while the connection was being made again";
            fail(item, notRun(Status.Code.DEADLINE_EXCEEDED, ErrorKind.ERROR_KIND_TIMEOUT, message));
            return false;
        }
        item.wire = item.wire.toBuilder().setCallTimeout(Calls.time(left)).build();
        return true;
    }

    private static LinesideException notRun(Status.Code code, ErrorKind kind, String message) {
        return LinesideException.of(code, kind, Outcome.OUTCOME_NOT_RUN, message);
    }

    private void end(Item item, ToolAnswer answer) {
        results.add(new BatchResult.Answered(item.position, item.call, answer));
    }

    private void fail(Item item, LinesideException failure) {
        LinesideException said = item.isOpen ? failure.sinceLost() : failure;
        results.add(new BatchResult.Failed(item.position, item.call, said));
    }
}
