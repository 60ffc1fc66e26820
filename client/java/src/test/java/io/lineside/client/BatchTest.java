package io.lineside.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.gson.JsonObject;
import io.grpc.Context;
import io.grpc.Context.CancellableContext;
import io.grpc.Status;
import io.lineside.v1.ErrorKind;
import io.lineside.v1.Outcome;
import io.lineside.v1.ToolCall;
import java.time.Duration;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** Many calls on one stream, against a real service. */
@Timeout(90)
final class BatchTest {
    private static LinesideClient client;

    @BeforeAll
    static void connect() {
        client = LinesideClient.connect(Service.address());
    }

    @AfterAll
    static void close() {
        client.close();
    }

    private static Iterator<ToolCall> booking(String what, int count, boolean isKeyed) {
        return IntStream.range(0, count)
                .mapToObj(number -> {
                    String name = what + "-" + number;
                    ToolCall.Builder call = Calls.call("book", Map.of("seat", name));
                    return (isKeyed ? call.setIdempotencyKey(name) : call).build();
                })
                .iterator();
    }

    @Test
    void eachCallIsAnsweredOnce() {
        Stream<ToolCall> calls = IntStream.range(0, 1000)
                .mapToObj(number -> Calls.call(number % 100 == 7 ? "no_such_tool" : "echo", Map.of("value", number))
                        .build());
        Map<Integer, BatchResult> seen = new HashMap<>();
        try (Batch batch = client.batch(calls.iterator(), Duration.ofSeconds(60))) {
            for (BatchResult result : batch) {
                assertEquals(null, seen.put(result.position(), result));
            }
        }
        assertEquals(1000, seen.size());
        seen.forEach((position, result) -> {
            if (position % 100 == 7) {
                LinesideException error = assertThrows(LinesideException.class, result::answer);
                assertEquals(ErrorKind.ERROR_KIND_NOT_FOUND, error.kind());
            } else {
                assertEquals(Integer.toString(position), Calls.json(result.answer()));
            }
        });
    }

    @Test
    void aBatchOfNothingEnds() {
        try (Batch batch = client.batch(List.<ToolCall>of().iterator())) {
            assertTrue(!batch.iterator().hasNext());
        }
    }

    @Test
    void callsAreTakenOnlyAsResultsAreRead() {
        AtomicInteger taken = new AtomicInteger();
        Stream<ToolCall> endless = Stream.generate(() -> {
            taken.incrementAndGet();
            return Calls.call("echo", Map.of("value", "x".repeat(1000))).build();
        });
        try (Batch batch = client.batch(endless.iterator())) {
            Iterator<BatchResult> results = batch.iterator();
            for (int read = 0; read < 1000; read++) {
                results.next();
            }
        }
        assertTrue(taken.get() <= 1000 + Batch.WINDOW, taken::toString);
    }

    @Test
    void itGoesOnAfterALostConnection() throws Exception {
        int ended = 0;
        try (Relay relay = new Relay(2);
                LinesideClient over = LinesideClient.connect(relay.address());
                Batch batch = over.batch(booking("batch", 40, true), Duration.ofSeconds(60))) {
            for (BatchResult result : batch) {
                ended++;
                JsonObject booked = Calls.result(result.answer(), JsonObject.class);
                assertEquals(1, booked.get("effects").getAsInt());
            }
            assertEquals(2, relay.cuts());
        }
        assertEquals(40, ended);
    }

    @Test
    void aLostCallWithoutAKeyIsUnknownAndNotSentAgain() throws Exception {
        int unknown = 0;
        try (Relay relay = new Relay(1);
                LinesideClient over = LinesideClient.connect(relay.address());
                Batch batch = over.batch(booking("keyless", 40, false), Duration.ofSeconds(60))) {
            for (BatchResult result : batch) {
                if (result instanceof BatchResult.Failed failed) {
                    assertEquals(Outcome.OUTCOME_UNKNOWN, failed.error().outcome());
                    unknown++;
                }
            }
        }
        assertTrue(unknown > 0);
        try (Batch batch = client.batch(booking("keyless", 40, false), Duration.ofSeconds(60))) {
            for (BatchResult result : batch) { // one effect of then, at most, and this one
                JsonObject booked = Calls.result(result.answer(), JsonObject.class);
                assertTrue(booked.get("effects").getAsInt() <= 2);
            }
        }
    }

    @Test
    void framesThatADrainingServiceDidNotTakeAreSentAgain() throws Exception {
        try (Scripted drained = new Scripted(call -> {}, stream -> stream == 1 ? Scripted.drained(0) : null);
                LinesideClient over = LinesideClient.connect(drained.address());
                Batch batch = over.batch(booking("drained", 3, false), Duration.ofSeconds(20))) {
            int answered = 0;
            for (BatchResult result : batch) {
                assertEquals("1", Calls.json(result.answer()));
                answered++;
            }
            assertEquals(3, answered);
        }
    }

    @Test
    void framesThatItTookAreNotSentAgainWithoutAKey() throws Exception {
        try (Scripted drained = new Scripted(call -> {}, stream -> stream == 1 ? Scripted.drained(9) : null);
                LinesideClient over = LinesideClient.connect(drained.address());
                Batch batch = over.batch(List.of(booking("taken", 1, false).next()).iterator())) {
            LinesideException error =
                    assertThrows(LinesideException.class, batch.iterator().next()::answer);
            assertEquals(Outcome.OUTCOME_UNKNOWN, error.outcome());
        }
    }

    @Test
    void itEndsAtItsTime() {
        Iterator<ToolCall> calls = List.of(
                        Calls.call("hang", Map.of()).build(),
                        Calls.call("hang", Map.of()).setIdempotencyKey("hang-1").build())
                .iterator();
        int ended = 0;
        try (Batch batch = client.batch(calls, Duration.ofMillis(500))) {
            for (BatchResult result : batch) {
                LinesideException error = assertThrows(LinesideException.class, result::answer);
                assertEquals(Status.Code.DEADLINE_EXCEEDED, error.code());
                assertEquals(Outcome.OUTCOME_UNKNOWN, error.outcome());
                ended++;
            }
        }
        assertEquals(2, ended);
    }

    @Test
    void cancellingTheContextEndsIt() {
        Iterator<ToolCall> calls = Stream.generate(() -> Calls.call("hang", Map.of()).build()).limit(3).iterator();
        CancellableContext context = Context.current().withCancellation();
        CompletableFuture.delayedExecutor(300, TimeUnit.MILLISECONDS).execute(() -> context.cancel(null));
        AtomicInteger ended = new AtomicInteger();
        context.run(() -> {
            try (Batch batch = client.batch(calls)) {
                for (BatchResult result : batch) {
                    LinesideException error = assertThrows(LinesideException.class, result::answer);
                    assertEquals(Status.Code.CANCELLED, error.code());
                    ended.incrementAndGet();
                }
            }
        });
        assertEquals(3, ended.get());
    }

    @Test
    void withNobodyThereEveryCallFailsAsNotRun() {
        int ended = 0;
        try (LinesideClient nobody = LinesideClient.connect("127.0.0.1:1");
                Batch batch = nobody.batch(booking("nobody", 3, true), Duration.ofSeconds(2))) {
            for (BatchResult result : batch) {
                LinesideException error = assertThrows(LinesideException.class, result::answer);
                assertEquals(Outcome.OUTCOME_NOT_RUN, error.outcome());
                ended++;
            }
        }
        assertEquals(3, ended);
    }

    @Test
    void whatTheIteratorThrowsComesThrough() {
        Iterator<ToolCall> broken = Stream.<ToolCall>generate(() -> {
                    throw new UnsupportedOperationException("no more rows");
                })
                .iterator();
        try (Batch batch = client.batch(broken)) {
            assertThrows(UnsupportedOperationException.class, () -> batch.iterator().hasNext());
        }
    }
}
