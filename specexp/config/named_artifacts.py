"""Artifacts that are named where a path may stand: of W&B, ``wandb:entity/project/name:alias``, and embedded ones."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specexp.artifacts.manifest import MANIFEST, PAYLOAD_NAME, most_bytes
from specexp.artifacts.validation import ArtifactError
from specexp.core.messages import first_line
from specexp.models.sources import embedded_artifact
from specexp.tracking.mode import logged_in

PREFIX = "wandb:"
_REFERENCE = re.compile(r"wandb:([^/:\s]+/){0,2}[^/:\s]+:[^/:\s]+")


def local(path_or_reference: str | Path) -> Path:
    """The path; where a reference stands in its place, that of the artifact downloaded from W&B, or of one that is
    embedded beside its models, such as ``stdlib:eagle``.

    Raises:
        ArtifactError: as :func:`download`.
    """
    given = str(path_or_reference)
    return download(given) if given.startswith(PREFIX) else embedded_artifact(given) or Path(given)


def download(reference: str) -> Path:
    """Download the artifact into W&B's own artifact folder, once for each version, and give the path.

    What would be downloaded is looked at first: plain files of an artifact only, no references to other places.

    Raises:
        ArtifactError: the reference is malformed, W&B is switched off, nobody is logged in, or it cannot be
            fetched.
    """
    if not _REFERENCE.fullmatch(reference):
        raise ArtifactError(f"{reference!r} is no reference; wandb:entity/project/name:alias is expected")
    mode = os.environ.get("WANDB_MODE", "online")
    if mode != "online":
        raise ArtifactError(
            f"{reference} needs W&B online and WANDB_MODE is {mode!r}: use the artifact's own folder"
        )
    if not logged_in():
        raise ArtifactError(
            f"{reference} needs a W&B account: run `wandb login`, or use the artifact's own folder"
        )
    import wandb

    try:
        artifact = wandb.Api().artifact(reference.removeprefix(PREFIX))
        _check_entries(artifact.manifest.entries, reference)
        return Path(artifact.download())
    except ArtifactError:
        raise
    except Exception as error:  # wandb raises its own, the transport's and plain ValueErrors
        raise ArtifactError(f"{reference} cannot be fetched from W&B ({first_line(error)})") from error


def _check_entries(entries: Mapping[str, Any], reference: str) -> None:
    """Refuse what is no file of an artifact, before W&B writes it or asks another store for it."""
    for name, entry in entries.items():
        if name != MANIFEST and not PAYLOAD_NAME.fullmatch(name):
            raise ArtifactError(
                f"{reference} holds {name!r}; {MANIFEST} and plain *.json or *.safetensors names are allowed"
            )
        if entry.ref is not None:
            raise ArtifactError(f"{reference}: {name} refers to {entry.ref!r}; a file of its own is expected")
        if entry.size is not None and entry.size > most_bytes(name):
            raise ArtifactError(
                f"{reference}: {name} has {entry.size} bytes; at most {most_bytes(name)} are allowed"
            )
