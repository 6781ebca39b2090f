"""As much of a Redis server as is needed: strings and lists."""

import socket
import threading
from contextlib import contextmanager


@contextmanager
def redis_server():
    """(port, what was kept by key, a function that ends it)."""
    listener, kept, peers = socket.create_server(("127.0.0.1", 0)), {}, []

    def bulk(value):
        return b"$%d\r\n%s\r\n" % (len(value), value)

    def answer(name, words):
        key = words[0].decode() if words else ""
        if name == b"PING":
            return b"+PONG\r\n"
        if name == b"SET":
            kept[key] = words[1]
        elif name == b"RPUSH":
            kept.setdefault(key, []).extend(words[1:])
            return b":%d\r\n" % len(kept[key])
        elif name == b"LRANGE":
            some = kept.get(key, [])
            return b"*%d\r\n" % len(some) + b"".join(map(bulk, some))
        return b"+OK\r\n"

    def serve(peer):
        with peer, peer.makefile("rb") as lines:
            while head := lines.readline():
                words = []
                for _ in range(int(head[1:])):
                    words.append(lines.read(int(lines.readline()[1:])))
                    lines.readline()
                peer.sendall(answer(words[0].upper(), words[1:]))

    def accept():
        while True:
            try:
                peers.append(listener.accept()[0])
            except OSError:
                return
            threading.Thread(target=serve, args=(peers[-1],), daemon=True).start()

    def end():
        # A blocked accept wakes by this, not by close.
        listener.shutdown(socket.SHUT_RDWR)
        for peer in peers:
            peer.shutdown(socket.SHUT_RDWR)
        peers.clear()

    threading.Thread(target=accept, daemon=True).start()
    with listener:
        yield listener.getsockname()[1], kept, end
