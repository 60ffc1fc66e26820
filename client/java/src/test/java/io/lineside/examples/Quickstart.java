package io.lineside.examples;

import io.lineside.client.Calls;
import io.lineside.client.LinesideClient;
import io.lineside.client.LinesideException;
import io.lineside.v1.ToolAnswer;
import io.lineside.v1.ToolCall;
import java.time.Duration;
import java.util.Map;

/** Calls a tool of `make run`. With a key, sending it twice books one seat. */
public final class Quickstart {
    public static void main(String[] arguments) {
        String target = arguments.length > 0 ? arguments[0] : "127.0.0.1:50051";
        try (LinesideClient client = LinesideClient.connect(target)) {
            ToolCall call = Calls.call("book_flight", Map.of("flight", "LS 101", "passenger", "Ada"))
                    .setIdempotencyKey("trip-java")
                    .build();
            for (int time = 0; time < 2; time++) {
                ToolAnswer answer = client.dispatch(call, Duration.ofSeconds(10));
                System.out.println(answer.getSource() + " " + Calls.json(answer));
            }
        } catch (LinesideException failure) {
            System.err.println(failure + "; next: "
                    + failure.dispatchError().map(told -> told.getNextList()).orElse(null));
            System.exit(1);
        }
    }
}
