package io.lineside.client;

import java.io.BufferedReader;
import java.io.File;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Path;
import java.util.Map;
import java.util.Optional;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** A real service of this checkout; LINESIDE_SERVICE names another executable. It ends with the tests. */
final class Service {
    static final Path CONFIG = Path.of("src", "test", "service", "lineside.toml");
    private static final Pattern SERVING = Pattern.compile("SERVING on (\\S+?):? ");

    private Service() {}

    /** The address of the one that most tests share. */
    static String address() {
        return Shared.ADDRESS;
    }

    private static final class Shared {
        static final String ADDRESS = start(CONFIG, Map.of());
    }

    /** Starts one, with settings beside those of its config; returns its address. */
    static String start(Path config, Map<String, String> environment) {
        String command = Optional.ofNullable(System.getenv("LINESIDE_SERVICE"))
                .orElse(Path.of("..", "..", ".venv", "bin", "lineside-service").toString());
        ProcessBuilder builder = new ProcessBuilder(new File(command).getPath(), "serve", "--config", config.toString());
        builder.environment().putAll(environment);
        builder.redirectError(ProcessBuilder.Redirect.INHERIT);
        try {
            Process process = builder.start();
            Runtime.getRuntime().addShutdownHook(new Thread(process::destroy));
            BufferedReader out = process.inputReader();
            String line = String.valueOf(out.readLine());
            Matcher found = SERVING.matcher(line);
            if (!found.find()) {
                throw new IllegalStateException("the service did not start: " + line);
            }
            return found.group(1);
        } catch (IOException e) {
            throw new UncheckedIOException("`make setup` in the root of the project installs the service", e);
        }
    }
}
