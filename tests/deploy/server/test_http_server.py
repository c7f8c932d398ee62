"""Idle connections end in time, and a shutdown does not wait for clients that do not read."""

import signal
import socket
from contextlib import ExitStack, suppress
from time import sleep

import httpx
import pytest
from helpers.running_server import running, started
from helpers.served import Client
from helpers.waiting import wait_for

from specexp.deploy.server import http_server
from specexp.deploy.server.decoding_thread import UnavailableError
from specexp.deploy.server.http_server import Connection, HttpServer

from .conftest import serve

HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"


def connected(address):
    url = httpx.URL(address)
    return socket.create_connection((url.host, url.port), timeout=20)


def request(body):
    return HEAD + b"Content-Length: %d\r\n\r\n%s" % (len(body), body)


def ends(client):
    """Whether the server closes a connection without an answer."""
    try:
        return client.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize("sent", [b"", b"GET /health HTTP/1.1\r\nX: "])
def test_a_connection_without_a_whole_request_head_is_closed(sent, served, monkeypatch):
    monkeypatch.setattr(Connection, "head_seconds", 0.2)
    with connected(served[1]) as client:
        client.sendall(sent)
        assert ends(client)


def test_dripping_the_next_request_does_not_keep_a_connection(served, monkeypatch):
    monkeypatch.setattr(Connection, "head_seconds", 0.3)
    with connected(served[1]) as client:
        client.sendall(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n")
        answer = b""
        while not answer.endswith(b"}"):
            answer += client.recv(1000)
        for _ in range(20):
            with suppress(OSError):  # reset, or a broken pipe
                client.sendall(b"G")
            sleep(0.05)
        assert ends(client)


def test_a_request_under_way_is_not_cut_off(served, monkeypatch):
    monkeypatch.setattr(Connection, "head_seconds", 0.05)
    with connected(served[1]) as client:
        body = b'{"prompt": "a", "max_tokens": 60}'
        client.sendall(request(body)[: -len(body)])
        sleep(0.2)
        client.sendall(body)
        assert client.recv(1000).startswith(b"HTTP/1.1 200")


def test_more_idle_connections_than_allowed_are_closed_at_once(tiny, monkeypatch):
    monkeypatch.setattr(http_server, "max_connections", lambda: 10)
    monkeypatch.setattr(Connection, "head_seconds", 0.5)
    with running(serve(tiny)) as address, ExitStack() as stack:
        idle = [stack.enter_context(connected(address)) for _ in range(40)]
        wait_for(lambda: healthy(address), 20)
        assert all(ends(client) for client in idle)


def healthy(address):
    try:
        return httpx.get(f"{address}/health").status_code == 200
    except httpx.TransportError:
        return False


def test_outputs_that_are_not_complete_in_time_are_given_up_at_shutdown(tiny):
    server = serve(tiny, lanes=1)
    runs, waits = Client([97, 98], most=10**6), Client([97], most=4)
    server.thread.target.context_limit = 10**7
    server.thread.submit([runs.output])
    server.thread.submit([waits.output])
    server.thread.start()
    wait_for(lambda: runs.tokens, 20)
    server.thread.close(within=0.1)
    assert (runs.end.why, waits.end.why) == ("shutdown", "shutdown")
    with pytest.raises(UnavailableError):
        server.thread.submit([Client([97]).output])


LONG = request(b'{"prompt": "a", "n": 16, "max_tokens": 200, "temperature": 0, "stream": true, "logprobs": 20}')


def stuck(address):
    """A client that reads nothing of an answer that is larger than the buffers."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
    url = httpx.URL(address)
    client.connect((url.host, url.port))
    client.sendall(LONG)
    return client


def running_lanes(address):
    lines = httpx.get(f"{address}/metrics").text.splitlines()
    return float(next(line for line in lines if line.startswith("specexp_lanes_running")).split()[-1])


@pytest.mark.slow
def test_state_is_saved_before_clients_that_do_not_read_are_waited_for_and_they_are_cut_off(tiny, monkeypatch):
    monkeypatch.setattr(http_server, "READ_SECONDS", 1.0)
    server, connections = serve(tiny, lanes=16), []
    own = HttpServer(server, 60, lambda: connections.append(len(own.server_state.connections)))
    with started(server, own, 4096) as address, stuck(address):
        wait_for(lambda: running_lanes(address) > 0)
        own.handle_exit(signal.SIGTERM, None)
        wait_for(lambda: connections, 60)
    assert connections == [1]
    assert not own.server_state.connections


def test_a_second_signal_gives_up_what_is_not_complete_and_still_saves(tiny):
    server, saved = serve(tiny, lanes=1), []
    server.thread.target.context_limit = 10**7
    own = HttpServer(server, 10**6, lambda: saved.append(True))
    endless = Client([97, 98], most=10**6)
    with started(server, own):
        server.thread.submit([endless.output])
        wait_for(lambda: endless.tokens, 20)
        own.handle_exit(signal.SIGTERM, None)
        sleep(0.3)
        assert not saved
        own.handle_exit(signal.SIGTERM, None)
    assert saved
    assert endless.end.why == "shutdown"
