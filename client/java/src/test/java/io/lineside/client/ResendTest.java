package io.lineside.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.rpc.Code;
import io.grpc.Status;
import io.lineside.v1.ErrorKind;
import io.lineside.v1.Outcome;
import io.lineside.v1.ToolCall;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.EnumSource;

/** What is sent again, and what never is. */
@Timeout(60)
final class ResendTest {
    private static final ToolCall KEYLESS = Calls.call("book", Map.of("seat", "1")).build();
    private static final ToolCall KEYED = KEYLESS.toBuilder().setIdempotencyKey("k").build();
    private static final String PUSHBACK = "grpc-retry-pushback-ms";

    @Test
    void aKeyedCallIsSentAgainWhenTheServiceSaysSo() throws Exception {
        Scripted.OnDispatch first = number -> {
            if (number == 1) {
                throw Scripted.refusal(Code.UNAVAILABLE, ErrorKind.ERROR_KIND_UNAVAILABLE, PUSHBACK, "120");
            }
        };
        try (Scripted service = new Scripted(first, stream -> null);
                LinesideClient client = LinesideClient.connect(service.address())) {
            long began = System.nanoTime();
            client.dispatch(KEYED, Duration.ofSeconds(10));
            assertTrue(System.nanoTime() - began >= Duration.ofMillis(120).toNanos());
            List<ToolCall> sent = service.sent();
            assertEquals(2, sent.size());
            Duration left = Calls.time(sent.get(1).getCallTimeout());
            assertTrue(left.compareTo(Calls.time(sent.get(0).getCallTimeout())) < 0, "its time goes on");
        }
    }

    @Test
    void sendingAgainEndsWithTheCallsOwnTime() {
        ToolCall call = KEYED.toBuilder().setCallTimeout(Calls.time(Duration.ofMillis(400))).build();
        try (LinesideClient client = LinesideClient.connect("127.0.0.1:1")) { // nobody listens there
            long began = System.nanoTime();
            assertThrows(LinesideException.class, () -> client.dispatch(call));
            assertTrue(System.nanoTime() - began < Duration.ofSeconds(5).toNanos());
            began = System.nanoTime();
            for (BatchResult result : client.batch(List.of(call, call).iterator())) {
                LinesideException late = ((BatchResult.Failed) result).error();
                assertEquals(Outcome.OUTCOME_NOT_RUN, late.outcome());
            }
            assertTrue(System.nanoTime() - began < Duration.ofSeconds(5).toNanos());
        }
    }

    @ParameterizedTest
    @CsvSource({
        "false, UNAVAILABLE, UNSPECIFIED, ''",
        "false, UNAVAILABLE, UNSPECIFIED, 0",
        "false, UNAVAILABLE, UNAVAILABLE, 0",
        "false, CANCELLED, UNSPECIFIED, ''",
        "true, UNAVAILABLE, UNAVAILABLE, ''",
        "true, UNAVAILABLE, UNAVAILABLE, -1",
        "true, UNAVAILABLE, UNAVAILABLE, soon",
        "true, UNAVAILABLE, UNSPECIFIED, -1",
        "true, UNAVAILABLE, TRANSIENT, 0",
        "true, NOT_FOUND, NOT_FOUND, 0",
        "true, RESOURCE_EXHAUSTED, OVERLOADED, 0",
        "true, INTERNAL, UNSPECIFIED, ''",
    })
    void theseAreNeverSentAgain(boolean isKeyed, Code code, String kind, String pushback) throws Exception {
        RuntimeException refusal = Scripted.refusal(code, ErrorKind.valueOf("ERROR_KIND_" + kind), PUSHBACK, pushback);
        Scripted.OnDispatch always = number -> {
            throw refusal;
        };
        try (Scripted service = new Scripted(always, stream -> null);
                LinesideClient client = LinesideClient.connect(service.address())) {
            LinesideException failure = assertThrows(
                    LinesideException.class, () -> client.dispatch(isKeyed ? KEYED : KEYLESS, Duration.ofSeconds(3)));
            assertEquals(code.name(), failure.code().name());
            assertEquals(1, service.sent().size());
        }
    }

    @Test
    void whatTheServiceLetDropIsSentAgainUnderItsKey() throws Exception {
        Scripted.OnDispatch first = number -> {
            if (number == 1) {
                throw Status.CANCELLED.asRuntimeException();
            }
        };
        try (Scripted service = new Scripted(first, stream -> null);
                LinesideClient client = LinesideClient.connect(service.address())) {
            client.dispatch(KEYED, Duration.ofSeconds(10));
            assertEquals(2, service.sent().size());
        }
    }

    @ParameterizedTest
    @EnumSource
    void withoutAKeyNoBrokenRequestIsRepeatedByGrpcEither(Breaking.Way way) throws Exception {
        try (Breaking service = new Breaking(way);
                LinesideClient client = LinesideClient.connect(service.address())) {
            LinesideException failure = assertThrows(
                    LinesideException.class, () -> client.dispatch(KEYLESS, Duration.ofSeconds(2)), way::name);
            assertEquals(Outcome.OUTCOME_UNKNOWN, failure.outcome());
            assertEquals(1, service.requests());
        }
    }
}
