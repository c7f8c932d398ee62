"""``python -m specexp.serve ARTIFACT``: an OpenAI-compatible server that decodes with an artifact's parts.

Requests are lanes of one loop: they come and go while others decode, and one target pass serves all.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specexp.config.command import answered, fail
from specexp.config.layers import ConfigError

if TYPE_CHECKING:
    import socket

    from specexp.config.artifacts import LoadedArtifact
    from specexp.models.pair import ModelPair

KEY = "SPECEXP_API_KEY"
"""Environment variable with the key of requests; a command line could be read by others."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code: 0 after SIGTERM or Ctrl-C, once everything taken in was answered."""
    given = _parser().parse_args(arguments)
    from specexp.artifacts import ArtifactError
    from specexp.models.sources import PairError

    try:
        import fastapi
        import prometheus_client
        import uvicorn  # noqa: F401
    except ImportError as error:
        return fail(f'the server needs {error.name}: pip install -e ".[serve]"', 1)
    del fastapi, prometheus_client
    try:
        return answered(lambda: _act(given), "the server was not ready yet")
    except (ArtifactError, PairError) as error:
        return fail(error)


def _act(given: argparse.Namespace) -> int:
    from specexp.bench.trainer import quiet_libraries
    from specexp.config.artifacts import load_artifact
    from specexp.config.command import check_writable
    from specexp.config.config import check_expanded
    from specexp.deploy.server.http_server import listen
    from specexp.models.pair import load_pair

    for name, least in (("lanes", 1), ("queue", 0), ("threads", 1), ("max_body", 1), ("max_prompt", 1)):
        value = getattr(given, name)
        if value is not None and value < least:
            raise ConfigError(
                f"--{name.replace('_', '-')} is {value}; an integer of at least {least} is allowed"
            )
    if not 0 < given.deadline < float("inf"):
        raise ConfigError(f"--deadline is {given.deadline:g}; a number of seconds above 0 is allowed")
    if given.drain is not None and not 0 <= given.drain < float("inf"):
        raise ConfigError(f"--drain must be a number of seconds of at least 0, got {given.drain:g}")
    if given.save_state is not None:
        check_expanded(given.save_state, ConfigError("--save-state"))
        check_writable(Path(given.save_state), ConfigError("--save-state"))
    key = _key(given.api_key_file)
    artifact = load_artifact(given.artifact, given.trust)
    with listen(given.host, given.port) as listener:
        quiet_libraries()
        pair = load_pair(
            given.target,
            given.draft,
            target_dtype=given.target_dtype or artifact.provenance.get("dtype") or "bfloat16",
            draft_dtype=given.draft_dtype,
            device=given.device,
            mode=given.mode,
        )
        return _serve(given, artifact, pair, listener, key)


def _serve(
    given: argparse.Namespace,
    artifact: LoadedArtifact,
    pair: ModelPair,
    listener: socket.socket,
    key: str | None,
) -> int:
    import torch

    from specexp.deploy.server.app import Server
    from specexp.deploy.server.http_server import HttpServer
    from specexp.deploy.server.loading import check_learning, engine_of, profile_in, save_state
    from specexp.deploy.server.requests import Limits
    from specexp.deploy.server.texts import Texts

    if given.threads is not None:
        torch.set_num_threads(given.threads)
    engine = engine_of(
        artifact,
        pair,
        lanes=given.lanes,
        waiting=given.queue,
        deterministic=given.deterministic,
        latency=None if given.latency is None else profile_in(given.latency),
    )
    if given.save_state is not None:
        check_learning(engine.parts, given.save_state)
    limits = Limits(given.max_body, given.max_prompt, Limits.outputs, given.deadline)
    server = Server(engine, Texts(pair.tokenizer), given.name or pair.name, limits, key)
    logging.basicConfig(stream=sys.stderr, format="%(message)s")
    logging.getLogger("specexp.deploy.server.access").setLevel(logging.INFO)
    engine.start()
    host, port = listener.getsockname()[:2]
    print(f"serving {artifact.folder} as {server.name} on http://{_shown(host)}:{port}/v1", flush=True)
    if key is None and host not in ("127.0.0.1", "::1"):
        print(f"whoever reaches {host} may ask, for {KEY} is not set", file=sys.stderr)

    def save() -> None:
        if given.save_state is not None:
            saved = save_state(artifact, engine.parts, pair, given.save_state, given.lanes)
            print(f"what was learned is in {saved}", flush=True)

    drain = given.deadline if given.drain is None else given.drain
    with suppress(KeyboardInterrupt):  # it answers what was taken in, and raises the signal again
        HttpServer(server, drain, save).run(sockets=[listener])
    return 0


def _key(file: str | None) -> str | None:
    """The key of requests, of a file or the environment."""
    key, where = os.environ.get(KEY), KEY
    if file is not None:
        where = f"--api-key-file {file}"
        try:
            key = Path(file).read_text(encoding="utf-8").strip()
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"{where} cannot be read ({getattr(error, 'strerror', None) or error})"
            ) from error
    if key is not None and (not key or not key.isascii() or not key.isprintable() or " " in key):
        raise ConfigError(
            f"{where} holds no key: letters, digits and signs of ASCII without spaces are expected"
        )
    return key


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host


_OPTIONS: tuple[tuple[str, type, Any, str, str], ...] = (
    ("target", str, "stdlib", "MODEL", "stdlib for the embedded pair, a hub id or a folder"),
    ("draft", str, None, "MODEL", "the draft's hub id or folder; the embedded pair has its own"),
    ("target-dtype", str, None, "DTYPE",
     "bfloat16, float16 or float32; the artifact's unless given, bfloat16 where it records none"),
    ("draft-dtype", str, "float32", "DTYPE", "bfloat16, float16 or float32"),
    ("device", str, "cpu", "DEVICE", "a torch device, which holds both models"),
    ("mode", str, "auto", "MODE", "eager, compiled or auto, which runs the target as the study did"),
    ("threads", int, None, "N", "torch's threads"),
    ("host", str, "127.0.0.1", "HOST", "address to listen on; other machines reach 0.0.0.0"),
    ("port", int, 8000, "PORT", "port to listen on; 0 for any free one"),
    ("name", str, None, "NAME", "the model's name in requests; the target's name unless given"),
    ("lanes", int, 8, "N", "outputs decoded at a time"),
    ("queue", int, 64, "N", "outputs that may wait for a lane; further ones get status 503"),
    ("deadline", float, 600.0, "SECONDS", "until a request must be complete"),
    ("drain", float, None, "SECONDS",
     "after SIGTERM, until outputs that are not complete are given up; --deadline unless given"),
    ("max-body", int, 1_000_000, "BYTES", "of a request"),
    ("max-prompt", int, None, "TOKENS", "of a prompt; the model's context unless given"),
    ("api-key-file", str, None, "FILE", f"file with the key of requests, in place of {KEY}"),
    ("latency", str, None, "PROFILE",
     "latency-profile artifact of this machine: draft as much as pays at the present number of lanes, by the cost of "
     "passes (profile.lanes) and the acceptance rate"),
    ("save-state", str, None, "FOLDER", "write the learned state there as an artifact in the end"),
)  # fmt: skip
"""Name, type, default, metavar and help."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m specexp.serve",
        description="Serve an artifact: /v1/completions, /v1/chat/completions, /v1/models, /health and /metrics.",
        epilog=f"Requests must send the key that {KEY} or --api-key-file has. SIGTERM and Ctrl-C end the server once "
        "all accepted requests are answered; a second signal ends it at once.",
    )
    add = parser.add_argument
    add("artifact", metavar="ARTIFACT", help="folder, or alias such as artifacts/tree_shape/best")
    for name, kind, default, metavar, text in _OPTIONS:
        add(f"--{name}", type=kind, default=default, metavar=metavar, help=text)
    add(
        "--deterministic",
        action="store_true",
        help="even rounding does not depend on other requests: on a model run by its own code every lane takes a pass "
        "of its own; compiled passes are so in any case",
    )
    add(
        "--trust",
        action="append",
        default=[],
        metavar="PACKAGE",
        help="the artifact's parts may be of it, if installed",
    )
    return parser
