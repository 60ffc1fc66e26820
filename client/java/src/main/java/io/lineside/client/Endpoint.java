package io.lineside.client;

import com.google.gson.Gson;
import io.grpc.ChannelCredentials;
import io.grpc.Grpc;
import io.grpc.InsecureChannelCredentials;
import io.grpc.ManagedChannel;
import io.grpc.ManagedChannelBuilder;
import io.grpc.TlsChannelCredentials;
import java.io.IOException;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.Reader;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.TimeUnit;
import java.util.function.UnaryOperator;
import java.util.regex.Pattern;

/**
 * Where the service is, and who calls it. Each method gives a changed copy: {@code
 * Endpoint.at("host:50051").withTls(ca).withToken(token)}.
 */
public final class Endpoint {
    /** What the service takes in one message, bytes. */
    static final int MAX_MESSAGE = 16 << 20;

    /** A status with its details stays under 4 KiB; this is where other clients of gRPC draw the line. */
    private static final int MAX_METADATA = 16 << 10;

    private static final Pattern TOKEN = Pattern.compile("[!-~]+");
    private static final Pattern LOOPBACK = Pattern.compile("localhost|127(\\.\\d{1,3}){3}|::1", Pattern.CASE_INSENSITIVE);

    private final String target;
    private final Optional<TlsChannelCredentials.Builder> tls;
    private final Optional<String> token;
    private final UnaryOperator<ManagedChannelBuilder<?>> options;

    private Endpoint(
            String target,
            Optional<TlsChannelCredentials.Builder> tls,
            Optional<String> token,
            UnaryOperator<ManagedChannelBuilder<?>> options) {
        this.target = target;
        this.tls = tls;
        this.token = token;
        this.options = options;
    }

    /** The service at {@code host:port}, or at any target that gRPC knows; in plaintext until TLS is asked for. */
    public static Endpoint at(String target) {
        return new Endpoint(target, Optional.empty(), Optional.empty(), UnaryOperator.identity());
    }

    /** Encrypted; the service's certificate is checked against the system's authorities. */
    public Endpoint withTls() {
        return new Endpoint(target, Optional.of(TlsChannelCredentials.newBuilder()), token, options);
    }

    /** Encrypted; the service's certificate is checked against the authorities of a PEM file. */
    public Endpoint withTls(Path authorities) {
        return secured(TlsChannelCredentials.newBuilder(), authorities, null, null);
    }

    /** Encrypted both ways (mTLS): the caller shows a certificate of its own. All three are PEM files. */
    public Endpoint withTls(Path authorities, Path certificate, Path key) {
        return secured(TlsChannelCredentials.newBuilder(), authorities, certificate, key);
    }

    /** Sends a bearer token with every call: over TLS, or to this machine itself. */
    public Endpoint withToken(String token) {
        if (tls.isEmpty() && !isLoopback(target)) {
            throw new IllegalArgumentException("a token would travel in plaintext to " + target
                    + ": ask for TLS first, or say withInsecureToken if the network in between is trusted");
        }
        return withInsecureToken(token);
    }

    /** Sends a bearer token with every call, in plaintext if need be. */
    public Endpoint withInsecureToken(String token) {
        if (!TOKEN.matcher(token).matches()) {
            throw new IllegalArgumentException("token: must be printable ASCII without spaces, and not empty");
        }
        return new Endpoint(target, tls, Optional.of(token), options);
    }

    /** Changes gRPC's own options; they win over the client's. */
    public Endpoint withOptions(UnaryOperator<ManagedChannelBuilder<?>> more) {
        return new Endpoint(target, tls, token, builder -> more.apply(options.apply(builder)));
    }

    /** The token, if there is one. */
    Optional<String> token() {
        return token;
    }

    /** A channel to the service; it connects at its first call. */
    ManagedChannel channel() {
        ChannelCredentials credentials =
                tls.<ChannelCredentials>map(TlsChannelCredentials.Builder::build).orElseGet(InsecureChannelCredentials::create);
        return options.apply(Grpc.newChannelBuilder(target, credentials)
                        .defaultServiceConfig(serviceConfig())
                        .disableServiceConfigLookUp()
                        .maxInboundMessageSize(MAX_MESSAGE)
                        .maxInboundMetadataSize(MAX_METADATA)
                        .keepAliveTime(30, TimeUnit.SECONDS)
                        .keepAliveTimeout(20, TimeUnit.SECONDS))
                .build();
    }

    /**
     * The service config that Lineside publishes: gRPC's own retries for reads, none for Dispatch, where a repeated
     * request could repeat an effect. A test keeps it equal to the Python client's.
     */
    @SuppressWarnings("unchecked") // gRPC takes what Gson makes of a JSON object: maps, lists, texts, doubles
    static Map<String, ?> serviceConfig() {
        InputStream resource = Endpoint.class.getResourceAsStream("service_config.json");
        try (Reader text = new InputStreamReader(resource, StandardCharsets.UTF_8)) {
            return new Gson().fromJson(text, Map.class);
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    /** Whether every address of a target is this machine itself. */
    static boolean isLoopback(String target) {
        if (target.startsWith("unix:") || target.startsWith("unix-abstract:")) {
            return true;
        }
        String addresses = target.replaceFirst("^(dns|ipv4|ipv6):(//[^/]*/)?", "");
        return Arrays.stream(addresses.split(",")).allMatch(address -> LOOPBACK.matcher(host(address)).matches());
    }

    private static String host(String address) {
        if (address.startsWith("[")) {
            return address.substring(1).replaceFirst("].*", "");
        }
        boolean hasPort = address.indexOf(':') == address.lastIndexOf(':');
        return hasPort ? address.replaceFirst(":.*", "") : address;
    }

    private Endpoint secured(TlsChannelCredentials.Builder builder, Path authorities, Path certificate, Path key) {
        try (InputStream roots = Files.newInputStream(authorities)) {
            builder.trustManager(roots);
            if (certificate != null) {
                builder.keyManager(certificate.toFile(), key.toFile());
            }
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
        return new Endpoint(target, Optional.of(builder), token, options);
    }
}
