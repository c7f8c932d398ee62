"""Throughput, time to first token and time per token at 1, 4, 8 and 16 requests at once, of several servers.

Measures in turns on the same prompts: our server with and without speculation, transformers' server, and llama.cpp's
with as many slots and the same pair as GGUF files, with and without its draft model. Writes
runs/serve_load/{load.md,requests.json}.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from specexp.artifacts.environment import environment, machine_line
from specexp.bench.statistics import mean_interval
from specexp.bench.trainer import quiet_libraries
from specexp.config.artifacts import load_artifact, save_artifact
from specexp.data.training_text import openings
from specexp.models.pair import load_pair

Body = Mapping[str, Any]  # the JSON of a request

PARTS = {
    "drafter": {"class_path": "TokenRecycling", "init_args": {"k": 16, "coupled": True, "state": "carry"}},
    "builder": {"class_path": "ParametricTree", "init_args": {"nodes": 4, "depth": 3, "rank_decay": 2.0}},
    "verifier": {"class_path": "KeyedSampling", "init_args": {"temperature": 0.7}},
    "controller": None,
}
"""The parts of the default artifact: ``tree`` of experiments/passes/lanes.yaml."""


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
def serving(
    command: Sequence[str], port: int, log: Path, start_seconds: float = 180
) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """Run a server; yields its process and address once it is healthy, within ``start_seconds``."""
    address, until = f"http://127.0.0.1:{port}", time.monotonic() + start_seconds
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
            if not line.startswith("data: ") or line == "data: [DONE]":  # server-sent events
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


REQUESTS = 24  # requests of a load, at least 4 for each client
TEMPERATURE = 0.7
THREADS = "2"

Server = tuple[Callable[[int], list[str]], Callable[[str, int], Body]]
"""The command for a port, and the body of a prompt and a seed."""
Round = tuple[list[Answer], float]  # the answers of a load, and its seconds


def servers(options: argparse.Namespace, work: Path) -> dict[str, Server]:
    """Return the servers by name; prints those that cannot be started here."""
    quiet_libraries()
    pair = load_pair("stdlib", target_dtype="bfloat16")
    artifact = default_artifact(work / "artifact")
    sampling = {"max_tokens": options.max_tokens, "temperature": TEMPERATURE}

    def body(prompt: str | list[int], seed: int, **more: Any) -> Body:
        usage = {"stream_options": {"include_usage": True}}
        return {"model": "stdlib", "prompt": prompt, "seed": seed, **sampling, **usage, **more}

    def ours(port: int) -> list[str]:
        lanes = ["--lanes", str(max(options.at_once)), "--threads", THREADS]
        return our_server(artifact, port, *lanes, "--target-dtype", "bfloat16")

    found: dict[str, Server] = {
        "specexp": (ours, body),
        "specexp, no speculation": (ours, partial(body, speculative=False)),
    }
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    transformers = shutil.which("transformers", path=path)
    if transformers and find_spec("accelerate"):
        model, eos = work / "model", pair.tokenizer.eos_token_id
        pair.target.save_pretrained(model)
        pair.tokenizer.save_pretrained(model)
        found |= transformers_servers(transformers, options.max_tokens, str(model), eos)
    else:
        print("transformers serve is left out: it needs pip install transformers[serving]")
    if llama := shutil.which(options.llama_server):
        found |= llama_servers(llama, max(options.at_once), work / "gguf", body, pair.tokenizer)
    else:
        print(f"llama.cpp's server is left out: --llama-server must be a program, got {options.llama_server}")
    return found


def transformers_servers(program: str, max_tokens: int, model: str, eos: int) -> dict[str, Server]:
    """Return transformers' server on the target, with and without continuous batching."""
    config = {
        "max_new_tokens": max_tokens,
        "do_sample": True,
        "temperature": TEMPERATURE,
        "eos_token_id": eos,
        "pad_token_id": eos,
    }

    def command(port: int, *more: str) -> list[str]:
        own = ["--device", "cpu", "--dtype", "bfloat16", "--port", str(port), "--host", "127.0.0.1"]
        return [program, "serve", model, *own, *more]

    def body(prompt: str, seed: int) -> Body:
        return {"model": model, "prompt": prompt, "seed": seed, "generation_config": json.dumps(config)}

    return {
        "transformers serve": (command, body),
        "transformers serve, continuous batching": (
            lambda port: command(port, "--continuous-batching"),
            body,
        ),
    }


def llama_servers(
    program: str,
    slots: int,
    files: Path,
    body: Callable[..., Body],
    tokenizer: PreTrainedTokenizerBase,
) -> dict[str, Server]:
    """Return llama.cpp's server on the same pair, with at most 2,048 tokens a slot."""
    export = [sys.executable, "-m", "experiments.passes.gguf_writer", "stdlib", str(files)]
    subprocess.run([*export, "--precision", "bf16"], check=True)

    def command(port: int, *more: str) -> list[str]:
        own = [program, "-m", str(files / "target.gguf"), "--host", "127.0.0.1", "--port", str(port)]
        return [*own, "-np", str(slots), "-c", str(2048 * slots), "-t", THREADS, "-tb", THREADS, *more]

    def whole(prompt: str, seed: int) -> Body:
        # Token ids, as llama.cpp tokenizes otherwise. By default it keeps the top 40 tokens and 95 % of the mass.
        return body(tokenizer(prompt)["input_ids"], seed, top_k=0, top_p=1.0, min_p=0.0)

    draft = ["--spec-type", "draft-simple", "-md", str(files / "draft.gguf"), "--spec-draft-n-max", "3"]
    return {
        "llama.cpp": (command, whole),
        "llama.cpp, draft model": (lambda port: command(port, *draft), whole),
    }


async def load(
    address: str, body: Callable[[Any, int], Body], prompts: Sequence[Any], at_once: int, requests: int
) -> Round:
    """Send requests from ``at_once`` clients, each of which sends the next once it has its answer.

    It returns when the server rests again, because vLLM's workers poll on a core for a second after an answer.
    """
    answers, waiting = list[Answer](), iter(range(requests))
    fresh = httpx.Limits(max_keepalive_connections=0)  # llama.cpp's server closes kept ones at will
    async with httpx.AsyncClient(base_url=address, timeout=600, limits=fresh) as client:

        async def ask() -> None:
            for number in waiting:
                answers.append(await stream(client, body(prompts[number % len(prompts)], number)))

        started = time.perf_counter()
        await asyncio.gather(*(ask() for _ in range(at_once)))
        seconds = time.perf_counter() - started
        await asyncio.sleep(1.2)
        return answers, seconds


def conditions(about: str) -> str:
    """Return two lines to paste with a table: commit, versions, processor and threads, and what was measured."""
    known = environment()
    return f"{machine_line(known)}\n{about}, {known['time'][:10]}\n"


def table(runs: Mapping[tuple[str, int], Sequence[Round]]) -> str:
    """Return a markdown table: medians over the rounds, p50 and p99 of all requests."""
    lines = [
        "| server | at once | tokens/s (lowest to highest round) | first token ms p50 / p99 | ms per token p50 / p99 |",
        "|---|---|---|---|---|",
    ]
    for (name, at_once), rounds in runs.items():
        rates = [rate(*one) for one in rounds]
        answers = [answer for some, _ in rounds for answer in some]
        first = np.percentile([1e3 * one.first for one in answers], [50, 99])
        each = np.percentile([one.ms_per_token for one in answers], [50, 99])
        rates_shown = f"{np.median(rates):.1f} ({min(rates):.1f} to {max(rates):.1f})"
        times = f"{first[0]:.1f} / {first[1]:.1f} | {each[0]:.2f} / {each[1]:.2f}"
        lines.append(f"| {name} | {at_once} | {rates_shown} | {times} |")
    return "\n".join(lines) + "\n"


def speedup(logs: Sequence[float] | NDArray[np.float64]) -> str:
    """Return the geometric mean of paired ratios, given as logarithms, with its 95 % interval."""
    low, high = np.exp(mean_interval(np.array(logs)))
    return f"{np.exp(np.mean(logs)):.2f}x [{low:.2f}, {high:.2f}]"


def rate(answers: Sequence[Answer], seconds: float) -> float:
    """Return tokens a second."""
    return sum(one.tokens for one in answers) / seconds


def compare_with_loop(max_tokens: int, folder: Path) -> str:
    """Return a line that compares requests without streaming, one at a time, with our loop in this process."""
    artifact, port = default_artifact(folder / "artifact"), free_port()
    pair = load_pair("stdlib", target_dtype="bfloat16")
    decoder, seconds = load_artifact(artifact).decoder(pair.target), list[tuple[float, float]]()
    command = our_server(artifact, port, "--threads", THREADS, "--target-dtype", "bfloat16")
    eos = pair.tokenizer.eos_token_id
    torch.set_num_threads(int(THREADS))
    with serving(command, port, folder / "server.log") as (_, url), httpx.Client(base_url=url) as client:
        for number, prompt in enumerate(prompts(64)):
            ids, clock = pair.tokenizer(prompt, return_tensors="pt").input_ids, [time.perf_counter()]
            body = {"model": "stdlib", "prompt": prompt, "seed": number, "temperature": TEMPERATURE}
            answer = client.post("/v1/completions", json={**body, "max_tokens": max_tokens}).json()
            clock.append(time.perf_counter())
            output = decoder.generate(ids, max_new_tokens=max_tokens, eos_token_id=eos, seed=number)
            clock.append(time.perf_counter())
            assert answer["usage"]["completion_tokens"] == len(output.token_ids)
            if len(output.token_ids) == max_tokens and number >= 8:  # after the warm-up
                seconds.append((clock[1] - clock[0], clock[2] - clock[1]))
    served, own = 1e3 * np.median(seconds, axis=0)
    return f"{len(seconds)} requests of {max_tokens} tokens: server {served:.1f} ms, loop {own:.1f} ms (medians)"


def main() -> None:
    """Measure all servers in turns, in alternating order."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--alone", action="store_true", help="only compare single requests of our server with our loop")
    add("--at-once", type=int, nargs="+", default=[1, 4, 8, 16])
    add("--max-tokens", type=int, default=64)
    add("--rounds", type=int, default=3)
    add("--llama-server", default="llama-server", metavar="PATH")
    add("--only", nargs="+", help="names of servers")
    add("--output", type=Path, default="runs/serve_load")
    options = parser.parse_args()
    texts, runs = prompts(64), defaultdict[tuple[str, int], list[Round]](list)
    with TemporaryDirectory(prefix="specexp-") as folder:
        work = Path(folder)
        if options.alone:
            return print(compare_with_loop(options.max_tokens, work))
        chosen = [one for one in servers(options, work).items() if not options.only or one[0] in options.only]
        for number in range(options.rounds):
            # alternate the order, so that warm-up and throttling affect all servers equally
            for name, (command, body) in chosen[:: -1 if number % 2 else 1]:
                port = free_port()
                with serving(command(port), port, work / "server.log") as (_, address):
                    for at_once in options.at_once:
                        asyncio.run(load(address, body, texts, at_once, at_once))  # warm
                        requests = max(REQUESTS, 4 * at_once)
                        found = asyncio.run(load(address, body, texts, at_once, requests))
                        runs[name, at_once].append(found)
                        print(f"{name}, {at_once} at once: {rate(*found):.1f} tokens/s", flush=True)
    ordered = dict(sorted(runs.items(), key=lambda one: one[0][1]))
    rows = [
        {"server": name, "at_once": at_once, "round": number, **asdict(one)}
        for (name, at_once), rounds in ordered.items()
        for number, (answers, _) in enumerate(rounds)
        for one in answers
    ]
    options.output.mkdir(parents=True, exist_ok=True)
    about = f"stdlib, bfloat16; sampled at {TEMPERATURE:g}, at most {options.max_tokens} tokens each"
    text = f"{table(ordered)}\n{conditions(about)}"
    (options.output / "load.md").write_text(text)
    (options.output / "requests.json").write_text(json.dumps(rows))
    print(text)


if __name__ == "__main__":
    main()
