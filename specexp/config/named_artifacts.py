"""Artifacts given by name: ``wandb:entity/project/name:alias`` in W&B, or ``stdlib:eagle`` in specexp."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specexp.artifacts.manifest import MANIFEST, PAYLOAD_NAME, most_bytes
from specexp.artifacts.validation import ArtifactError
from specexp.base.messages import did_you_mean, first_line
from specexp.models.sources import PAIRS, embedded_artifacts
from specexp.tracking.mode import logged_in

PREFIX = "wandb:"
_REFERENCE = re.compile(r"wandb:([^/:\s]+/){0,2}[^/:\s]+:[^/:\s]+")


def local(path_or_reference: str | Path) -> Path:
    """Return the local path of an artifact. W&B artifacts are downloaded; embedded ones ship with specexp."""
    given = str(path_or_reference)
    if given.startswith(PREFIX):
        return download(given)
    known = embedded_artifacts(given.partition(":")[0])
    if known and given not in known and not Path(given).exists():
        if (PAIRS / given.replace(":", "/") / "config.json").is_file():
            raise ArtifactError(f"{given} is a draft head, not an artifact: python -m specexp.export {given} --to hf")
        hint = did_you_mean(given, known) if ":" in given else f"; allowed are {', '.join(known)}"
        raise ArtifactError(f"{given}: there is no such embedded artifact{hint}")
    return known.get(given, Path(given))


def download(reference: str) -> Path:
    """Download an artifact into W&B's own artifact folder, once per version, and return its path.

    Raises:
        ArtifactError: The reference is malformed, W&B is offline or not logged in, the artifact has unexpected files,
            or the download fails.
    """
    if not _REFERENCE.fullmatch(reference):
        raise ArtifactError(f"{reference!r} must be of the form wandb:entity/project/name:alias")
    mode = os.environ.get("WANDB_MODE", "online")
    if mode != "online":
        raise ArtifactError(
            f"{reference} needs W&B online, but WANDB_MODE is {mode!r}: unset WANDB_MODE, or give the artifact's folder"
        )
    if not logged_in():
        raise ArtifactError(f"{reference} needs a W&B account: run `wandb login`, or use the artifact's folder")
    import wandb

    try:
        artifact = wandb.Api().artifact(reference.removeprefix(PREFIX))
        _check_entries(artifact.manifest.entries, reference)
        return Path(artifact.download())
    except ArtifactError:
        raise
    except Exception as error:  # wandb raises its own errors, the transport's, and bare ValueErrors
        raise ArtifactError(f"{reference} cannot be fetched from W&B ({first_line(error)})") from error


def _check_entries(entries: Mapping[str, Any], reference: str) -> None:
    """Raise an ArtifactError for unexpected files, before W&B downloads anything."""
    for name, entry in entries.items():
        where = f"{reference}: {name!r}"
        if name != MANIFEST and not PAYLOAD_NAME.fullmatch(name):
            raise ArtifactError(f"{where} must be {MANIFEST} or a plain *.json or *.safetensors name")
        if entry.ref is not None:
            raise ArtifactError(f"{where} must be a file of the artifact, got a reference to {entry.ref!r}")
        if entry.size is not None and entry.size > most_bytes(name):
            raise ArtifactError(f"{where} must have at most {most_bytes(name)} bytes, got {entry.size}")
