"""Artifacts: the results of studies as folders, read into plain values.

A folder with ``artifact.json`` (schema version, kind, provenance, metrics with intervals, fingerprint of
tokenizer and model, hash of every payload) and its payloads, JSON or safetensors. Importing this package
imports neither torch nor transformers. :mod:`specexp.config.artifacts` makes the parts that one records.
"""

from specexp.artifacts.artifact import Artifact
from specexp.artifacts.error import ArtifactError
from specexp.artifacts.fingerprint import Fingerprint, fingerprint
from specexp.artifacts.store import kind_for, kind_named, read_artifact, value_of, write_artifact
from specexp.artifacts.versions import set_alias

__all__ = [
    "Artifact",
    "ArtifactError",
    "Fingerprint",
    "fingerprint",
    "kind_for",
    "kind_named",
    "read_artifact",
    "set_alias",
    "value_of",
    "write_artifact",
]
