package io.lineside.client;

import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.io.UncheckedIOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.util.concurrent.atomic.AtomicInteger;

/** Stands between client and service and cuts its first connections when the service begins to answer. */
final class Relay implements AutoCloseable {
    private final ServerSocket listener;
    private final AtomicInteger left;
    private final AtomicInteger cuts = new AtomicInteger();

    Relay(int cuts) {
        left = new AtomicInteger(cuts);
        try {
            listener = new ServerSocket(0, 16, InetAddress.getLoopbackAddress());
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
        background(this::accept);
    }

    String address() {
        return "127.0.0.1:" + listener.getLocalPort();
    }

    /** How many connections it has cut. */
    int cuts() {
        return cuts.get();
    }

    @Override
    public void close() throws IOException {
        listener.close();
    }

    private void accept() throws IOException {
        while (true) {
            Socket near = listener.accept();
            background(() -> pass(near));
        }
    }

    private void pass(Socket near) throws IOException {
        String[] service = Service.address().split(":");
        try (near;
                Socket far = new Socket(service[0], Integer.parseInt(service[1]))) {
            background(() -> near.getInputStream().transferTo(far.getOutputStream()));
            InputStream answers = far.getInputStream();
            OutputStream caller = near.getOutputStream();
            byte[] buffer = new byte[64 << 10];
            for (int count = answers.read(buffer); count > 0; count = answers.read(buffer)) {
                if (hasHeaders(buffer, count) && left.getAndUpdate(n -> Math.max(0, n - 1)) > 0) {
                    cuts.incrementAndGet();
                    return;
                }
                caller.write(buffer, 0, count);
            }
        }
    }

    /** Whether HTTP/2 frames with an answer's headers begin in what was read: the call has run by then. */
    private static boolean hasHeaders(byte[] read, int count) {
        int at = 0;
        while (count - at >= 9) {
            int length = (read[at] & 0xff) << 16 | (read[at + 1] & 0xff) << 8 | (read[at + 2] & 0xff);
            if (read[at + 3] == 1) {
                return true;
            }
            at += 9 + length;
        }
        return false;
    }

    interface Work {
        void run() throws IOException;
    }

    static void background(Work work) {
        Thread thread = new Thread(() -> {
            try {
                work.run();
            } catch (IOException closed) {
                return; // one of the sockets: that is how each of these ends
            }
        });
        thread.setDaemon(true);
        thread.start();
    }
}
