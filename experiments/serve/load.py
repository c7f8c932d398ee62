"""python experiments/serve/load.py [ARTIFACT]

How many tokens a second does a server give at 1, 4, 8 and 16 requests at once, when comes the first token, and how long
does each take (p50, p99), on the same prompts: ours with the artifact, ours without speculation, transformers' own
server, and llama.cpp's llama-server (--llama-server PATH, or the one on the PATH) with as many slots and the same pair
as GGUF files, with its draft model and without? The servers are measured in turns, each alone on the machine. Writes
runs/serve_load/{load.md,requests.json}.
"""

import argparse
import asyncio
import json
import os
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from dataclasses import asdict
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import numpy as np
from clients import free_port, made_artifact, ours, process, prompts, streamed

from specexp.bench.trainer import quiet_libraries
from specexp.models.pair import load_pair


def arms(given, work):
    """By name: command of a port, path, and the body of a prompt; those that cannot be started here are said."""
    quiet_libraries()
    pair = load_pair("stdlib", target_dtype=given.dtype)
    artifact = given.artifact or made_artifact(work / "artifact")
    sampling = {"max_tokens": given.max_tokens, "temperature": given.temperature}
    found = {}

    def body(prompt, seed, **more):
        counts = {"stream_options": {"include_usage": True}}
        return {"model": "stdlib", "prompt": prompt, "seed": seed, **sampling, **counts, **more}

    lanes = [
        "--lanes",
        str(max(given.at_once)),
        "--threads",
        str(given.threads),
        "--target-dtype",
        given.dtype,
    ]
    command = partial(lambda port: ours(artifact, port, *lanes))
    found["specexp"] = command, body
    found["specexp, no speculation"] = command, partial(body, speculative=False)
    model = work / "model"
    pair.target.save_pretrained(model)
    pair.tokenizer.save_pretrained(model)
    transformers = shutil.which(
        "transformers", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    )
    if transformers and find_spec("accelerate"):
        config = {
            "max_new_tokens": given.max_tokens,
            "do_sample": given.temperature > 0,
            "temperature": given.temperature or 1.0,
            "eos_token_id": pair.tokenizer.eos_token_id,
            "pad_token_id": pair.tokenizer.eos_token_id,
        }

        def theirs(prompt, seed):
            return {
                "model": str(model),
                "prompt": prompt,
                "seed": seed,
                "generation_config": json.dumps(config),
            }

        def serve(port, *more):
            own = ["--device", "cpu", "--dtype", given.dtype, "--port", str(port), "--host", "127.0.0.1"]
            return [transformers, "serve", str(model), *own, *more]

        found["transformers serve"] = serve, theirs
        found["transformers serve, continuous batching"] = (
            partial(lambda port: serve(port, "--continuous-batching")),
            theirs,
        )
    else:
        print("transformers serve is left out: it needs pip install transformers[serving]")
    program = shutil.which(given.llama_server)
    if program:
        found |= llama_arms(program, given, work / "gguf", body, pair.tokenizer)
    else:
        print(
            f"llama.cpp's server is left out: {given.llama_server} is no program; name one with --llama-server"
        )
    return found


def llama_arms(program, given, files, body, tokenizer):
    """llama.cpp's own server on the same pair; at most 2 048 tokens a slot, as many slots as requests at once."""
    export = [sys.executable, "-m", "specexp.export", "stdlib", "--to", "gguf", "--output", str(files)]
    subprocess.run([*export, "--precision", "bf16" if given.dtype == "bfloat16" else "f32"], check=True)
    slots, threads = max(given.at_once), str(given.threads)

    def serve(port, *more):
        own = [program, "-m", str(files / "target.gguf"), "--host", "127.0.0.1", "--port", str(port)]
        own += ["-np", str(slots), "-c", str(2048 * slots), "-t", threads, "-tb", threads]
        return [*own, *more]

    def whole(prompt, seed):
        """Token ids, for llama.cpp cuts this tokenizer's texts otherwise; it keeps the best 40 tokens and 95 % of the
        probability unless told otherwise, and ours keeps all."""
        return body(tokenizer(prompt)["input_ids"], seed, top_k=0, top_p=1.0, min_p=0.0)

    drafted = ["--spec-type", "draft-simple", "-md", str(files / "draft.gguf"), "--spec-draft-n-max", "3"]
    return {
        "llama.cpp": (serve, whole),
        "llama.cpp, draft model": (partial(lambda port: serve(port, *drafted)), whole),
    }


async def asked(address, body, texts, at_once, requests):
    """So many clients, each asking again as soon as it was answered; what they saw, and the seconds it took."""
    answers, waiting = [], iter(range(requests))
    fresh = httpx.Limits(max_keepalive_connections=0)  # llama.cpp's server closes kept ones at will
    async with httpx.AsyncClient(base_url=address, timeout=600, limits=fresh) as client:

        async def ask():
            for number in waiting:
                answers.append(
                    await streamed(client, "/v1/completions", body(texts[number % len(texts)], number))
                )

        started = time.perf_counter()
        await asyncio.gather(*(ask() for _ in range(at_once)))
        return answers, time.perf_counter() - started


def measured(name, command, body, given, work, texts):
    """An arm at every load: answers and seconds by requests at once."""
    port, found = free_port(), {}
    with process(command(port), port, work / "server.log") as (_, address):
        for at_once in given.at_once:
            asyncio.run(asked(address, body, texts, at_once, at_once))  # warm
            found[at_once] = asyncio.run(
                asked(address, body, texts, at_once, max(given.requests, 4 * at_once))
            )
            answers, seconds = found[at_once]
            print(
                f"{name}, {at_once} at once: {sum(one.tokens for one in answers) / seconds:.1f} tokens/s",
                flush=True,
            )
    return found


def table(runs):
    """Markdown: medians over the rounds, p50 and p99 of all requests."""
    lines = [
        "| server | at once | tokens/s (lowest to highest round) | first token ms p50 / p99 | ms per token p50 / p99 |",
        "|---|---|---|---|---|",
    ]
    for (name, at_once), rounds in runs.items():
        rates = [sum(one.tokens for one in answers) / seconds for answers, seconds in rounds]
        answers = [one for some, _ in rounds for one in some]
        first = np.percentile([1e3 * one.first for one in answers], [50, 99])
        each = np.percentile([one.ms_per_token for one in answers], [50, 99])
        rate = f"{np.median(rates):.1f} ({min(rates):.1f} to {max(rates):.1f})"
        lines.append(
            f"| {name} | {at_once} | {rate} | {first[0]:.1f} / {first[1]:.1f} | {each[0]:.2f} / {each[1]:.2f} |"
        )
    return "\n".join(lines) + "\n"


def main():
    """Measure all arms in turns, the order turned round every time."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("artifact", nargs="?", help="made here unless given")
    parser.add_argument("--at-once", type=int, nargs="+", default=[1, 4, 8, 16])
    parser.add_argument("--requests", type=int, default=24, help="a load, at least 4 for each client")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--temperature", type=float, default=0.7)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--llama-server", default="llama-server", metavar="PATH")
    parser.add_argument("--only", nargs="+", help="names of servers")
    parser.add_argument("--output", default="runs/serve_load")
    given = parser.parse_args()
    texts, runs = prompts(64), defaultdict(list)
    with TemporaryDirectory(prefix="specexp-") as folder:
        work = Path(folder)
        chosen = [one for one in arms(given, work).items() if not given.only or one[0] in given.only]
        for number in range(given.rounds):
            for name, (command, body) in chosen[:: -1 if number % 2 else 1]:
                for at_once, found in measured(name, command, body, given, work, texts).items():
                    runs[name, at_once].append(found)
    ordered = dict(sorted(runs.items(), key=lambda one: one[0][1]))
    output = Path(given.output)
    output.mkdir(parents=True, exist_ok=True)
    (output / "load.md").write_text(table(ordered))
    rows = [
        {"server": name, "at_once": at_once, "round": number, **asdict(one)}
        for (name, at_once), rounds in ordered.items()
        for number, (answers, _) in enumerate(rounds)
        for one in answers
    ]
    (output / "requests.json").write_text(json.dumps(rows))
    print(table(ordered))


if __name__ == "__main__":
    main()
