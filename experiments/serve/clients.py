"""What load.py and soak.py have in common: servers as processes, and clients that read streams by the clock."""

import json
import os
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass

import httpx

from specexp.config.artifacts import save_artifact
from specexp.data.stdlib import openings

PARTS = {
    "drafter": {"class_path": "TokenRecycling", "init_args": {"k": 16, "coupled": True, "state": "carry"}},
    "builder": {"class_path": "ParametricTree", "init_args": {"nodes": 4, "depth": 3, "rank_decay": 2.0}},
    "verifier": {"class_path": "KeyedSampling", "init_args": {"temperature": 0.7}},
    "controller": None,
}
"""What is served where no artifact is named: what experiments/engine/lanes.yaml calls tree."""


@dataclass
class Answer:
    """What a client saw of a request."""

    text: str
    tokens: int
    first: float
    whole: float

    @property
    def ms_per_token(self):
        """After the first one."""
        return 1e3 * (self.whole - self.first) / max(1, self.tokens - 1)


def prompts(number):
    """Beginnings of functions that the embedded models have not seen."""
    return [row.turns[0] for row in openings("test")[:number]]


def made_artifact(folder):
    """The artifact that is served where none is named."""
    return str(save_artifact(folder, "composition", {"parts.json": PARTS}).folder)


def free_port():
    """A port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


@contextmanager
def process(command, port, log, health="/health", seconds=180):
    """A server as a process; gives it and its address once it is healthy, and ends it."""
    with open(log, "w", encoding="utf-8") as output:  # noqa: PTH123
        started = subprocess.Popen(command, stdout=output, stderr=output, env=os.environ)
        address = f"http://127.0.0.1:{port}"
        try:
            for _ in range(seconds * 10):
                if started.poll() is not None:
                    raise SystemExit(f"{command[0]} ended with {started.returncode}; {log} says why")
                try:
                    if httpx.get(f"{address}{health}", timeout=5).status_code == 200:
                        break
                except httpx.TransportError:
                    pass
                time.sleep(0.1)
            else:
                raise SystemExit(f"{command[0]} was not ready within {seconds} s; {log} says why")
            yield started, address
        finally:
            started.terminate()
            try:
                started.wait(60)
            except subprocess.TimeoutExpired:
                started.kill()


def ours(artifact, port, *more):
    """The command of our own server."""
    return [sys.executable, "-m", "specexp.serve", artifact, "--port", str(port), *more]


async def streamed(client, path, body, taken_in=lambda: None):
    """Ask, and read the answer piece by piece; ``taken_in`` is called as soon as the server has begun to answer."""
    started = time.perf_counter()
    text, pieces, counted, first = [], 0, None, None
    async with client.stream("POST", path, json={**body, "stream": True}) as answer:
        if answer.status_code != 200:
            raise RuntimeError(f"{answer.status_code}: {(await answer.aread())[:300]}")
        taken_in()
        async for line in answer.aiter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            piece = json.loads(line[6:])
            if "error" in piece:
                raise RuntimeError(piece["error"]["message"])
            said = "".join(choice.get("text") or "" for choice in piece.get("choices", ()))
            if said:
                first = first or time.perf_counter()
                pieces += 1
                text.append(said)
            counted = (piece.get("usage") or {}).get("completion_tokens", counted)
    ended = time.perf_counter()
    return Answer("".join(text), counted or pieces, (first or ended) - started, ended - started)
