"""A path with latency: `wire.py LISTEN TARGET SECONDS` relays connections on loopback, and each byte arrives SECONDS later, in
both directions. It limits no rate and holds what is in transit in memory."""

import queue
import socket
import sys
import threading
import time


def relay(source, sink, delay):
    transit = queue.SimpleQueue()

    def deliver():
        while True:
            due, data = transit.get()
            time.sleep(max(0, due - time.monotonic()))
            try:
                if not data:
                    return sink.shutdown(socket.SHUT_WR)
                sink.sendall(data)
            except OSError:
                return

    threading.Thread(target=deliver, daemon=True).start()
    data = True
    while data:
        try:
            data = source.recv(1 << 18)
        except OSError:
            data = b""
        transit.put((time.monotonic() + delay, data))


def main():
    listen, target, delay = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    with socket.create_server(("127.0.0.1", listen), backlog=64) as listener:
        while True:
            client, _ = listener.accept()
            server = socket.create_connection(("127.0.0.1", target))
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for pair in ((client, server), (server, client)):
                threading.Thread(target=relay, args=(*pair, delay), daemon=True).start()


main()
