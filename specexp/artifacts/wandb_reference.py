"""Artifacts that W&B keeps: ``wandb:entity/project/name:alias``."""

from __future__ import annotations

import os
import re
from pathlib import Path

from specexp.artifacts.error import ArtifactError
from specexp.core.messages import first_line
from specexp.tracking.mode import logged_in

PREFIX = "wandb:"
_REFERENCE = re.compile(r"wandb:([^/:\s]+/){0,2}[^/:\s]+:[^/:\s]+")


def download(reference: str) -> Path:
    """Download the artifact into W&B's own artifact folder, once for each version, and give the path.

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
        return Path(wandb.Api().artifact(reference.removeprefix(PREFIX)).download())
    except Exception as error:  # wandb raises its own, the transport's and plain ValueErrors
        raise ArtifactError(f"{reference} cannot be fetched from W&B ({first_line(error)})") from error
