"""Servers as processes, and clients that time their streams."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from specexp.config.artifacts import save_artifact
from specexp.data.training_text import openings

Body = Mapping[str, Any]
"""The JSON of a request."""

PARTS = {
    "drafter": {"class_path": "TokenRecycling", "init_args": {"k": 16, "coupled": True, "state": "carry"}},
    "builder": {"class_path": "ParametricTree", "init_args": {"nodes": 4, "depth": 3, "rank_decay": 2.0}},
    "verifier": {"class_path": "KeyedSampling", "init_args": {"temperature": 0.7}},
    "controller": None,
}
"""The parts of the default artifact: ``tree`` of experiments/engine/lanes.yaml."""


@dataclass
class Answer:
    """A streamed answer, with the seconds until its first text and until its end."""

    text: str
    tokens: int
    first: float
    whole: float

    @property
    def ms_per_token(self) -> float:
        """Milliseconds for each token after the first."""
        return 1e3 * (self.whole - self.first) / max(1, self.tokens - 1)


def prompts(number: int) -> list[str]:
    """Return beginnings of functions that the embedded models have not seen."""
    return [row.turns[0] for row in openings("test")[:number]]


def default_artifact(folder: Path) -> str:
    """Write an artifact of :data:`PARTS`; returns its folder."""
    return str(save_artifact(folder, "composition", {"parts.json": PARTS}).folder)


def free_port() -> int:
    """Return a free port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@contextmanager
def serving(command: Sequence[str], port: int, log: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """Run a server; yields its process and address once it is healthy, within three minutes."""
    address, until = f"http://127.0.0.1:{port}", time.monotonic() + 180
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output) as server:
        try:
            while not _is_healthy(address):
                if server.poll() is not None or time.monotonic() > until:
                    raise SystemExit(f"{command[0]} is not ready (exit code {server.returncode}); see {log}")
                time.sleep(0.1)
            yield server, address
        finally:
            server.terminate()
            try:
                server.wait(60)
            except subprocess.TimeoutExpired:
                server.kill()


def _is_healthy(address: str) -> bool:
    try:
        return httpx.get(f"{address}/health", timeout=5).status_code == 200
    except httpx.TransportError:
        return False


def our_server(artifact: str, port: int, *more: str) -> list[str]:
    """Return the command of our server."""
    return [sys.executable, "-m", "specexp.serve", artifact, "--port", str(port), *more]


async def stream(
    client: httpx.AsyncClient, body: Body, on_begin: Callable[[], None] = lambda: None, pause: float = 0.0
) -> Answer:
    """Stream a completion; call ``on_begin`` at the start of the answer, and wait ``pause`` seconds before a line."""
    started = time.perf_counter()
    text, counted, first = list[str](), None, None
    async with client.stream("POST", "/v1/completions", json={**body, "stream": True}) as answer:
        if answer.status_code != 200:
            raise RuntimeError(f"{answer.status_code}: {(await answer.aread())[:300]!r}")
        on_begin()
        async for line in answer.aiter_lines():
            if pause:
                await asyncio.sleep(pause)
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            event = json.loads(line[6:])
            if "error" in event:
                raise RuntimeError(event["error"]["message"])
            if piece := "".join(choice.get("text") or "" for choice in event.get("choices", ())):
                first = first or time.perf_counter()
                text.append(piece)
            counted = (event.get("usage") or {}).get("completion_tokens", counted)
    ended = time.perf_counter()
    return Answer("".join(text), counted or len(text), (first or ended) - started, ended - started)
