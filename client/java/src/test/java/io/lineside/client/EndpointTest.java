package io.lineside.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;

/** Where the service is, and who calls it. */
final class EndpointTest {
    @Test
    void aTokenDoesNotLeaveThisMachineInPlaintext() {
        Endpoint elsewhere = Endpoint.at("lineside.example:50051");
        assertThrows(IllegalArgumentException.class, () -> elsewhere.withToken("secret"));
        assertEquals("secret", elsewhere.withTls().withToken("secret").token().orElseThrow());
        assertEquals("secret", elsewhere.withInsecureToken("secret").token().orElseThrow());
        assertEquals("secret", Endpoint.at("localhost:50051").withToken("secret").token().orElseThrow());
        assertThrows(IllegalArgumentException.class, () -> Endpoint.at("localhost:50051").withToken("two words"));
    }

    @Test
    void thisMachineHasManyNames() {
        for (String here : List.of(
                "localhost:1", "127.0.0.1:1", "127.8.9.1", "[::1]:1", "::1", "dns:///localhost:1", "unix:/run/l.sock",
                "ipv4:127.0.0.1:1,127.0.0.2:1")) {
            assertTrue(Endpoint.isLoopback(here), here);
        }
        for (String elsewhere : List.of(
                "10.0.0.1:1", "localhost.example:1", "127.0.0.1.example:1", "[::2]:1", "dns://localhost/example:1",
                "ipv4:127.0.0.1:1,10.0.0.1:1", "")) {
            assertFalse(Endpoint.isLoopback(elsewhere), elsewhere);
        }
    }

    @Test
    void theServiceConfigRetriesReadsOnly() {
        List<?> methods = (List<?>) Endpoint.serviceConfig().get("methodConfig");
        String text = methods.toString();
        assertTrue(text.contains("GetCall") && !text.contains("Dispatch"), text);
        assertEquals(4.0, ((Map<?, ?>) ((Map<?, ?>) methods.get(0)).get("retryPolicy")).get("maxAttempts"));
    }
}
