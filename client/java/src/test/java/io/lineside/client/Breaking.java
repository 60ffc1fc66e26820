package io.lineside.client;

import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.util.concurrent.atomic.AtomicInteger;

/** Speaks as much HTTP/2 as it takes to break off once a request has come, in one way or another. */
final class Breaking implements AutoCloseable {
    /** What it does with a request on a stream, after which it hangs up or reads on. */
    enum Way {
        HANG_UP,
        RESET_CANCEL,
        RESET_INTERNAL,
        GO_AWAY_WITH_IT
    }

    private static final int PREFACE = 24;
    private static final int DATA = 0;
    private static final int RESET = 3;
    private static final int SETTINGS = 4;
    private static final int GO_AWAY = 7;
    private static final int END_STREAM = 1;

    private final ServerSocket listener;
    private final AtomicInteger requests = new AtomicInteger();
    private final Way way;

    Breaking(Way way) {
        this.way = way;
        try {
            listener = new ServerSocket(0, 16, InetAddress.getLoopbackAddress());
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
        Relay.background(this::accept);
    }

    String address() {
        return "127.0.0.1:" + listener.getLocalPort();
    }

    /** How many whole requests came, over all connections. */
    int requests() {
        return requests.get();
    }

    @Override
    public void close() throws IOException {
        listener.close();
    }

    private void accept() throws IOException {
        while (true) {
            Socket caller = listener.accept();
            Relay.background(() -> serve(caller));
        }
    }

    private void serve(Socket caller) throws IOException {
        try (caller) {
            DataInputStream in = new DataInputStream(caller.getInputStream());
            DataOutputStream out = new DataOutputStream(caller.getOutputStream());
            in.readNBytes(PREFACE);
            frame(out, SETTINGS, 0, 0);
            while (true) {
                int head = in.readInt();
                int flags = in.readUnsignedByte();
                int stream = in.readInt();
                in.readNBytes(head >>> 8);
                int type = head & 0xff;
                if (type == SETTINGS && (flags & 1) == 0) {
                    frame(out, SETTINGS, 1, 0);
                } else if (type == DATA && (flags & END_STREAM) != 0) {
                    requests.incrementAndGet();
                    if (!breakOff(out, stream)) {
                        return;
                    }
                }
            }
        }
    }

    /** Whether it reads on. */
    private boolean breakOff(DataOutputStream out, int stream) throws IOException {
        switch (way) {
            case RESET_CANCEL -> frame(out, RESET, 0, stream, 8);
            case RESET_INTERNAL -> frame(out, RESET, 0, stream, 2);
            case GO_AWAY_WITH_IT -> frame(out, GO_AWAY, 0, 0, stream, 0);
            case HANG_UP -> {}
        }
        return way == Way.RESET_CANCEL || way == Way.RESET_INTERNAL;
    }

    private static void frame(DataOutputStream out, int type, int flags, int stream, int... payload) throws IOException {
        out.writeInt((payload.length * 4) << 8 | type);
        out.writeByte(flags);
        out.writeInt(stream);
        for (int word : payload) {
            out.writeInt(word);
        }
        out.flush();
    }
}
