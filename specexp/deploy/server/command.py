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
from typing import TYPE_CHECKING

from specexp.config.command import answered, fail
from specexp.config.errors import ConfigError

if TYPE_CHECKING:
    import socket

    from specexp.config.artifacts import LoadedArtifact
    from specexp.models.pair import ModelPair

KEY = "SPECEXP_API_KEY"
"""Environment variable with what requests must know; a command line could be read by others."""


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
    from specexp.config.here import check_writable
    from specexp.config.places import check_expanded
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
    """What requests must know, of a file or the environment.

    Raises:
        ConfigError: the file cannot be read, or what it holds is no key.
    """
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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m specexp.serve",
        description="Serve an artifact: /v1/completions, /v1/chat/completions, /v1/models, /health and /metrics.",
        epilog=f"Requests must know the key that {KEY} or --api-key-file has. SIGTERM and Ctrl-C end the server, once "
        "all that was taken in is answered; a second signal ends it at once.",
    )
    add = parser.add_argument
    add("artifact", metavar="ARTIFACT", help="folder, or alias such as artifacts/tree_shape/best")
    add(
        "--target",
        default="stdlib",
        metavar="MODEL",
        help="stdlib for the embedded pair, a hub id or a folder",
    )
    add("--draft", metavar="MODEL", help="the draft's hub id or folder; the embedded pair has its own")
    add(
        "--target-dtype",
        metavar="DTYPE",
        help="bfloat16, float16 or float32; the artifact's unless given, bfloat16 where it records none",
    )
    add("--draft-dtype", default="float32", metavar="DTYPE", help="bfloat16, float16 or float32")
    add("--device", default="cpu", help="a torch device, which holds both models")
    add("--mode", default="auto", help="eager, compiled or auto, which runs the target as the study did")
    add("--threads", type=int, metavar="N", help="torch's threads")
    add("--host", default="127.0.0.1", help="address to listen on; other machines reach 0.0.0.0")
    add("--port", type=int, default=8000, help="port to listen on; 0 for any free one")
    add("--name", metavar="NAME", help="what requests call the model; the target's name unless given")
    add("--lanes", type=int, default=8, metavar="N", help="outputs decoded at a time")
    add(
        "--queue",
        type=int,
        default=64,
        metavar="N",
        help="outputs that may wait for a lane; more are told 503",
    )
    add("--deadline", type=float, default=600.0, metavar="SECONDS", help="until a request must be complete")
    add(
        "--drain",
        type=float,
        metavar="SECONDS",
        help="after SIGTERM, until outputs that are not complete are given up; --deadline unless given",
    )
    add("--max-body", type=int, default=1_000_000, metavar="BYTES", help="of a request")
    add("--max-prompt", type=int, metavar="TOKENS", help="of a prompt; the model's context unless given")
    add("--api-key-file", metavar="FILE", help=f"its text is what requests must know, in place of {KEY}")
    add(
        "--deterministic",
        action="store_true",
        help="not even rounding hangs on who else is served: on a model run by its own code every lane takes a pass of "
        "its own; compiled passes are so in any case",
    )
    add(
        "--latency",
        metavar="PROFILE",
        help="latency-profile artifact of this machine: draft as much as pays at the present number of lanes, by what "
        "passes cost (profile.lanes) and what is accepted",
    )
    add("--save-state", metavar="FOLDER", help="write what was learned there as an artifact in the end")
    add(
        "--trust",
        action="append",
        default=[],
        metavar="PACKAGE",
        help="may have the artifact's parts, if installed",
    )
    return parser
