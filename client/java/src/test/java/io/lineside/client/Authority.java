package io.lineside.client;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.GeneralSecurityException;
import java.security.KeyStore;
import java.security.cert.Certificate;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;

/** A certificate authority for one test, by the JDK's keytool; certificates and keys as PEM files. */
final class Authority {
    private static final String PASSWORD = "not a secret";

    private final Path directory;
    private final Path store;

    Authority(Path directory) throws IOException, InterruptedException, GeneralSecurityException {
        this.directory = directory;
        store = directory.resolve("store.p12");
        generate("authority", "-ext", "bc:c");
        write("authority");
    }

    /** Makes a certificate for a DNS name; one for localhost also names its address. */
    void issue(String alias, String name) throws IOException, InterruptedException, GeneralSecurityException {
        String addresses = name.equals("localhost") ? ",ip:127.0.0.1" : "";
        generate(alias, "-signer", "authority", "-ext", "san=dns:" + name + addresses);
        write(alias);
    }

    /** Its own certificate. */
    Path certificate() {
        return certificate("authority");
    }

    Path certificate(String alias) {
        return directory.resolve(alias + ".pem");
    }

    Path key(String alias) {
        return directory.resolve(alias + ".key");
    }

    private void generate(String alias, String... more) throws IOException, InterruptedException {
        String keytool = Path.of(System.getProperty("java.home"), "bin", "keytool").toString();
        List<String> command = new ArrayList<>(List.of(keytool, "-genkeypair", "-alias", alias));
        command.addAll(List.of("-keyalg", "EC", "-groupname", "secp256r1", "-dname", "CN=" + alias, "-validity", "2"));
        command.addAll(List.of("-keystore", store.toString(), "-storetype", "PKCS12", "-storepass", PASSWORD));
        command.addAll(List.of(more));
        Process process = new ProcessBuilder(command).redirectErrorStream(true).start();
        String said = new String(process.getInputStream().readAllBytes());
        if (process.waitFor() != 0) {
            throw new IllegalStateException(said);
        }
    }

    private void write(String alias) throws IOException, GeneralSecurityException {
        KeyStore opened = KeyStore.getInstance(store.toFile(), PASSWORD.toCharArray());
        Certificate own = opened.getCertificate(alias);
        Files.writeString(certificate(alias), pem("CERTIFICATE", own.getEncoded()));
        byte[] key = opened.getKey(alias, PASSWORD.toCharArray()).getEncoded();
        Files.writeString(key(alias), pem("PRIVATE KEY", key));
    }

    private static String pem(String what, byte[] content) {
        String text = Base64.getMimeEncoder(64, "\n".getBytes()).encodeToString(content);
        return "-----BEGIN " + what + "-----\n" + text + "\n-----END " + what + "-----\n";
    }
}
