package io.lineside.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.gson.JsonObject;
import com.google.rpc.PreconditionFailure;
import com.google.rpc.ResourceInfo;
import io.grpc.Context;
import io.grpc.Context.CancellableContext;
import io.grpc.Status;
import io.lineside.v1.ErrorKind;
import io.lineside.v1.Outcome;
import io.lineside.v1.Source;
import io.lineside.v1.ToolAnswer;
import io.lineside.v1.ToolCall;
import io.opentelemetry.api.trace.Span;
import io.opentelemetry.api.trace.SpanContext;
import io.opentelemetry.api.trace.TraceFlags;
import io.opentelemetry.api.trace.TraceState;
import io.opentelemetry.context.Scope;
import java.time.Duration;
import java.util.Map;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** One call at a time, against a real service. */
@Timeout(60)
final class CallTest {
    private static LinesideClient client;

    @BeforeAll
    static void connect() {
        client = LinesideClient.connect(Service.address());
    }

    @AfterAll
    static void close() {
        client.close();
    }

    private static ToolCall book(String seat, String key) {
        return Calls.call("book", Map.of("seat", seat)).setIdempotencyKey(key).build();
    }

    private static LinesideException failure(ToolCall call) {
        LinesideException failure = assertThrows(LinesideException.class, () -> client.dispatch(call));
        assertEquals("lineside", failure.errorInfo().orElseThrow().getDomain());
        return failure;
    }

    private static void assertEnd(LinesideException failure, Status.Code code, ErrorKind kind, Outcome outcome) {
        assertEquals(code, failure.code());
        assertEquals(kind, failure.kind());
        assertEquals(outcome, failure.outcome());
    }

    @Test
    void anAnswerKeepsBigNumbersExact() {
        String arguments = "{\"value\":[9007199254740993,1e2,null,\"\u00e9\",123456789012345678901234567890]}";
        ToolAnswer answer = client.dispatch(Calls.ofJson("echo", arguments).build(), Duration.ofSeconds(10));
        assertEquals("[9007199254740993,100.0,null,\"\u00e9\",123456789012345678901234567890]", Calls.json(answer));
        assertEquals(Source.SOURCE_EXECUTED, answer.getSource());
        assertEquals(1, answer.getAttempts());
    }

    @Test
    void aRecordIsArgumentsToo() {
        record Seat(String seat) {}
        record Booked(int effects) {}
        ToolAnswer answer = client.dispatch(Calls.call("book", new Seat("9Z")).build());
        assertEquals(new Booked(1), Calls.result(answer, Booked.class));
    }

    @Test
    void aKeyIsRunOnce() {
        ToolAnswer first = client.dispatch(book("1A", "trip-1"));
        ToolAnswer again = client.dispatch(book("1A", "trip-1"));
        assertEquals(1, Calls.result(again, JsonObject.class).get("effects").getAsInt());
        assertEquals(first.getCallId(), again.getCallId());
        assertEquals(Source.SOURCE_REPLAYED, again.getSource());
    }

    @Test
    void aToolThatSaysNoIsAnAnswer() {
        ToolAnswer answer = client.dispatch(Calls.call("refuse", Map.of("why", "sold out")).build());
        assertTrue(answer.getToolError());
        assertTrue(Calls.json(answer).contains("sold out"));
    }

    @Test
    void wrongArgumentsNameTheField() {
        LinesideException failure = failure(Calls.call("book", Map.of("seat", 7)).build());
        assertEnd(failure, Status.Code.INVALID_ARGUMENT, ErrorKind.ERROR_KIND_SCHEMA, Outcome.OUTCOME_NOT_RUN);
        assertEquals("/seat", failure.badRequest().orElseThrow().getFieldViolations(0).getField());
    }

    @Test
    void anUnknownToolNamesTheLikelyOne() {
        LinesideException failure = failure(Calls.call("bok", Map.of()).build());
        assertEnd(failure, Status.Code.NOT_FOUND, ErrorKind.ERROR_KIND_NOT_FOUND, Outcome.OUTCOME_NOT_RUN);
        assertTrue(failure.detail(ResourceInfo.class).isPresent());
        assertTrue(failure.getMessage().contains("book"), failure::toString);
    }

    @Test
    void aKeyWithOtherArgumentsIsRefused() {
        client.dispatch(book("2B", "trip-2"));
        LinesideException failure = failure(book("2C", "trip-2"));
        assertEnd(failure, Status.Code.FAILED_PRECONDITION, ErrorKind.ERROR_KIND_KEY_REUSED, Outcome.OUTCOME_NOT_RUN);
        assertEquals(1, failure.detail(PreconditionFailure.class).orElseThrow().getViolationsCount());
    }

    @Test
    void aCallEndsAtItsTime() {
        ToolCall call = Calls.call("hang", Map.of()).setCallTimeout(Calls.time(Duration.ofMillis(300))).build();
        LinesideException failure = failure(call);
        assertEnd(failure, Status.Code.DEADLINE_EXCEEDED, ErrorKind.ERROR_KIND_TIMEOUT, Outcome.OUTCOME_UNKNOWN);
        assertEquals(1, failure.attempts());
    }

    @Test
    void theTimeGivenToDispatchIsTheCallsOwn() {
        ToolCall call = Calls.call("hang", Map.of()).build();
        LinesideException failure =
                assertThrows(LinesideException.class, () -> client.dispatch(call, Duration.ofMillis(500)));
        assertEnd(failure, Status.Code.DEADLINE_EXCEEDED, ErrorKind.ERROR_KIND_TIMEOUT, Outcome.OUTCOME_UNKNOWN);
    }

    @Test
    void cancellingTheContextGivesTheCallUp() {
        ToolCall call = Calls.call("hang", Map.of()).build();
        CancellableContext context = Context.current().withCancellation();
        CompletableFuture.delayedExecutor(100, TimeUnit.MILLISECONDS).execute(() -> context.cancel(null));
        LinesideException failure =
                assertThrows(LinesideException.class, () -> context.run(() -> client.dispatch(call)));
        assertEquals(Status.Code.CANCELLED, failure.code());
        assertEquals(Outcome.OUTCOME_UNKNOWN, failure.outcome());
    }

    @Test
    void cancellingTheFutureGivesTheCallUp() {
        ToolCall call = book("6F", "trip-6");
        assertEquals(1, client.dispatchAsync(call, Duration.ofSeconds(10)).join().getAttempts());
        CompletableFuture<ToolAnswer> hanging =
                client.dispatchAsync(Calls.call("hang", Map.of()).build(), Duration.ofSeconds(10));
        assertTrue(hanging.cancel(true));
        assertThrows(CancellationException.class, hanging::join);
    }

    @Test
    void interruptingTheThreadGivesTheCallUp() {
        Thread waiting = Thread.currentThread();
        CompletableFuture.delayedExecutor(100, TimeUnit.MILLISECONDS).execute(waiting::interrupt);
        LinesideException failure = assertThrows(
                LinesideException.class, () -> client.dispatch(Calls.call("hang", Map.of()).build()));
        assertEquals(Status.Code.CANCELLED, failure.code());
        assertTrue(Thread.interrupted()); // still told, and cleared for the next test
    }

    @Test
    void theTraceGoesAlong() {
        String trace = "0af7651916cd43dd8448eb211c80319c";
        SpanContext span =
                SpanContext.create(trace, "b7ad6b7169203331", TraceFlags.getSampled(), TraceState.getDefault());
        try (Scope ignored = Span.wrap(span).makeCurrent()) {
            ToolAnswer answer = client.dispatch(Calls.call("echo", Map.of("value", 1)).build());
            assertEquals(trace, answer.getTraceId());
        }
    }

    @Test
    void aLostAnswerIsAskedForAgainUnderItsKey() throws Exception {
        try (Relay relay = new Relay(1);
                LinesideClient over = LinesideClient.connect(relay.address())) {
            ToolAnswer answer = over.dispatch(book("3C", "trip-3"), Duration.ofSeconds(20));
            assertEquals(1, Calls.result(answer, JsonObject.class).get("effects").getAsInt());
            assertEquals(1, relay.cuts());
        }
    }

    @Test
    void aLostAnswerWithoutAKeyIsUnknownAndNotAskedForAgain() throws Exception {
        ToolCall call = Calls.call("book", Map.of("seat", "4D")).build();
        try (Relay relay = new Relay(1);
                LinesideClient over = LinesideClient.connect(relay.address())) {
            LinesideException failure = assertThrows(LinesideException.class, () -> over.dispatch(call));
            assertTrue(failure.isLost());
            assertEquals(Outcome.OUTCOME_UNKNOWN, failure.outcome());
        }
        ToolAnswer next = client.dispatch(call);
        assertEquals(2, Calls.result(next, JsonObject.class).get("effects").getAsInt());
    }

    @Test
    void aClosedClientEndsAKeyedCallAtOnce() {
        LinesideClient closed = LinesideClient.connect(Service.address());
        closed.close();
        long began = System.nanoTime();
        assertThrows(LinesideException.class, () -> closed.dispatch(book("5E", "trip-5")));
        assertTrue(System.nanoTime() - began < TimeUnit.SECONDS.toNanos(5));
    }
}
