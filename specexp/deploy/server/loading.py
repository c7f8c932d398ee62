"""Creates the server's decoding thread from an artifact, and saves the learned state as an artifact."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

from specexp.artifacts import ArtifactError, fingerprint
from specexp.artifacts.kinds.compositions import CompositionArtifact
from specexp.artifacts.parts import state_payloads
from specexp.base.messages import first_line
from specexp.bench.arm import eos_of
from specexp.config.artifacts import LoadedArtifact, save_artifact
from specexp.controllers import NodeBudget
from specexp.core.parts import Parts
from specexp.deploy.server.decoding_thread import DecodingThread
from specexp.models.pair import ModelPair

_BUDGET: dict[str, Any] = {"class_path": "NodeBudget", "init_args": {"from_lanes": 2}}


def decoding_thread_of(
    artifact: LoadedArtifact,
    pair: ModelPair,
    *,
    lanes: int,
    waiting: int,
    deterministic: bool = False,
) -> DecodingThread:
    """Return a thread that decodes with an artifact's parts and a pair's models.

    A single output is decoded as the artifact was measured. If there are several, and the artifact has no controller,
    :class:`~specexp.controllers.NodeBudget` adapts drafts to the load, except where ``deterministic``. Outputs for
    which drafting does not pay off are then decoded without drafts. The pair's models must be the artifact's, which
    :meth:`~specexp.artifacts.Artifact.check` compares. Raises ArtifactError if its parts cannot be served.
    """
    try:
        parts = artifact.new_parts(pair.draft)
        if parts.controller.changes_nothing and parts.drafter is not None and lanes > 1 and not deterministic:
            parts = parts._replace(controller=NodeBudget(**_BUDGET["init_args"]))
        return DecodingThread(
            artifact.runtime(pair.target),
            parts,
            lanes=lanes,
            waiting=waiting,
            eos_token_ids=eos_of(pair.tokenizer, pair.target),
            deterministic=deterministic,
        )
    except ArtifactError:
        raise
    except ValueError as error:
        raise ArtifactError(f"{artifact.folder}: {first_line(error)}") from error


def save_state(artifact: LoadedArtifact, parts: Parts, pair: ModelPair, folder: str) -> Path:
    """Save the parts with their learned state as a new version of the artifact ``folder``; return its path.

    Raises ArtifactError if the folder cannot be written.
    """
    specs = artifact.content.specs()
    if isinstance(parts.controller, NodeBudget) and not isinstance(artifact.parts.controller, NodeBudget):
        specs["controller"] = _BUDGET
    payloads = CompositionArtifact.payloads_of({family: specs.get(family) for family in Parts._fields}, {})
    assert payloads is not None, "a part that learns has a drafter"
    states = {family: getattr(parts, family).state_dict() for family in ("drafter", "controller")}
    provenance = {
        **{key: artifact.provenance.get(key) for key in ("study", "runtime", "dtype")},
        "command": shlex.join(sys.orig_argv),
        "config": {"served": str(artifact.folder)},
    }
    return save_artifact(
        folder,
        CompositionArtifact.kind,
        {**payloads, **state_payloads(states)},
        provenance=provenance,
        fingerprint=fingerprint(pair.target, pair.tokenizer),
        name=Path(folder).name,
    ).folder
