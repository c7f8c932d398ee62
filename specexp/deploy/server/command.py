"""``python -m specexp.serve ARTIFACT``: an OpenAI-compatible server that decodes with a tuned artifact."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from importlib.util import find_spec
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specexp.artifacts import ArtifactError
from specexp.base.messages import first_line, restated
from specexp.config.command import Options, answered, check_threads, check_writable, fail
from specexp.config.config import check_expanded
from specexp.config.layers import ConfigError
from specexp.engines.openai_client import KEY
from specexp.models.smollm2 import SMOLLM2
from specexp.models.sources import PairError, checked_sources, sources_of
from specexp.servers.options import json_object

if TYPE_CHECKING:
    import socket

    from specexp.config.artifacts import LoadedArtifact
    from specexp.models.pair import ModelPair

_LEAST = {"lanes": 1, "queue": 0, "threads": 1, "max_body": 1, "max_prompt": 1}
_OPTIONS: tuple[tuple[str, Callable[[str], Any], Any, str, str], ...] = (
    ("target", str, None, "MODEL", "a hub id or a folder; default: the artifact's, if it is smollm2 or stdlib"),
    ("draft", str, None, "MODEL", "the draft's hub id or folder, or smollm2; the target stdlib has its own"),
    ("target-dtype", str, None, "DTYPE",
     "bfloat16, float16 or float32; default: the artifact's dtype, or bfloat16 if it records none"),
    ("draft-dtype", str, None, "DTYPE", "bfloat16, float16 or float32; default: float32"),
    ("device", str, "cpu", "DEVICE", "torch device of both models"),
    ("mode", str, "auto", "MODE", "eager, compiled, packed, graphed or auto; auto is eager if the study was"),
    ("threads", int, None, "N", "number of CPU threads of torch"),
    ("host", str, "127.0.0.1", "HOST", "address to listen on; 0.0.0.0 accepts other machines"),
    ("port", int, 8000, "PORT", "port to listen on; 0 for any free one"),
    ("name", str, None, "NAME", "the model's name in requests; default: the target's, without folders"),
    ("chat-template-kwargs", json_object, None, "JSON",
     "variables of the chat template, e.g. '{\"enable_thinking\": false}'; a request may change them"),
    ("lanes", int, 8, "N", "maximal number of outputs decoded at the same time"),
    ("queue", int, 64, "N", "maximal number of outputs that wait for a lane; further requests get status 503"),
    ("deadline", float, 600.0, "SECONDS", "time limit of a request"),
    ("drain", float, None, "SECONDS",
     "time limit of running outputs after SIGTERM; default: --deadline"),
    ("max-body", int, 1_000_000, "BYTES", "maximal size of a request's body"),
    ("max-prompt", int, None, "TOKENS", "maximal length of a prompt; default: the model's context"),
    ("api-key-file", str, None, "FILE", f"file with the API key, in place of {KEY}"),
    ("save-state", str, None, "FOLDER", "at shutdown, write the learned state to this folder as an artifact"),
)  # fmt: skip
"""The name, type, default, metavar and help of each option."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the server until SIGTERM or Ctrl-C, finish the accepted requests, and return the exit code."""
    options = _parser().parse_args(arguments)
    try:
        return answered(lambda: _run(options), "the server was not ready yet")
    except PairError as error:
        return fail(f"--{error.argument.replace('_', '-')}: {error}")
    except ArtifactError as error:
        return fail(error)


def _run(options: argparse.Namespace) -> int:
    from specexp.config.artifacts import load_artifact

    _check(options)
    key = _key(options.api_key_file)
    artifact = load_artifact(options.artifact, options.trust)
    if "drafter" not in artifact.recorded:
        why = f"kind {artifact.kind!r} records no drafter to serve{artifact.purpose and '; '}{artifact.purpose}"
        raise ArtifactError(f"{artifact.folder}: {why}")
    for name, given in {"--draft": options.draft, "--draft-dtype": options.draft_dtype}.items():
        if given is not None and not _takes_draft(artifact):
            why = f"{artifact.folder} drafts without a draft model"
            print(f"warning: {name} {given} is not used, since {why}", file=sys.stderr)
    options.target = options.target or _target_of(artifact)
    if sources_of(options.target, options.draft)[1] is None and _takes_draft(artifact):
        raise ConfigError(f"--draft must be the draft model with which {artifact.folder} drafts")
    missing = [name for name in ("fastapi", "prometheus_client", "uvicorn") if find_spec(name) is None]
    if missing:
        return fail(f'the server needs {missing[0]}: pip install -e ".[serve]"', 1)
    from specexp.deploy.server.http_server import listen

    with listen(options.host, options.port) as listener:
        target, _ = checked_sources(options.target, options.draft, options.mode)
        with _blamed_target(options.target):  # before torch is imported, which takes seconds
            artifact.content.check_saved(target)
        from specexp.bench.trainer import quiet_libraries
        from specexp.models.pair import load_pair

        quiet_libraries()
        pair = load_pair(
            options.target,
            options.draft,
            target_dtype=options.target_dtype or artifact.provenance.get("dtype") or "bfloat16",
            draft_dtype=options.draft_dtype or "float32",
            device=options.device,
            mode=options.mode,
        )
        return _serve(options, artifact, pair, listener, key)


def _blamed_target(target: str) -> AbstractContextManager[None]:
    """Name the option in an ArtifactError of the block."""
    wrong = f"--target must be the artifact's model, got {target!r}"
    return restated(ArtifactError, lambda error: ArtifactError(f"{wrong}: {error}"))


def _takes_draft(artifact: LoadedArtifact) -> bool:
    """Return whether an artifact's drafter needs a draft model."""
    try:
        artifact.new_parts(None)
    except ValueError:
        return True
    return False


def _target_of(artifact: LoadedArtifact) -> str:
    """Return the model an artifact was measured with. Raises ConfigError unless it is smollm2 or stdlib."""
    pair = (artifact.provenance.get("config") or {}).get("pair") or {}
    target = str(pair.get("target", "stdlib"))
    if target not in (SMOLLM2, "stdlib"):  # an artifact is not trusted, so it cannot choose what is loaded
        raise ConfigError(f"--target must name the model of {artifact.folder}, which was measured with {target!r}")
    return target


def _name_of(target: str) -> str:
    """Return the default name of the model in requests, which must not show this machine's folders to clients."""
    return Path(target).resolve().name if Path(target).exists() else target


def _check(options: argparse.Namespace) -> None:
    for name, least in _LEAST.items():
        value = getattr(options, name)
        if value is not None and value < least:
            raise ConfigError(f"--{name.replace('_', '-')} must be an integer >= {least}, got {value}")
    check_threads(options.threads, ConfigError("--threads"))
    if not 0 < options.deadline < inf:
        raise ConfigError(f"--deadline must be a number of seconds > 0, got {options.deadline:g}")
    if options.drain is not None and not 0 <= options.drain < inf:
        raise ConfigError(f"--drain must be a number of seconds >= 0, got {options.drain:g}")
    if options.drain is not None and options.drain > options.deadline:
        why = f"{options.deadline:g}, at which a request ends anyway"
        raise ConfigError(f"--drain must be at most --deadline, {why}, got {options.drain:g}")
    if options.save_state is not None:
        check_expanded(options.save_state, ConfigError("--save-state"))
        check_writable(Path(options.save_state), ConfigError("--save-state"))


def _serve(
    options: argparse.Namespace,
    artifact: LoadedArtifact,
    pair: ModelPair,
    listener: socket.socket,
    key: str | None,
) -> int:
    import torch

    from specexp.core.cache import context_limit
    from specexp.deploy.server.app import Server
    from specexp.deploy.server.http_server import HttpServer
    from specexp.deploy.server.loading import decoding_thread_of, save_state
    from specexp.deploy.server.request_schema import Limits
    from specexp.deploy.server.texts import Texts

    if options.threads is not None:
        torch.set_num_threads(options.threads)
    with _blamed_target(options.target):
        artifact.content.check(pair.target, pair.tokenizer)
    thread = decoding_thread_of(
        artifact,
        pair,
        lanes=options.lanes,
        waiting=options.queue,
        deterministic=options.deterministic,
    )
    if options.save_state is not None and not thread.parts.keeps_learning:
        raise ArtifactError(
            f"--save-state {options.save_state}: no part of {artifact.folder} keeps learned state between requests: "
            "leave the option out"
        )
    most = context_limit(pair.target.config)
    if options.max_prompt is not None and options.max_prompt > most:
        raise ConfigError(f"--max-prompt must be at most {most}, the model's context, got {options.max_prompt}")
    limits = Limits(options.max_body, options.max_prompt, seconds=options.deadline)
    with restated(ValueError, lambda error: ConfigError(f"--chat-template-kwargs: {first_line(error)}")):
        texts = Texts(pair.tokenizer, options.chat_template_kwargs)
    server = Server(thread, texts, options.name or _name_of(pair.name), limits, key)
    logging.basicConfig(stream=sys.stderr, format="%(message)s")
    logging.getLogger("specexp.deploy.server.access").setLevel(logging.INFO)
    thread.start()
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    print(f"serving {artifact.folder} as {server.name} on http://{shown}:{port}/v1", flush=True)
    if key is None and host not in ("127.0.0.1", "::1"):
        print(f"warning: {KEY} is not set, so anyone who can reach {host} can send requests", file=sys.stderr)

    def save() -> None:
        if options.save_state is not None:
            saved = save_state(artifact, thread.parts, pair, options.save_state)
            print(f"the learned state was saved to {saved}", flush=True)

    drain = options.deadline if options.drain is None else options.drain
    with suppress(KeyboardInterrupt):  # uvicorn raises the signal again after the shutdown
        HttpServer(server, drain, save).run(sockets=[listener])
    return 0


def _key(file: str | None) -> str | None:
    key, where = os.environ.get(KEY), KEY
    if file is not None:
        where = f"--api-key-file {file}"
        try:
            key = Path(file).read_text(encoding="utf-8").strip()
        except (OSError, ValueError) as error:
            raise ConfigError(f"{where} cannot be read ({getattr(error, 'strerror', None) or error})") from error
    if key is not None and (not key or not key.isascii() or not key.isprintable() or " " in key):
        raise ConfigError(f"{where} must hold a key of printable ASCII characters without spaces")
    return key


def _parser() -> argparse.ArgumentParser:
    parser = Options(
        prog="python -m specexp.serve",
        description="Serve an artifact: /v1/completions, /v1/chat/completions, /v1/models, /health and /metrics.",
        epilog=f"Requests must send the API key in {KEY} or --api-key-file, if one is set. After SIGTERM or Ctrl-C the "
        "server finishes all accepted requests; a second signal stops it at once.",
    )
    add = parser.add_argument
    add(
        "artifact",
        metavar="ARTIFACT",
        help="the artifact's folder, or an alias such as artifacts/tree_shape/best",
    )
    for name, kind, default, metavar, text in _OPTIONS:
        flags = ["--name", "--served-model-name"] if name == "name" else [f"--{name}"]
        add(*flags, type=kind, default=default, metavar=metavar, help=text)
    deterministic = (
        "make outputs bit-identical whatever else is served: an eager target then runs one pass for each lane; "
        "a compiled target needs no extra passes"
    )
    add("--deterministic", action="store_true", help=deterministic)
    trust = "an installed package from which parts of the artifact may be imported"
    add("--trust", action="append", default=[], metavar="PACKAGE", help=trust)
    return parser
