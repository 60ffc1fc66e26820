package io.lineside.client;

import io.grpc.Metadata;
import io.grpc.Status;
import io.lineside.v1.ErrorKind;
import io.lineside.v1.Outcome;
import java.time.Duration;
import java.util.OptionalInt;

/** How a stream ended. accepted: how many frames the service says that it took; empty when it did not say. */
record StreamEnd(LinesideException failure, OptionalInt accepted) {
    private static final Metadata.Key<String> ACCEPTED =
            Metadata.Key.of("lineside-frames-accepted", Metadata.ASCII_STRING_MARSHALLER);

    /** As gRPC tells it. */
    static StreamEnd of(Throwable end) {
        Metadata trailers = Status.trailersFromThrowable(end);
        String count = trailers == null ? null : trailers.get(ACCEPTED);
        boolean isCount = count != null && count.matches("\\d{1,9}");
        return new StreamEnd(
                LinesideException.of(end), isCount ? OptionalInt.of(Integer.parseInt(count)) : OptionalInt.empty());
    }

    /** Ended OK with answers missing: something in between may do that. */
    static StreamEnd early() {
        return ofOurs(Status.Code.INTERNAL, "the stream ended before every call was answered");
    }

    /** An end that this side makes by itself. */
    static StreamEnd ofOurs(Status.Code code, String message) {
        LinesideException failure =
                LinesideException.of(code, ErrorKind.ERROR_KIND_UNSPECIFIED, Outcome.OUTCOME_UNKNOWN, message);
        return new StreamEnd(failure, OptionalInt.empty());
    }

    /** Whether the service may have begun on a frame, counted from 1. */
    boolean took(int frame) {
        return accepted.isPresent() ? frame <= accepted.getAsInt() : failure.outcome() != Outcome.OUTCOME_NOT_RUN;
    }

    /** Whether another stream may do better: the service drained, or the connection broke. For one that nobody cancelled. */
    boolean mayResume() {
        boolean isUnavailable = failure.kind() == ErrorKind.ERROR_KIND_UNAVAILABLE;
        boolean isForbidden = failure.pushbackMs().isPresent() && failure.pushbackMs().getAsLong() < 0;
        if (accepted.isPresent() && isUnavailable) {
            return true;
        }
        if (failure.isLost() || failure.isDropped()) {
            return !isForbidden;
        }
        if (isUnavailable) {
            return failure.pushbackMs().isPresent() && !isForbidden;
        }
        return failure.dispatchError().isEmpty() && failure.code() == Status.Code.INTERNAL;
    }

    /** The time before that stream. fruitless: how many in a row brought no answer. */
    Duration pause(int fruitless) {
        Duration pushback = Duration.ofMillis(failure.pushbackMs().orElse(0));
        return Resend.longer(Resend.backOff(fruitless), pushback);
    }
}
