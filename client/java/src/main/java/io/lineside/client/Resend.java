package io.lineside.client;

import io.lineside.v1.ErrorKind;
import java.time.Duration;
import java.util.Optional;
import java.util.concurrent.ThreadLocalRandom;

/** When to send again. */
final class Resend {
    /** With less time left the service would start no attempt. */
    static final Duration MIN_TIME_LEFT = Duration.ofMillis(5);

    private static final long FIRST_PAUSE_MS = 50;
    private static final long MAX_PAUSE_MS = 2_000;

    private Resend() {}

    /** The pause before a keyed call that nobody cancelled is sent again; empty if it must not be. times: how often it was already. */
    static Optional<Duration> pause(LinesideException failure, int times) {
        boolean hasPushback = failure.pushbackMs().isPresent();
        if ((failure.isLost() || failure.isDropped()) && !hasPushback) {
            return Optional.of(backOff(times));
        }
        boolean mayGoElsewhere = failure.isLost() || failure.kind() == ErrorKind.ERROR_KIND_UNAVAILABLE;
        if (!hasPushback || failure.pushbackMs().getAsLong() < 0 || !mayGoElsewhere) {
            return Optional.empty();
        }
        Duration pushback = Duration.ofMillis(failure.pushbackMs().getAsLong());
        // a service that says "at once" over and over would be asked in a tight loop
        return Optional.of(times > 0 ? longer(pushback, backOff(times)) : pushback);
    }

    /** 50 ms, doubled each time up to 2 s, of which at random the half to the whole. */
    static Duration backOff(int times) {
        long pauseMs = Math.min(MAX_PAUSE_MS, FIRST_PAUSE_MS << Math.min(times, 16));
        return Duration.ofNanos((long) (pauseMs * 1e6 * ThreadLocalRandom.current().nextDouble(0.5, 1)));
    }

    static Duration longer(Duration one, Duration other) {
        return one.compareTo(other) >= 0 ? one : other;
    }
}
