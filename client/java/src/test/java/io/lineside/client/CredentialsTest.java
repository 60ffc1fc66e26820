package io.lineside.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import io.grpc.Status;
import io.lineside.v1.ToolCall;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.MessageDigest;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.Map;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

/** TLS, tokens and client certificates, against services that ask for them. */
@Timeout(60)
final class CredentialsTest {
    private static final ToolCall ECHO = Calls.call("echo", Map.of("value", 1)).build();
    private static final String TOKEN = "ls_test_of_the_java_client";

    @TempDir
    static Path directory;

    private static Authority authority;

    @BeforeAll
    static void issue() throws Exception {
        authority = new Authority(directory);
        authority.issue("server", "localhost");
    }

    /** A service over TLS with further lines in its config. */
    private static Endpoint secured(String name, String lines, Map<String, String> more) throws IOException {
        Path home = Files.createDirectory(directory.resolve(name));
        Files.copy(Service.CONFIG.resolveSibling("tools.py"), home.resolve("tools.py"));
        Path config = home.resolve("lineside.toml");
        Files.writeString(config, Files.readString(Service.CONFIG) + lines);
        Map<String, String> environment = new HashMap<>(more);
        environment.put("LINESIDE__SERVER__TLS_CERT", authority.certificate("server").toString());
        environment.put("LINESIDE__SERVER__TLS_KEY", authority.key("server").toString());
        return Endpoint.at(Service.start(config, environment));
    }

    private static Status.Code end(Endpoint endpoint) {
        try (LinesideClient client = LinesideClient.connect(endpoint)) {
            client.dispatch(ECHO);
            return Status.Code.OK;
        } catch (LinesideException failure) {
            return failure.code();
        }
    }

    @Test
    void aTokenOverTls() throws Exception {
        byte[] digest = MessageDigest.getInstance("SHA-256").digest(TOKEN.getBytes());
        String lines = "\n[[tokens]]\ntenant = \"acme\"\nsha256 = \"" + HexFormat.of().formatHex(digest) + "\"\n";
        Endpoint plain = secured("tokens", lines, Map.of());
        Endpoint trusting = plain.withTls(authority.certificate());
        assertEquals(Status.Code.OK, end(trusting.withToken(TOKEN)));
        assertEquals(Status.Code.UNAUTHENTICATED, end(trusting.withToken("ls_another")));
        assertEquals(Status.Code.UNAUTHENTICATED, end(trusting));
        assertEquals(Status.Code.UNAVAILABLE, end(plain.withTls().withToken(TOKEN)), "an unknown authority");
        assertEquals(Status.Code.UNAVAILABLE, end(plain.withToken(TOKEN)), "plaintext");
    }

    @Test
    void aClientCertificateNamesTheCaller() throws Exception {
        authority.issue("planner", "planner.acme");
        authority.issue("stranger", "planner.other");
        Endpoint plain = secured(
                "certificates",
                "\n[[certificates]]\nsan = \"planner.acme\"\ntenant = \"acme\"\n",
                Map.of("LINESIDE__SERVER__CLIENT_CA", authority.certificate().toString()));
        assertEquals(Status.Code.OK, end(as(plain, "planner")));
        assertEquals(Status.Code.UNAUTHENTICATED, end(as(plain, "stranger")));
        assertEquals(Status.Code.UNAVAILABLE, end(plain.withTls(authority.certificate())), "none");
    }

    private static Endpoint as(Endpoint plain, String name) {
        return plain.withTls(authority.certificate(), authority.certificate(name), authority.key(name));
    }

    @Test
    void aFileThatIsNotThereIsToldAtOnce() {
        Path nowhere = directory.resolve("nowhere.pem");
        assertThrows(UncheckedIOException.class, () -> Endpoint.at("localhost:1").withTls(nowhere));
    }
}
