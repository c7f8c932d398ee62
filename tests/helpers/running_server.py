"""A server in a thread of the test's own process, on a port of its own."""

import socket
from contextlib import contextmanager
from threading import Thread
from time import sleep

from specexp.deploy.server.http_server import HttpServer, listen


def running(server):
    """Serve until the block ends; yields the address."""
    return started(server, HttpServer(server, drain=60))


@contextmanager
def started(server, own, send_buffer=None):
    """Serve with this HTTP server; ``send_buffer`` is the size of the kernel's buffer of a client."""
    listener = listen("127.0.0.1", 0)
    if send_buffer is not None:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
    address = f"http://127.0.0.1:{listener.getsockname()[1]}"
    thread = Thread(target=own.run, kwargs={"sockets": [listener]}, daemon=True)
    server.thread.start()
    thread.start()
    while not own.started:
        sleep(0.005)
    try:
        yield address
    finally:
        own.should_exit = True
        thread.join()
