"""python experiments/serve/soak.py [--requests 10000] [--minutes 30]

Does the server hold out? Short requests, one in ten cancelled, malformed or read slowly: every text is what plain
decoding says of it, no lane is left over, memory stays as it was after the warm-up, and SIGTERM loses no request that
was taken in. Ends with 1 and says what went wrong, if anything did.
"""

import argparse
import asyncio
import json
import random
import signal
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
from clients import free_port, made_artifact, ours, process, prompts, streamed

from specexp.bench.arm import eos_of
from specexp.bench.trainer import quiet_libraries
from specexp.core.decoder import Decoder
from specexp.models.pair import load_pair
from specexp.models.runtime import runtime_of
from specexp.verifiers import KeyedSampling

DTYPE = "float32"
MOST_GROWTH = 0.05
"""Of the memory after the warm-up."""


def expected(requests):
    """What plain decoding says of them, as text."""
    quiet_libraries()
    pair = load_pair("stdlib", target_dtype=DTYPE)
    target, eos = runtime_of(pair.target), eos_of(pair.tokenizer, pair.target)
    texts = []
    for body in requests:
        decoder = Decoder(target, verifier=KeyedSampling(body["temperature"]))
        ids = pair.tokenizer(body["prompt"])["input_ids"]
        said = decoder.generate(
            ids, max_new_tokens=body["max_tokens"], seed=body["seed"], eos_token_id=eos
        ).token_ids
        texts.append(
            pair.tokenizer.decode(said, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        )
    return texts


def kinds_of_requests(number):
    """Short requests, greedy and sampled."""
    return [
        {
            "model": "stdlib",
            "prompt": text,
            "max_tokens": 4 + place % 13,
            "seed": place,
            "temperature": 0.7 * (place % 2),
        }
        for place, text in enumerate(prompts(number))
    ]


def resident(process_id):
    """Bytes of a process in memory."""
    lines = Path(f"/proc/{process_id}/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("VmRSS")).split()[1])


class Soak:
    """Clients of all sorts, and what they saw."""

    def __init__(self, client, bodies, texts, seed):
        self.client = client
        self.bodies = bodies
        self.texts = texts
        self.random = random.Random(seed)
        self.wrong = []
        self.done = self.full = self.odd = 0

    async def one(self):
        """A request; one in ten is of a sort that no server likes."""
        place = self.random.randrange(len(self.bodies))
        sort = self.random.random()
        try:
            if sort < 0.04:
                await self.cancelled(self.bodies[place])
            elif sort < 0.07:
                await self.malformed()
            elif sort < 0.10:
                await self.slow(self.bodies[place], self.texts[place])
            else:
                self.check(await streamed(self.client, "/v1/completions", self.bodies[place]), place)
        except RuntimeError as error:
            if not str(error).startswith("503"):
                raise
            self.full += 1
            await asyncio.sleep(0.2)
        self.done += 1

    def check(self, answer, place):
        """Its text is the one that is known."""
        if answer.text != self.texts[place]:
            self.wrong.append({"place": place, "said": answer.text, "expected": self.texts[place]})

    async def cancelled(self, body):
        """Gone after the first piece."""
        self.odd += 1
        body = {**body, "max_tokens": 400, "stream": True}
        async with self.client.stream("POST", "/v1/completions", json=body) as answer:
            async for _ in answer.aiter_lines():
                return

    async def malformed(self):
        """Refused in a sentence."""
        self.odd += 1
        sent = self.random.choice([b"{", b"[]", b'{"model": "stdlib"}', b'{"model": 3}', b"\xff" * 100])
        answer = await self.client.post(
            "/v1/completions", content=sent, headers={"Content-Type": "application/json"}
        )
        if not 400 <= answer.status_code < 500:
            self.wrong.append({"sent": repr(sent), "status": answer.status_code})

    async def slow(self, body, text):
        """Read a little at a time."""
        self.odd += 1
        said = []
        async with self.client.stream("POST", "/v1/completions", json={**body, "stream": True}) as answer:
            if answer.status_code == 503:
                raise RuntimeError("503")
            async for line in answer.aiter_lines():
                await asyncio.sleep(0.02)
                if line.startswith("data: {"):
                    said += [choice["text"] for choice in json.loads(line[6:])["choices"]]
        if "".join(said) != text:
            self.wrong.append({"slow": "".join(said), "expected": text})


async def soak(given, address, server, bodies, texts):
    """All requests, and memory meanwhile; then SIGTERM amid a last volley."""
    began, sizes = time.monotonic(), []
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=32)
    async with httpx.AsyncClient(base_url=address, timeout=300, limits=limits) as client:
        clients = Soak(client, bodies, texts, given.seed)

        async def work():
            while clients.done < given.requests and time.monotonic() < began + 60 * given.minutes:
                await clients.one()
                if clients.done % max(1, given.requests // 100) == 0:
                    sizes.append((clients.done, resident(server.pid)))

        await asyncio.gather(*(work() for _ in range(given.at_once)))
        for _ in range(100):
            text = (await client.get("/metrics")).text
            left = next(line for line in text.splitlines() if line.startswith("specexp_lanes_running"))
            if left.endswith(" 0.0"):
                break
            await asyncio.sleep(0.1)
        begun = asyncio.Semaphore(0)
        last = [
            asyncio.create_task(streamed(client, "/v1/completions", bodies[place], begun.release))
            for place in range(given.at_once)
        ]
        for _ in last:
            await begun.acquire()
        server.send_signal(signal.SIGTERM)
        lost = 0
        for place, answer in enumerate(await asyncio.gather(*last, return_exceptions=True)):
            if isinstance(answer, BaseException):
                lost += 1
            else:
                clients.check(answer, place)
    warm = [size for done, size in sizes if done <= given.requests // 5] or [size for _, size in sizes]
    grown = max(size for _, size in sizes[-5:]) / max(warm) - 1
    print(
        f"{clients.done} requests in {(time.monotonic() - began) / 60:.1f} minutes, {clients.odd} of them odd"
    )
    print(f"wrong texts or statuses: {len(clients.wrong)}; told to come again: {clients.full}; {left}")
    print(
        f"memory after the warm-up {max(warm) / 1e6:.0f} MB, at the end {grown:+.1%}; lost at SIGTERM: {lost}"
    )
    for one in clients.wrong[:5]:
        print(one)
    return int(bool(clients.wrong) or not left.endswith(" 0.0") or grown > MOST_GROWTH or lost > 0)


def main():
    """Start the server and let clients loose on it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--artifact", help="made here unless given")
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--minutes", type=float, default=30.0, help="at most")
    parser.add_argument("--at-once", type=int, default=16)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    bodies = kinds_of_requests(48)
    texts = expected(bodies)
    with TemporaryDirectory(prefix="specexp-") as folder:
        artifact, port = given.artifact or made_artifact(Path(folder) / "artifact"), free_port()
        more = ["--lanes", "8", "--threads", str(given.threads), "--target-dtype", DTYPE]
        with process(ours(artifact, port, *more), port, Path(folder) / "server.log") as (server, address):
            code = asyncio.run(soak(given, address, server, bodies, texts))
            if server.wait(60) != 0:
                print(f"the server ended with {server.returncode}")
                code = 1
    return code


if __name__ == "__main__":
    sys.exit(main())
