#!/usr/bin/env python3
"""Listen on 127.0.0.1:PORT in the network namespace of a process, and connect through to 127.0.0.1:PORT here.

A node in its own network namespace reaches a registry on this machine's loopback by it. A socket stays in the namespace
in which it was made, so one process can stand in both; nothing but loopback is used. Bytes go by splice(2). A reset on
one side becomes a reset on the other, an end of file an end of file.

    relay.py PID PORT [TARGET_PORT]      prints `ready` once it listens; standard library only
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
import sys
import termios
import threading
import time

CLONE_NEWNET = 0x40000000
CHUNK = 1 << 20


def listener_in(pid: int, port: int) -> socket.socket:
    libc = ctypes.CDLL(None, use_errno=True)
    with open("/proc/self/ns/net", "rb") as home, open(f"/proc/{pid}/ns/net", "rb") as there:  # noqa: PTH123
        if libc.setns(there.fileno(), CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "setns")
        try:
            return socket.create_server(("127.0.0.1", port), backlog=256)
        finally:
            if libc.setns(home.fileno(), CLONE_NEWNET) != 0:
                os._exit(3)


def unsent(sink: socket.socket) -> int:
    try:
        return int.from_bytes(fcntl.ioctl(sink, termios.TIOCOUTQ, b"\0\0\0\0"), sys.byteorder)
    except OSError:
        return 0


class Pair:
    """Two connected sockets, closed once both directions are done."""

    def __init__(self, one: socket.socket, other: socket.socket) -> None:
        self.sockets = (one, other)
        self._lock = threading.Lock()
        self._running = 2
        self._broken = False

    def start(self) -> None:
        one, other = self.sockets
        threading.Thread(target=self._pump, args=(one, other), daemon=True).start()
        threading.Thread(target=self._pump, args=(other, one), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        out, into = os.pipe()
        try:
            while count := os.splice(source.fileno(), into, CHUNK):
                while count:
                    count -= os.splice(out, sink.fileno(), count)
            if not self._broken:
                sink.shutdown(socket.SHUT_WR)
        except OSError:
            self._reset(sink)
        finally:
            os.close(out)
            os.close(into)
            self._done()

    def _reset(self, sink: socket.socket) -> None:
        """Let the other direction end at once, and the far ends see a reset rather than an end.

        What came before the reset arrives first: a reset throws away what was not yet sent.
        """
        self._broken = True
        deadline = time.monotonic() + 2
        while unsent(sink) and time.monotonic() < deadline:
            time.sleep(0.002)
        for each in self.sockets:
            try:
                each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                each.shutdown(socket.SHUT_RD)
            except OSError:
                continue

    def _done(self) -> None:
        with self._lock:
            self._running -= 1
            if self._running == 0:
                for each in self.sockets:
                    each.close()


def serve(server: socket.socket, target: int) -> None:
    while True:
        client, _ = server.accept()
        try:
            upstream = socket.create_connection(("127.0.0.1", target), timeout=10)
        except OSError:
            # As if nobody listened there.
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()
            continue
        upstream.settimeout(None)
        for each in (client, upstream):
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        Pair(client, upstream).start()


def main() -> None:
    pid, port = int(sys.argv[1]), int(sys.argv[2])
    target = int(sys.argv[3]) if len(sys.argv) > 3 else port
    server = listener_in(pid, port)
    print("ready", flush=True)
    os.close(1)
    serve(server, target)


if __name__ == "__main__":
    main()
