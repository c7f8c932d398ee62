"""Artifacts: the results of studies, stored in folders and read as plain values.

An artifact is a folder with ``artifact.json`` and payload files in JSON or safetensors. ``artifact.json`` holds the
schema version, kind, provenance, metrics with intervals, tokenizer and model fingerprint, and a hash of every payload.
This package imports neither torch nor transformers; :mod:`specexp.config.artifacts` constructs the recorded parts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from specexp.artifacts.artifact import Artifact as Artifact
from specexp.artifacts.fingerprint import Fingerprint as Fingerprint, fingerprint as fingerprint
from specexp.artifacts.store import (
    all_kinds as all_kinds,
    kind_for as kind_for,
    kind_named as kind_named,
    read_artifact as read_artifact,
    set_alias as set_alias,
    value_of as value_of,
    write_artifact as write_artifact,
)
from specexp.artifacts.validation import ArtifactError as ArtifactError

if TYPE_CHECKING:
    StudyKind = str
    ControllerKind = str
else:  # kinds that a configuration may name
    StudyKind = Literal[tuple(name for name, kind in all_kinds().items() if kind.of_studies)]
    ControllerKind = Literal[tuple(name for name, kind in all_kinds().items() if kind.learned == "controller")]
