"""``artifact.json``: what an artifact is, where it comes from, and the hashes of its payloads.

The hashes tell that an artifact arrived as it was written. They do not tell who wrote it: whoever changes a payload can
write its hash anew.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

from specexp.artifacts.error import ArtifactError
from specexp.core.strict_json import distinct

SCHEMA_VERSION = 1
MANIFEST = "artifact.json"
PAYLOAD_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*\.(json|safetensors)")
_SHA256 = re.compile(r"[0-9a-f]{64}")

MOST_BYTES = {"json": 4 * 2**20, "safetensors": 512 * 2**20}
"""Largest file of an artifact by its ending."""
MOST_LEVELS = 64
"""Deepest nesting of a JSON file."""

# A text, ended or not, or a bracket outside one; possessive, so that no input takes more than linear time.
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|[\[\]{}]', re.DOTALL)
_PROVENANCE: dict[str, tuple[type, ...]] = {
    "study": (str, type(None)),
    "trial": (int, type(None)),
    "command": (str, type(None)),
    "git_commit": (str, type(None)),
    "packages": (dict,),
    "device": (str, type(None)),
    "config": (dict, type(None)),
    "metrics": (dict,),
}
_LATER = {"runtime": (str, type(None)), "dtype": (str, type(None))}
"""Fields of the provenance that older artifacts do not have."""


@dataclass(frozen=True)
class Manifest:
    """The checked content of an ``artifact.json``.

    Attributes:
        kind: e.g. ``static-tree``.
        name: what the artifact is called, by default its study.
        created: UTC time, ISO 8601.
        provenance: study, trial, command, git commit, package versions, device, resolved config, metrics; runtime
            (``eager``, ``compiled`` or ``llama.cpp``) and dtype of the target as it was measured.
        fingerprint: fields of the tokenizer and the model, by section; empty where none was recorded.
        payloads: file name to ``{"sha256": ..., "bytes": ...}``.
    """

    kind: str
    name: str
    created: str
    provenance: dict[str, Any]
    fingerprint: dict[str, dict[str, Any]]
    payloads: dict[str, dict[str, Any]]

    def to_json(self) -> bytes:
        """The file: the fields, the schema version, and the hash of all of them."""
        fields: dict[str, Any] = {"schema_version": SCHEMA_VERSION, **asdict(self)}
        fields["sha256"] = sha256(canonical_json(fields))
        return (json.dumps(fields, indent=2, allow_nan=False) + "\n").encode()

    @classmethod
    def from_json(cls, data: bytes, label: str) -> Manifest:
        """Check and read the file.

        Args:
            data: its content.
            label: the folder, for messages.

        Raises:
            ArtifactError: one sentence that names the folder and the field.
        """
        where = f"{label}: {MANIFEST}"
        fields = read_json(data, where)
        if not isinstance(fields, dict):
            raise ArtifactError(f"{where} holds {_type_name(fields)}; an object is expected")
        version = _field(fields, "schema_version", (int,), where)
        if version != SCHEMA_VERSION:
            raise ArtifactError(
                f"{where}: schema_version is {version}; this specexp reads version {SCHEMA_VERSION}"
            )
        manifest = cls(
            kind=_field(fields, "kind", (str,), where),
            name=_field(fields, "name", (str,), where),
            created=_field(fields, "created", (str,), where),
            provenance=_field(fields, "provenance", (dict,), where),
            fingerprint=_field(fields, "fingerprint", (dict,), where),
            payloads=_field(fields, "payloads", (dict,), where),
        )
        manifest._check_provenance(where)
        manifest._check_fingerprint(where)
        manifest._check_payloads(where)
        recorded = _field(fields, "sha256", (str,), where)
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

    def _check_provenance(self, where: str) -> None:
        for key, types in _PROVENANCE.items():
            _field(self.provenance, key, types, where, "provenance.")
        for key in _LATER.keys() & self.provenance.keys():
            _field(self.provenance, key, _LATER[key], where, "provenance.")
        for package, version in self.provenance["packages"].items():
            if not isinstance(version, str):
                _wrong(where, f"provenance.packages.{package}", version, "a string")
        for name, metric in self.provenance["metrics"].items():
            field = f"provenance.metrics.{name}"
            if not isinstance(metric, dict):
                _wrong(where, field, metric, "an object with a value")
            if not _is_number(metric.get("value")):
                _wrong(where, f"{field}.value", metric.get("value"), "a number")
            for end in ("low", "high"):
                if metric.get(end) is not None and not _is_number(metric[end]):
                    _wrong(where, f"{field}.{end}", metric[end], "a number or null")

    def _check_fingerprint(self, where: str) -> None:
        for section, entries in self.fingerprint.items():
            if section not in ("tokenizer", "model"):
                raise ArtifactError(f"{where}: fingerprint has the unknown section {section!r}")
            if not isinstance(entries, dict):
                _wrong(where, f"fingerprint.{section}", entries, "an object")
            for key, value in entries.items():
                if isinstance(value, (dict, list)):
                    _wrong(where, f"fingerprint.{section}.{key}", value, "a single value")

    def _check_payloads(self, where: str) -> None:
        for name, entry in self.payloads.items():
            field = f"payloads.{name}"
            if not PAYLOAD_NAME.fullmatch(name) or name == MANIFEST:
                raise ArtifactError(
                    f"{where}: payloads names {name!r}; a plain *.json or *.safetensors name is expected"
                )
            if not isinstance(entry, dict):
                _wrong(where, field, entry, "an object")
            digest = _field(entry, "sha256", (str,), where, f"{field}.")
            if not _SHA256.fullmatch(digest):
                _wrong(where, f"{field}.sha256", digest, "64 hexadecimal digits")
            size, most = _field(entry, "bytes", (int,), where, f"{field}."), most_bytes(name)
            if not 0 <= size <= most:
                raise ArtifactError(f"{where}: {field}.bytes is {size}; 0 to {most} are allowed")


def sha256(data: bytes) -> str:
    """Hexadecimal SHA-256."""
    return hashlib.sha256(data).hexdigest()


def canonical_json(value: Any) -> bytes:
    """One spelling for one value: what hashes are taken of."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def most_bytes(file: str) -> int:
    """Largest size of a file of an artifact, by its name."""
    return MOST_BYTES[file.rpartition(".")[2]]


def read_json(data: bytes, where: str) -> Any:
    """Parse UTF-8 JSON; its size and depth are looked at first.

    Raises:
        ArtifactError: it is none, gives a key twice, or is larger or deeper than allowed; ``where`` names the file.
    """
    if len(data) > MOST_BYTES["json"]:
        raise ArtifactError(f"{where} has {len(data)} bytes; at most {MOST_BYTES['json']} are allowed")
    check_depth(data, where)
    try:
        return json.loads(data.decode("utf-8"), object_pairs_hook=distinct, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise ArtifactError(f"{where} is not JSON ({error})") from error


def check_depth(data: bytes, where: str) -> None:
    """Refuse JSON nested deeper than allowed, before it is parsed.

    Raises:
        ArtifactError: one sentence with the allowed depth.
    """
    depth = 0
    for token in _TOKEN.finditer(data):
        first = token.group()[:1]
        depth += 1 if first in b"[{" else -1 if first in b"]}" else 0
        if depth > MOST_LEVELS:
            raise ArtifactError(
                f"{where} is not JSON of an artifact (nested deeper than {MOST_LEVELS} levels)"
            )


def read_bytes(path: Path, where: str, most: int = MOST_BYTES["json"]) -> bytes:
    """Read a file of an artifact: a plain file, no link, and none larger than allowed.

    Args:
        path: the file.
        where: names it in messages.
        most: largest size in bytes.

    Raises:
        ArtifactError: it is missing, a link, no plain file or too large, or cannot be read.
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


def _field(fields: Mapping[str, Any], key: str, types: tuple[type, ...], where: str, prefix: str = "") -> Any:
    if key not in fields:
        raise ArtifactError(f"{where} has no field {prefix + key!r}")
    value = fields[key]
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        _wrong(where, prefix + key, value, " or ".join(_NAMES[each] for each in types))
    return value


def _wrong(where: str, field: str, value: Any, expected: str) -> NoReturn:
    raise ArtifactError(f"{where}: {field} is {_type_name(value)}; {expected} is expected")


def _type_name(value: Any) -> str:
    return "true or false" if isinstance(value, bool) else _NAMES.get(type(value), repr(value))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


_NAMES: dict[type, str] = {
    str: "a string",
    int: "an integer",
    float: "a number",
    dict: "an object",
    list: "a list",
    type(None): "null",
}
