"""Endurance of the server: short requests, one in ten cancelled, malformed or read slowly.

Every text must equal plain decoding, no lane may be left over, memory must stay as it was after the warm-up, and
SIGTERM must lose no request that was taken in. Ends with 1 and prints what went wrong, if anything did.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx

from experiments.serve.load import (
    Answer,
    Body,
    default_artifact,
    free_port,
    our_server,
    prompts,
    serving,
    stream,
)
from specexp.bench.arm import eos_of
from specexp.bench.trainer import quiet_libraries
from specexp.core.loop import Decoder
from specexp.models.pair import load_pair
from specexp.models.runtime import runtime_of
from specexp.verifiers import KeyedSampling

DTYPE = "float32"
AT_ONCE = 16
MINUTES = 30  # at most
MAX_GROWTH = 0.05  # of the memory after the warm-up
MALFORMED = (b"{", b"[]", b'{"model": "stdlib"}', b'{"model": 3}', b"\xff" * 100)


def expected_texts(bodies: Sequence[Body]) -> list[str]:
    """Return the texts of plain decoding."""
    quiet_libraries()
    pair = load_pair("stdlib", target_dtype=DTYPE)
    target, eos = runtime_of(pair.target), eos_of(pair.tokenizer, pair.target)
    texts = []
    for body in bodies:
        decoder = Decoder(target, verifier=KeyedSampling(body["temperature"]))
        ids = pair.tokenizer(body["prompt"])["input_ids"]
        limits = {"max_new_tokens": body["max_tokens"], "seed": body["seed"]}
        tokens = decoder.generate(ids, eos_token_id=eos, **limits).token_ids
        shown = pair.tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        texts.append(str(shown))
    return texts


def make_bodies(number: int) -> list[Body]:
    """Return short requests, greedy and sampled in turn."""
    return [
        {"model": "stdlib", "prompt": text, "max_tokens": 4 + n % 13, "seed": n, "temperature": 0.7 * (n % 2)}
        for n, text in enumerate(prompts(number))
    ]


def resident_bytes(process_id: int) -> int:
    """Return a process's resident memory in bytes."""
    lines = Path(f"/proc/{process_id}/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("VmRSS")).split()[1])


class Soak:
    """Clients of all kinds, and their counts."""

    def __init__(self, client: httpx.AsyncClient, bodies: Sequence[Body], texts: Sequence[str]) -> None:
        self.client, self.bodies, self.texts, self.random = client, bodies, texts, random.Random(0)
        self.wrong: list[dict[str, Any]] = []
        self.done = self.full = self.odd = 0

    async def request(self) -> None:
        """Make a request, one in ten of which is cancelled, malformed or read slowly."""
        place, kind = self.random.randrange(len(self.bodies)), self.random.random()
        self.odd += kind < 0.10
        try:
            if kind < 0.04:
                await self.cancel(place)
            elif kind < 0.07:
                await self.send_malformed()
            elif kind < 0.10:
                self.check(await stream(self.client, self.bodies[place], pause=0.02), place)
            else:
                self.check(await stream(self.client, self.bodies[place]), place)
        except RuntimeError as error:
            if not str(error).startswith("503"):
                raise
            self.full += 1
            await asyncio.sleep(0.2)
        self.done += 1

    def check(self, answer: Answer, place: int) -> None:
        """Compare a text with plain decoding."""
        if answer.text != self.texts[place]:
            self.wrong.append({"place": place, "text": answer.text, "expected": self.texts[place]})

    async def cancel(self, place: int) -> None:
        """Leave after the first line."""
        body = {**self.bodies[place], "max_tokens": 400, "stream": True}
        async with self.client.stream("POST", "/v1/completions", json=body) as answer:
            async for _ in answer.aiter_lines():
                return

    async def send_malformed(self) -> None:
        """Send what must be refused."""
        sent, headers = self.random.choice(MALFORMED), {"Content-Type": "application/json"}
        answer = await self.client.post("/v1/completions", content=sent, headers=headers)
        if not 400 <= answer.status_code < 500:
            self.wrong.append({"sent": repr(sent), "status": answer.status_code})


async def soak(
    requests: int,
    address: str,
    server: subprocess.Popen[bytes],
    bodies: Sequence[Body],
    texts: Sequence[str],
) -> bool:
    """Make all requests, then send SIGTERM amid a last volley; returns whether the server held out."""
    began, sizes = time.monotonic(), list[tuple[int, int]]()
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=32)
    async with httpx.AsyncClient(base_url=address, timeout=300, limits=limits) as client:
        clients = Soak(client, bodies, texts)

        async def work() -> None:
            while clients.done < requests and time.monotonic() < began + 60 * MINUTES:
                await clients.request()
                if clients.done % max(1, requests // 100) == 0:
                    sizes.append((clients.done, resident_bytes(server.pid)))

        await asyncio.gather(*(work() for _ in range(AT_ONCE)))
        for _ in range(100):
            metrics = (await client.get("/metrics")).text.splitlines()
            left = next(line for line in metrics if line.startswith("specexp_lanes_running"))
            if left.endswith(" 0.0"):
                break
            await asyncio.sleep(0.1)
        begun = asyncio.Semaphore(0)  # SIGTERM must come when all answers have begun
        volley = [asyncio.create_task(stream(client, bodies[n], begun.release)) for n in range(AT_ONCE)]
        for _ in volley:
            await begun.acquire()
        server.send_signal(signal.SIGTERM)
        lost = 0
        for place, answer in enumerate(await asyncio.gather(*volley, return_exceptions=True)):
            if isinstance(answer, BaseException):
                lost += 1
            else:
                clients.check(answer, place)
    # the largest size within the first fifth of the requests
    warm = max([size for done, size in sizes if done <= requests // 5] or [size for _, size in sizes])
    growth = max(size for _, size in sizes[-5:]) / warm - 1
    minutes = (time.monotonic() - began) / 60
    print(f"{clients.done} requests in {minutes:.1f} minutes, {clients.odd} of them odd")
    print(f"wrong texts or statuses: {len(clients.wrong)}; refused while full: {clients.full}; {left}")
    print(f"memory after the warm-up {warm / 1e6:.0f} MB, at the end {growth:+.1%}; lost at SIGTERM: {lost}")
    for one in clients.wrong[:5]:
        print(one)
    return not clients.wrong and left.endswith(" 0.0") and growth <= MAX_GROWTH and lost == 0


def main() -> int:
    """Start the server and its clients; returns 1 if something went wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=10_000)
    requests = parser.parse_args().requests
    bodies = make_bodies(48)
    texts = expected_texts(bodies)
    with TemporaryDirectory(prefix="specexp-") as folder:
        work, port = Path(folder), free_port()
        more = ["--lanes", "8", "--threads", "2", "--target-dtype", DTYPE]
        command = our_server(default_artifact(work / "artifact"), port, *more)
        with serving(command, port, work / "server.log") as (server, address):
            held_out = asyncio.run(soak(requests, address, server, bodies, texts))
            if server.wait(60) != 0:
                print(f"the server ended with {server.returncode}")
                held_out = False
    return 0 if held_out else 1


if __name__ == "__main__":
    sys.exit(main())
