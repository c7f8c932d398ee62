"""Artifacts: the results of studies as folders, read into plain values.

A folder with ``artifact.json`` (schema version, kind, provenance, metrics with intervals, fingerprint of
tokenizer and model, hash of every payload) and its payloads, JSON or safetensors. Importing this package
imports neither torch nor transformers. :mod:`specexp.config.artifacts` makes the parts that one records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from specexp.artifacts import kinds
from specexp.artifacts.artifact import Artifact
from specexp.artifacts.error import ArtifactError
from specexp.artifacts.fingerprint import Fingerprint, fingerprint
from specexp.artifacts.plugins import names_in
from specexp.artifacts.store import kind_for, kind_named, read_artifact, value_of, write_artifact
from specexp.artifacts.versions import set_alias

if TYPE_CHECKING:
    StudyKind = str
    ControllerKind = str
else:  # what lies in the folder is what a configuration may name
    StudyKind = Literal[tuple(names_in(kinds, "def payloads_of("))]
    ControllerKind = Literal[tuple(names_in(kinds, 'learned = "controller"'))]

__all__ = [
    "Artifact",
    "ArtifactError",
    "ControllerKind",
    "Fingerprint",
    "StudyKind",
    "fingerprint",
    "kind_for",
    "kind_named",
    "read_artifact",
    "set_alias",
    "value_of",
    "write_artifact",
]
