"""A server in a thread of the test's own process, on a port of its own."""

from contextlib import contextmanager
from threading import Thread
from time import sleep

import uvicorn

from specexp.serve.listener import listen


@contextmanager
def running(server):
    """Serve until the block ends; gives the address."""
    listener = listen("127.0.0.1", 0)
    own = uvicorn.Server(uvicorn.Config(server.app(), log_config=None, log_level="error"))
    thread = Thread(target=own.run, kwargs={"sockets": [listener]}, daemon=True)
    server.engine.start()
    thread.start()
    while not own.started:
        sleep(0.005)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        own.should_exit = True
        thread.join()
        server.engine.close()
