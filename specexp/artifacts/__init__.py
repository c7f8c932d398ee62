"""Artifacts: the results of studies as folders that a deployment loads.

A folder with ``artifact.json`` (schema version, kind, provenance, metrics with intervals, fingerprint of
tokenizer and model, hash of every payload) and its payloads, JSON or safetensors. Importing this package
imports neither torch nor transformers.
"""

from specexp.artifacts.artifact import Artifact
from specexp.artifacts.error import ArtifactError
from specexp.artifacts.fingerprint import Fingerprint, fingerprint
from specexp.artifacts.store import (
    load_artifact,
    save_artifact,
    value_of,
)
from specexp.artifacts.versions import set_alias
from specexp.core.parts import Parts

__all__ = [
    "Artifact",
    "ArtifactError",
    "Fingerprint",
    "Parts",
    "fingerprint",
    "load_artifact",
    "save_artifact",
    "set_alias",
    "value_of",
]
