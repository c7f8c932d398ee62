"""``artifact.json``: what an artifact is, where it comes from, and the hashes of its payloads.

The hashes show that an artifact arrived as it was written, not who wrote it: anyone who changes a payload can write its
hash anew.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from specexp.artifacts.validation import ArtifactError, validated
from specexp.core.checked import distinct

SCHEMA_VERSION = 1
MANIFEST = "artifact.json"
PAYLOAD_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*\.(json|safetensors)")

MOST_BYTES = {"json": 4 * 2**20, "safetensors": 512 * 2**20}
"""Largest file of an artifact by its ending."""
MOST_LEVELS = 64
"""Deepest nesting of a JSON file."""

# A text, ended or not, or a bracket outside one; possessive, so that no input takes more than linear time.
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|[\[\]{}]', re.DOTALL)


class _Metric(BaseModel):
    value: float
    low: float | None = None
    high: float | None = None


class _Provenance(BaseModel):
    """Fields of every provenance; ``runtime`` and ``dtype`` are missing in older artifacts."""

    study: str | None
    trial: int | None
    command: str | None
    git_commit: str | None
    packages: dict[str, str]
    device: str | None
    config: dict[str, Any] | None
    metrics: dict[str, _Metric]
    runtime: str | None = None
    dtype: str | None = None


class _Payload(BaseModel):
    model_config = ConfigDict(extra="forbid")

    sha256: str
    bytes: Annotated[int, Field(ge=0)]


def _plain_name(name: str) -> str:
    if not PAYLOAD_NAME.fullmatch(name) or name == MANIFEST:
        raise ValueError("must be a plain *.json or *.safetensors name")
    return name


class _Fields(BaseModel):
    kind: str
    name: str
    created: str
    provenance: _Provenance
    fingerprint: dict[Literal["tokenizer", "model"], dict[str, str | float | bool | None]]
    payloads: dict[Annotated[str, AfterValidator(_plain_name)], _Payload]
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """The checked content of an ``artifact.json``.

    Attributes:
        name: By default that of the study.
        created: UTC time, ISO 8601.
        provenance: Study, trial, command, git commit, package versions, device, resolved config, metrics; runtime
            (``eager``, ``compiled`` or ``llama.cpp``) and dtype of the target as it was measured.
        fingerprint: Fields of the tokenizer and the model, by section; empty if none was recorded.
        payloads: ``{"sha256": ..., "bytes": ...}`` by file name.
    """

    kind: str
    name: str
    created: str
    provenance: dict[str, Any]
    fingerprint: dict[str, dict[str, Any]]
    payloads: dict[str, dict[str, Any]]

    def to_json(self) -> bytes:
        """Return the file: the fields, the schema version, and the hash of all of them."""
        fields: dict[str, Any] = {"schema_version": SCHEMA_VERSION, **asdict(self)}
        fields["sha256"] = sha256(canonical_json(fields))
        return (json.dumps(fields, indent=2, allow_nan=False) + "\n").encode()

    @classmethod
    def from_json(cls, data: bytes, label: str) -> Manifest:
        """Check and read the file of the folder ``label``; ArtifactError with the folder and the field."""
        where = f"{label}: {MANIFEST}"
        fields = read_json(data, where)
        version = fields.get("schema_version", 0) if isinstance(fields, dict) else SCHEMA_VERSION
        if version is True or version != SCHEMA_VERSION:
            raise ArtifactError(
                f"{where}: schema_version is {version}; this specexp reads version {SCHEMA_VERSION}"
            )
        validated(_Fields, fields, where)
        manifest = cls(**{name: fields[name] for name in _Fields.model_fields if name != "sha256"})
        for name, entry in manifest.payloads.items():
            if entry["bytes"] > most_bytes(name):
                raise ArtifactError(
                    f"{where}: payloads.{name}.bytes is {entry['bytes']}; at most {most_bytes(name)} are allowed"
                )
        recorded = fields["sha256"]
        rest = {key: value for key, value in fields.items() if key != "sha256"}
        try:
            same = sha256(canonical_json(rest)) == recorded
        except (ValueError, RecursionError) as error:
            raise ArtifactError(f"{where} holds a value that JSON does not allow ({error})") from error
        if not same:
            raise ArtifactError(
                f"{where}: sha256 does not match the other fields: the file was changed or damaged"
            )
        return manifest


def sha256(data: bytes) -> str:
    """Return the hexadecimal SHA-256."""
    return hashlib.sha256(data).hexdigest()


def canonical_json(value: Any) -> bytes:
    """Return the one spelling of a value, for hashes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def most_bytes(file: str) -> int:
    """Return the largest allowed size of a file of an artifact, by its name."""
    return MOST_BYTES[file.rpartition(".")[2]]


def read_json(data: bytes, where: str) -> Any:
    """Parse UTF-8 JSON of an artifact, whose size and depth are checked first; raises as :func:`parse_json`."""
    if len(data) > MOST_BYTES["json"]:
        raise ArtifactError(f"{where} has {len(data)} bytes; at most {MOST_BYTES['json']} are allowed")
    check_depth(data, where)
    return parse_json(data, where)


def parse_json(data: bytes, where: str) -> Any:
    """Parse UTF-8 JSON; ArtifactError if it is invalid or repeats a key, with the file's name ``where``."""
    try:
        return json.loads(data.decode("utf-8"), object_pairs_hook=distinct, parse_constant=_no_constant)
    except RecursionError as error:
        raise ArtifactError(f"{where} is nested too deep") from error
    except ValueError as error:
        raise ArtifactError(f"{where} is not JSON ({error})") from error


def check_depth(data: bytes, where: str) -> None:
    """Raise an ArtifactError if JSON is nested deeper than allowed, before it is parsed."""
    depth = 0
    for token in _TOKEN.finditer(data):
        first = token.group()[:1]
        depth += 1 if first in b"[{" else -1 if first in b"]}" else 0
        if depth > MOST_LEVELS:
            raise ArtifactError(f"{where} is nested deeper than {MOST_LEVELS} levels")


def read_bytes(path: Path, where: str, most: int = MOST_BYTES["json"]) -> bytes:
    """Read a file of an artifact; ArtifactError if it is missing, a link, not a plain file or larger than ``most``.

    ``where`` names it in messages.
    """
    flags = os.O_RDONLY | sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_BINARY"))
    try:
        if path.is_symlink():
            raise ArtifactError(f"{where} is a symbolic link; a plain file is expected")
        with open(os.open(path, flags), "rb") as file:  # noqa: PTH123
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise ArtifactError(f"{where} cannot be read (no plain file)")
            if status.st_size > most:
                raise ArtifactError(f"{where} has {status.st_size} bytes; at most {most} are allowed")
            return file.read(most)
    except ArtifactError:
        raise
    except FileNotFoundError as error:
        raise ArtifactError(f"{where} is missing") from error
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ArtifactError(f"{where} cannot be read ({reason})") from error


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")
