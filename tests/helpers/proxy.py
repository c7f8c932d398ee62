"""A proxy that stands between workers and a server, and can be cut."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

from specexp.engines.server import free_port


class Proxy:
    """Passes on what it gets; cut, it drops every connection and takes none.

    Args:
        port: The server's.
    """

    def __init__(self, port: int) -> None:
        self.port, self._to, self._open = free_port(), port, True
        self._sockets: list[socket.socket] = []
        self._listening = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._accept, daemon=True).start()

    def before(self, url: str) -> str:
        """The URL of a database there, through the proxy."""
        return url.replace(f":{self._to}/", f":{self.port}/")

    def cut(self) -> None:
        self._open = False
        for one in self._sockets:
            _shut(one)
        self._sockets.clear()

    def mend(self) -> None:
        self._open = True

    def _accept(self) -> None:
        while True:
            near, _ = self._listening.accept()
            if not self._open:
                _shut(near)
                continue
            try:
                far = socket.create_connection(("127.0.0.1", self._to))
            except OSError:  # the server is not there
                _shut(near)
                continue
            self._sockets += [near, far]
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._pass, args=(source, sink), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
        _shut(source)
        _shut(sink)


def _shut(one: socket.socket) -> None:
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()
