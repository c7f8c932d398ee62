"""A socket that the server listens on, made before models take their time to load."""

from __future__ import annotations

import socket

from specexp.config.errors import ConfigError

BACKLOG = 64
"""Connections that the kernel keeps until they are accepted, and most that are accepted in one go."""


def listen(host: str, port: int) -> socket.socket:
    """Listen.

    Args:
        host: a name or an address, of version 6 where it has colons.
        port: 0 for any free one.

    Raises:
        ConfigError: nothing can listen there.
    """
    if not 0 <= port <= 65535:
        raise ConfigError(f"--port is {port}; allowed is 0, for any free one, to 65535")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # where a socket says it is TCP, asyncio sends small pieces at once; on others one waits 40 ms for the one before
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError as error:  # also a name that nobody knows
        listener.close()
        why = error.strerror or str(error)
        raise ConfigError(
            f"--host {host} --port {port}: nothing can listen there ({why}); name another"
        ) from error
    return listener
