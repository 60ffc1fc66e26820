package io.lineside.contract;

import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import io.lineside.client.Endpoint;
import io.lineside.client.LinesideClient;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/**
 * Runs the scenarios of the contract suite through this client, and prints what it got; tests/contract/README.md has the
 * format. Its one argument is the file of scenarios.
 */
public final class Runner implements AutoCloseable {
    private final JsonObject addresses;
    private final String token; // null: none
    private final String authorities; // null: plaintext
    private final Map<List<String>, LinesideClient> clients = new HashMap<>();

    private Runner(Map<String, String> environment) {
        addresses = JsonParser.parseString(environment.get("LINESIDE_ADDRESSES")).getAsJsonObject();
        token = environment.get("LINESIDE_TOKEN");
        authorities = environment.get("LINESIDE_CA");
    }

    public static void main(String[] arguments) throws Exception {
        JsonObject file = JsonParser.parseString(Files.readString(Path.of(arguments[0]))).getAsJsonObject();
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        Gson json = new GsonBuilder().serializeNulls().create();
        try (Runner runner = new Runner(System.getenv())) {
            for (JsonElement scenario : file.getAsJsonArray("scenarios")) {
                out.println(json.toJson(runner.run(scenario.getAsJsonObject())));
            }
        }
        System.exit(0); // threads of steps that wait for nothing more
    }

    private JsonObject run(JsonObject scenario) {
        String via = scenario.has("via") ? scenario.get("via").getAsString() : "direct";
        Steps steps = new Steps(client(via, scenario.has("token") ? scenario.get("token").getAsString() : token));
        JsonArray answers = new JsonArray();
        scenario.getAsJsonArray("steps").forEach(step -> answers.add(steps.run(step.getAsJsonObject())));
        JsonObject told = new JsonObject();
        told.add("id", scenario.get("id"));
        told.add("answers", answers);
        return told;
    }

    private LinesideClient client(String via, String bearer) {
        return clients.computeIfAbsent(List.of(via, String.valueOf(bearer)), pair -> {
            Endpoint endpoint = Endpoint.at(addresses.get(via).getAsString());
            endpoint = authorities == null ? endpoint : endpoint.withTls(Path.of(authorities));
            return LinesideClient.connect(bearer == null ? endpoint : endpoint.withToken(bearer));
        });
    }

    @Override
    public void close() {
        clients.values().forEach(LinesideClient::close);
    }
}
