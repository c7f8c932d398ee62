"""HTTP server that limits connections and, at shutdown, saves the learned state without waiting for clients."""

from __future__ import annotations

import asyncio
import resource
import socket
from collections.abc import Callable
from time import monotonic
from types import FrameType
from typing import TYPE_CHECKING, Any

import uvicorn
from typing_extensions import override
from uvicorn.protocols.http.h11_impl import H11Protocol

from specexp.config.layers import ConfigError

if TYPE_CHECKING:
    from specexp.deploy.server.app import Server

BACKLOG = 64
"""Maximum number of connections that the kernel queues and that asyncio accepts at once."""
READ_SECONDS = 5.0
"""Seconds that clients get to read the rest of their responses after the decoding thread has stopped."""


class Connection(H11Protocol):
    """A connection that is closed if the headers do not arrive in time or if there are too many connections.

    Uvicorn limits neither, so idle and slow connections could use up all file descriptors.
    """

    head_seconds = 10.0  # time limit for a request's headers after the connection or last response

    @override
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._timer: asyncio.TimerHandle | None = None
        if self.limit_concurrency is not None and len(self.connections) > self.limit_concurrency:
            transport.close()
        else:
            self._await_head()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_timer()
        super().connection_lost(exc)

    @override
    def on_response_complete(self) -> None:
        self._await_head()
        super().on_response_complete()

    def _await_head(self) -> None:
        self._cancel_timer()
        self._timer = self.loop.call_later(self.head_seconds, self._close_if_idle)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _close_if_idle(self) -> None:
        cycle: Any = self.cycle  # None before the first request
        if cycle is None or cycle.response_complete:
            self.transport.close()


def max_connections() -> int:
    """Return the maximum number of connections: half the process's limit on file descriptors, but at most 1024."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1024 if descriptors == resource.RLIM_INFINITY else min(1024, descriptors // 2)


class HttpServer(uvicorn.Server):
    """An HTTP server that runs until SIGTERM or Ctrl-C.

    Incomplete outputs are aborted ``drain`` seconds later, or at a second signal. ``drained`` is then called in another
    thread, while clients may still be reading their responses.
    """

    def __init__(self, server: Server, drain: float, drained: Callable[[], None] = lambda: None) -> None:
        super().__init__(
            uvicorn.Config(
                server.app(),
                http=Connection,
                ws="none",
                backlog=BACKLOG,
                limit_concurrency=max_connections(),
                log_config=None,  # command.py configures logging
                log_level="error",
                access_log=False,
            )
        )
        self._thread = server.thread
        self._drain = drain
        self._drained = drained
        self._hurried = False

    @override
    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit:  # the second signal
            self._hurried = True
            self._thread.give_up()
        else:
            super().handle_exit(sig, frame)

    @override
    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # uvicorn waits for its connections without a time limit, and a client may never read its response
        closed = asyncio.create_task(super().shutdown(sockets))
        await asyncio.to_thread(self._thread.close, self._drain)
        await asyncio.to_thread(self._drained)
        until = monotonic() + READ_SECONDS
        while not closed.done() and monotonic() < until and not self._hurried:
            await asyncio.sleep(0.05)
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        await closed


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket for a host name or address (IPv6 if it contains a colon). Port 0 selects any free port.

    Raises ConfigError if the address cannot be used.
    """
    if not 0 <= port <= 65535:
        raise ConfigError(f"--port must be an integer from 0 (any free port) to 65535, got {port}")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sets TCP_NODELAY only if the protocol is given; without it, small chunks are delayed by 40 ms
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError as error:  # includes socket.gaierror, for an unknown host name
        listener.close()
        why = error.strerror or str(error)
        raise ConfigError(
            f"--host {host} --port {port}: cannot listen on this address ({why}); choose another host or port"
        ) from error
    return listener
