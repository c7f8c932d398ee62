"""JSON by a schema on our server, llama.cpp's and vLLM's: the schemas that each takes, and tokens per second.

``--schemas`` sends one small schema of each kind to each server, and writes whether the answer fits or why the schema
was refused. Without it, the servers answer the prompts of ``StructuredTasks`` with a JSON schema one at a time, each on
all servers in turns, and ratios are paired by prompt. SmolLM2-135M-Instruct in bfloat16, greedy. Writes
runs/serve_structured/{schemas.md,speed.md}.

    python -m experiments.serve.structured --python .vllm/bin/python
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import jsonschema  # type: ignore[import-untyped]
import numpy as np

from experiments.serve.load import Answer, Body, conditions, free_port, load, our_server, serving, speedup
from specexp.base.messages import first_line
from specexp.data import Workload
from specexp.data.named_sets import StructuredTasks
from specexp.engines.http_engines import LlamaCppServer
from specexp.engines.vllm import VLLM
from specexp.models.pair import ModelPair, load_pair

OURS, PLAIN, LLAMA, THEIRS = "specexp", "specexp, plain", "llama.cpp", "vLLM"
TEXT, NUMBER = {"type": "string", "maxLength": 8}, {"type": "integer", "minimum": 0, "maximum": 99}


def of(value: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """Return the schema of an object with one key."""
    return {
        "type": "object",
        "properties": {"x": value},
        "required": ["x"],
        "additionalProperties": False,
        **more,
    }


KINDS: dict[str, dict[str, Any]] = {
    "nested objects": of(of(of(NUMBER))),
    "`enum`": of({"enum": ["red", 3, None]}),
    "`const`": of({"const": "fixed"}),
    "`pattern`": of({"type": "string", "pattern": "^[a-c]{2}x?$"}),
    "`pattern` without anchors": of({"type": "string", "pattern": "[0-9]{2}", "maxLength": 6}),
    "`minLength`, `maxLength`": of({"type": "string", "minLength": 3, "maxLength": 5}),
    "`minimum`, `maximum`": of({"type": "integer", "minimum": -5, "maximum": 300}),
    "`exclusiveMinimum`": of({"type": "number", "exclusiveMinimum": 0, "maximum": 1}),
    "`multipleOf`": of({"type": "integer", "multipleOf": 5, "minimum": 5, "maximum": 50}),
    "list of types": of({"type": ["integer", "null"], "minimum": 0, "maximum": 9}),
    "`items`, `minItems`, `maxItems`": of({"type": "array", "items": NUMBER, "minItems": 2, "maxItems": 3}),
    "`prefixItems`": of({"type": "array", "prefixItems": [NUMBER, TEXT], "items": False, "minItems": 2}),
    "`uniqueItems`": of({"type": "array", "items": {"enum": [1, 2, 3]}, "uniqueItems": True, "minItems": 3}),
    "`contains`": of({"type": "array", "items": NUMBER, "contains": {"const": 7}, "maxItems": 2}),
    "`$ref`": of({"$ref": "#/$defs/n"}, **{"$defs": {"n": NUMBER}}),
    "recursive `$ref`": {
        "$ref": "#/$defs/tree",
        "$defs": {"tree": of({"anyOf": [{"type": "null"}, {"$ref": "#/$defs/tree"}]})},
    },
    "`anyOf`": of({"anyOf": [NUMBER, {"type": "boolean"}]}),
    "`oneOf`, apart": of({"oneOf": [NUMBER, {"type": "boolean"}]}),
    "`oneOf`, overlapping": of({"oneOf": [NUMBER, {"type": "integer", "minimum": 50, "maximum": 200}]}),
    "`allOf`": of({"allOf": [{"type": "integer", "minimum": 10}, {"maximum": 20}]}),
    "`not`": of({"type": "integer", "minimum": 0, "maximum": 3, "not": {"const": 1}}),
    "`if`, `then`": of({"enum": ["a", "b"]}, **{"if": {"properties": {"x": {"const": "a"}}}, "then": False}),
    "`additionalProperties: schema`": {"type": "object", "additionalProperties": NUMBER, "maxProperties": 2},
    "`patternProperties`": {
        "type": "object",
        "patternProperties": {"^k[0-9]$": NUMBER},
        "additionalProperties": False,
    },
    "`minProperties`": {
        "type": "object",
        "additionalProperties": NUMBER,
        "minProperties": 2,
        "maxProperties": 3,
    },
    "`propertyNames`": {"type": "object", "propertyNames": {"enum": ["a", "b"]}, "minProperties": 1},
    "`dependentRequired`": {
        "type": "object",
        "properties": {"a": NUMBER, "b": NUMBER},
        "required": ["a"],
        "dependentRequired": {"a": ["b"]},
        "additionalProperties": False,
    },
    **{
        f"`format: {name}`": of({"type": "string", "format": name})
        for name in ("date", "date-time", "email", "uuid", "ipv4", "uri")
    },
}
"""One small schema of each kind."""


def outcome(url: str, model: str, field: str, schema: Mapping[str, Any]) -> str:
    """Return in a few words what a server makes of a schema."""
    body = {"model": model, "prompt": "An example as JSON:\n", "max_tokens": 120, "temperature": 0}
    try:
        answer = httpx.post(f"{url}/v1/completions", json={**body, **form(field, schema)}, timeout=60)
    except httpx.TransportError as error:
        return f"no answer: {type(error).__name__}"
    if answer.status_code != 200:
        why = answer.json().get("error", answer.text)
        return f"{answer.status_code}: {first_line(why['message'] if isinstance(why, dict) else why)[:90]}"
    (choice,) = answer.json()["choices"]
    if choice["finish_reason"] == "length":
        return "no end"
    try:
        checker = jsonschema.FormatChecker()
        jsonschema.Draft202012Validator(schema, format_checker=checker).validate(json.loads(choice["text"]))
    except ValueError:
        return f"**not JSON**: {choice['text'][:40]}"
    except jsonschema.ValidationError as error:
        return f"**does not fit**: {first_line(error.message)[:60]}"
    return "fits"


def form(field: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the field of a request with a schema."""
    return {field: schema if field == "json_schema" else {"json": schema}}


def commands(options: argparse.Namespace, pair: ModelPair, work: Path) -> dict[str, list[str]]:
    """Return the command of each server, with ``{port}`` for its port. Prints those that cannot be started here."""
    found = {OURS: our_server(options.artifact, 0, "--threads", "2", "--target-dtype", "bfloat16")}
    writer = [sys.executable, "-m", "experiments.passes.gguf_writer", "smollm2", str(work)]
    engines = {
        LLAMA: LlamaCppServer(target=str(work / "target.gguf"), threads=2),
        THEIRS: VLLM(python=options.python),
    }
    if THEIRS in options.only and shutil.which(options.python) is None:
        print(f"vLLM is left out: --python must be the interpreter of its environment, got {options.python}")
        del engines[THEIRS]
    if LLAMA in options.only:
        subprocess.run([*writer, "--precision", "bf16"], check=True)
    found |= {name: engine.words(0, pair) for name, engine in engines.items() if name in options.only}
    return {name: words for name, words in found.items() if name in options.only}


def main() -> None:
    """Measure the servers, and print and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schemas", action="store_true", help="only send one schema of each kind")
    parser.add_argument("--prompts", type=int, default=18)
    parser.add_argument("--artifact", default="smollm2:tree")
    parser.add_argument("--python", default=".vllm/bin/python")
    parser.add_argument("--only", nargs="+", default=[OURS, LLAMA, THEIRS], help="names of servers")
    parser.add_argument("--output", type=Path, default=Path("runs/serve_structured"))
    options = parser.parse_args()
    pair = load_pair("smollm2", target_dtype="bfloat16")
    options.output.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix="specexp-") as folder, ExitStack() as stack:
        work, urls = Path(folder), dict[str, tuple[str, str, str]]()
        for name, words in commands(options, pair, work).items():
            port = free_port()
            words[words.index("--port") + 1] = str(port)
            _, url = stack.enter_context(serving(words, port, options.output / f"{name}.log", 600))
            model = httpx.get(f"{url}/v1/models", timeout=60).json()["data"][0]["id"]
            urls[name] = url, model, "json_schema" if name == LLAMA else "structured_outputs"
        if options.schemas:
            rows = [[kind, *(outcome(*one, schema) for one in urls.values())] for kind, schema in KINDS.items()]
            text, name = markdown(["kind", *urls], rows), "schemas.md"
        else:
            text, name = asyncio.run(speeds(pair, urls, options.prompts)), "speed.md"
        text += f"\n{conditions('smollm2; prompts of StructuredTasks')}"
        (options.output / name).write_text(text)
    print(text)


def request(fields: Mapping[str, Any], ids: Sequence[int], seed: int) -> Body:
    """Return the body of a request."""
    return {**fields, "prompt": ids}


async def speeds(pair: ModelPair, urls: Mapping[str, tuple[str, str, str]], number: int) -> str:
    """Return a table of tokens per second, and of the ratios of our server to each other."""
    prompts = Workload(StructuredTasks()).load(pair.tokenizer)
    prompts = [one for one in prompts if "json" in (one.structured_outputs or {})]
    prompts = prompts[:: max(1, len(prompts) // number)]
    answers = defaultdict[str, list[Answer]](list)
    arms: dict[str, tuple[str, str, str, dict[str, Any]]] = {name: (*one, {}) for name, one in urls.items()}
    if OURS in urls:
        arms[PLAIN] = (*urls[OURS], {"speculative": False})
    for place, prompt in enumerate([prompts[0], *prompts]):
        schema = (prompt.structured_outputs or {})["json"]
        for name in np.random.default_rng(place).permutation([*arms]).tolist():
            url, model, field, more = arms[name]
            body = {
                "model": model,
                "max_tokens": 160,
                "temperature": 0,
                "stream_options": {"include_usage": True},
            }
            made = partial(request, {**body, **form(field, schema), **more})
            [answer], _ = await load(url, made, [list(prompt.token_ids)], 1, 1)
            if place:  # the first is for warming up
                answers[name].append(answer)
    rates = {name: np.array([one.tokens / one.whole for one in some]) for name, some in answers.items()}
    rows = [
        [
            name,
            f"{sum(one.tokens for one in answers[name]) / sum(one.whole for one in answers[name]):.0f}",
            "1" if name == OURS or OURS not in rates else speedup(np.log(rates[OURS] / rate)),
        ]
        for name, rate in rates.items()
    ]
    return markdown(["server", "tokens/s", f"{OURS} over it"], rows)


def markdown(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a markdown table."""
    lines = ["|".join(one.replace("|", "\\|") for one in row) for row in (heads, ["---"] * len(heads), *rows)]
    return "".join(f"|{line}|\n" for line in lines)


if __name__ == "__main__":
    main()
