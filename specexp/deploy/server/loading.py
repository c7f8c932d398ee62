"""From an artifact and its models to an engine, and from what it learned while serving to an artifact."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from specexp.artifacts import Artifact, ArtifactError, fingerprint, value_of
from specexp.artifacts.kinds.compositions import DRAFT_LENGTHS, CompositionArtifact, DraftLengthsArtifact
from specexp.artifacts.parts import state_payloads
from specexp.bench.arm import eos_of
from specexp.config.artifacts import LoadedArtifact, save_artifact
from specexp.config.named_artifacts import local
from specexp.controllers import LoadAware
from specexp.core.latency import LatencyProfile
from specexp.core.messages import first_line
from specexp.core.parts import Parts
from specexp.core.runtime import Runtime
from specexp.deploy.server.engine import Engine

if TYPE_CHECKING:
    from specexp.models.pair import ModelPair


def engine_of(
    artifact: LoadedArtifact,
    pair: ModelPair,
    *,
    lanes: int,
    waiting: int,
    deterministic: bool = False,
    latency: LatencyProfile | None = None,
) -> Engine:
    """Return an engine of an artifact's parts on a pair's models.

    With a latency profile its controller weighs costs by it; one that changes nothing is replaced by one that drafts as
    much as pays at the present load.

    Raises:
        ArtifactError: the artifact belongs to other models, its drafter needs a draft model and there is none, or its
            parts cannot serve.
    """
    model = pair.target.model if isinstance(pair.target, Runtime) else pair.target
    artifact.content.check(model, pair.tokenizer)
    try:
        parts = artifact.new_parts(pair.draft)
        if parts.controller.needs_foresight:
            name = type(parts.controller).__name__
            raise ValueError(
                f"{name} must know an output beforehand, as an evaluation can: serve another artifact"
            )
        if latency is not None:
            if parts.controller.changes_nothing and parts.drafter is not None:
                parts = parts._replace(controller=LoadAware())
            parts.controller.use_latency(latency)
        return Engine(
            artifact.runtime(pair.target),
            parts,
            lanes=lanes,
            waiting=waiting,
            eos_token_ids=eos_of(pair.tokenizer, model),
            deterministic=deterministic,
        )
    except ArtifactError:
        raise
    except ValueError as error:
        raise ArtifactError(f"{artifact.folder}: {first_line(error)}") from error


def check_learning(parts: Parts, folder: str) -> None:
    """Raise an ArtifactError if neither part carries anything from one request to the next."""
    if not parts.keeps_learning:
        names = " and ".join(
            type(part).__name__ for part in (parts.drafter, parts.controller) if part is not None
        )
        raise ArtifactError(
            f"--save-state {folder}: {names} carry nothing from one request to the next, so there is nothing to save"
        )


def profile_in(path: str) -> LatencyProfile:
    """Return the latency profile of an artifact; raises an ArtifactError if it is of another kind."""
    try:
        profile: LatencyProfile = value_of("latency-profile", local(path))
    except ArtifactError as error:
        raise ArtifactError(f"--latency: {error}") from error
    return profile


def save_state(artifact: LoadedArtifact, parts: Parts, pair: ModelPair, folder: str, lanes: int) -> Path:
    """Write the artifact's parts with their learned state as the next version of a ``composition``, or of
    ``draft-lengths`` if they learned how much to draft by the load, and return its folder.

    Raises:
        ArtifactError: it cannot be written.
    """
    specs = artifact.content.specs()
    states = {
        family: part.state_dict()
        for family, part in (("drafter", parts.drafter), ("controller", parts.controller))
        if part is not None and part.state_dict()
    }
    model = pair.target.model if isinstance(pair.target, Runtime) else pair.target
    kind: type[Artifact] = CompositionArtifact
    if isinstance(parts.controller, LoadAware):
        nodes = parts.controller.table(lanes)
        specs["controller"] = {"class_path": DRAFT_LENGTHS, "init_args": {"nodes": nodes}}
        states.pop("controller", None)
        kind = DraftLengthsArtifact
    payloads = kind.payloads_of({family: specs.get(family) for family in Parts._fields}, {})
    assert payloads is not None, "what learns drafts"
    written = save_artifact(
        folder,
        kind.kind,
        {**payloads, **state_payloads(states)},
        provenance={
            **{key: artifact.provenance.get(key) for key in ("study", "runtime", "dtype")},
            "command": shlex.join(sys.orig_argv),
            "config": {"served": str(artifact.folder)},
        },
        fingerprint=fingerprint(model, pair.tokenizer),
        name=Path(folder).name,
    )
    return written.folder
