"""Servers that end with their test."""

import sys
from contextlib import ExitStack

import pytest
from helpers import fake_server

from specexp.config.artifacts import save_artifact
from specexp.engines.server import StartedServer, free_port


@pytest.fixture
def run_server():
    """Start Python with these words, of which PORT is a free port; returns the server's address."""
    with ExitStack() as running:

        def start(*words, seconds=60):
            port = str(free_port())
            command = [sys.executable, *(port if word == "PORT" else word for word in words)]
            server = StartedServer(command, f"http://127.0.0.1:{port}", seconds)
            running.callback(server.close)
            return server.url

        yield start


@pytest.fixture
def serve(run_server):
    """Start a stand-in with these options."""
    return lambda *options, program=fake_server: run_server(program.__file__, "PORT", *options)


@pytest.fixture
def serve_ours(run_server, tmp_path):
    """Start specexp's own server with these parts."""

    def start(**parts):
        folder = save_artifact(tmp_path / "tuned", "composition", {"parts.json": parts}).folder
        return run_server("-m", "specexp.serve", str(folder), "--port", "PORT", seconds=120)

    return start
