"""``artifact.json``: the kind and origin of an artifact, and the hashes of its payloads.

The hashes detect damage but do not prove authorship: anyone who changes a payload can also update its hash.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

from pydantic import AfterValidator, BaseModel, Field
from pydantic_core import from_json

from specexp.artifacts.validation import ArtifactError, validated
from specexp.base.checked import distinct
from specexp.base.messages import restated

SCHEMA_VERSION = 1
MANIFEST = "artifact.json"
PAYLOAD_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*\.(json|safetensors)")

MOST_BYTES = {"json": 4 * 2**20, "safetensors": 512 * 2**20}
"""Maximum size of an artifact's files, by extension."""


class _Metric(BaseModel, extra="allow"):
    value: float
    low: float | None = None
    high: float | None = None


class Provenance(BaseModel, extra="allow"):
    """The origin of an artifact. Additional fields are allowed. Older artifacts lack ``runtime`` and ``dtype``."""

    study: str | None
    trial: int | None
    command: str | None
    git_commit: str | None
    packages: dict[str, str]
    device: str | None
    config: dict[str, Any] | None  # resolved
    metrics: dict[str, _Metric]
    runtime: str | None = None  # of the target: ``eager``, ``compiled``, ``packed``, ``graphed`` or ``llama.cpp``
    dtype: str | None = None


class Payload(BaseModel, extra="forbid"):
    """The recorded hash and size of a payload."""

    sha256: str
    bytes: Annotated[int, Field(ge=0)]


def _plain_name(name: str) -> str:
    if not PAYLOAD_NAME.fullmatch(name) or name == MANIFEST:
        raise ValueError("must be a plain *.json or *.safetensors name")
    return name


class Manifest(BaseModel):
    """The checked contents of an ``artifact.json``."""

    kind: str
    name: str
    created: str  # in UTC, ISO 8601
    provenance: Provenance
    # fields of the tokenizer and the model; empty if none were recorded
    fingerprint: dict[Literal["tokenizer", "model"], dict[str, str | int | float | bool | None]]
    # by file name
    payloads: dict[Annotated[str, AfterValidator(_plain_name)], Payload]

    @classmethod
    def from_json(cls, data: bytes, label: str) -> Manifest:
        """Parse and check ``artifact.json``. Errors name the folder (``label``) and the field."""
        where = f"{label}: {MANIFEST}"
        fields = read_json(data, where)
        version = fields.get("schema_version", 0) if isinstance(fields, dict) else SCHEMA_VERSION
        if version is True or version != SCHEMA_VERSION:
            raise ArtifactError(f"{where}: schema_version must be {SCHEMA_VERSION}, got {version}")
        manifest: Manifest = validated(cls, fields, where)
        for name, entry in manifest.payloads.items():
            if entry.bytes > (most := most_bytes(name)):
                raise ArtifactError(f"{where}: payloads.{name}.bytes must be <= {most}, got {entry.bytes}")
        recorded = fields.pop("sha256", None)
        try:
            same = sha256(canonical_json(fields)) == recorded
        except (ValueError, RecursionError) as error:
            raise ArtifactError(f"{where} has a value that JSON does not allow ({error})") from error
        if not same:
            raise ArtifactError(f"{where}: sha256 does not match the other fields: the file is changed or damaged")
        return manifest


def manifest_json(fields: Mapping[str, Any]) -> bytes:
    """Return the contents of an ``artifact.json``: the fields, the schema version, and a hash of both."""
    whole: dict[str, Any] = {"schema_version": SCHEMA_VERSION, **fields}
    whole["sha256"] = sha256(canonical_json(whole))
    return (json.dumps(whole, indent=2, allow_nan=False) + "\n").encode()


def sha256(data: bytes) -> str:
    """Return the SHA-256 hash in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def canonical_json(value: Any) -> bytes:
    """Return the canonical form of a value for hashing, with sorted keys and without spaces."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def most_bytes(file: str) -> int:
    """Return the maximum size, in bytes, of the artifact file with this name."""
    return MOST_BYTES[file.rpartition(".")[2]]


def read_json(data: bytes, where: str) -> Any:
    """Parse UTF-8 JSON. Errors refer to the file as ``where``.

    Raises ArtifactError if the JSON is too large, nested too deeply, invalid, or repeats a key.
    """
    if len(data) > MOST_BYTES["json"]:
        raise ArtifactError(f"{where} has {len(data)} bytes; at most {MOST_BYTES['json']} are allowed")
    with restated(ValueError, lambda error: ArtifactError(f"{where} {_why_unread(str(error))}")):
        from_json(data)  # refuses deep nesting, in which json.loads would recurse
        return json.loads(data, object_pairs_hook=distinct, parse_constant=_no_constant)


def _why_unread(error: str) -> str:
    return "is nested too deeply" if "recursion limit" in error else f"is not JSON ({error})"


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number in JSON")


def read_bytes(path: Path, where: str, most: int = MOST_BYTES["json"]) -> bytes:
    """Read a file from an artifact's folder. Errors refer to it as ``where``.

    Raises ArtifactError if the file is missing, a symbolic link, not a regular file, or larger than ``most`` bytes.
    """
    # a link that replaces the file after the check is not followed, and opening a named pipe does not block
    flags = os.O_RDONLY | sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_BINARY"))
    try:
        if path.is_symlink():
            raise ArtifactError(f"{where} is a symbolic link; a plain file is expected")
        with open(os.open(path, flags), "rb") as file:  # noqa: PTH123
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise ArtifactError(f"{where} cannot be read (not a plain file)")
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
