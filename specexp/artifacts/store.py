"""Writes and reads artifacts. Writing performs the same checks as reading.

A folder such as ``artifacts/tree_shape`` holds versions ``v1``, ``v2`` and so on. An alias such as ``best`` is a small
file ``best.json`` with ``{"version": "v2"}``, which every operating system can replace atomically. The path of an
alias, ``artifacts/tree_shape/best``, works wherever an artifact is loaded; ``/best`` may be omitted.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from secrets import token_hex
from typing import Any

import numpy as np

from specexp.artifacts.artifact import Artifact
from specexp.artifacts.atomic_write import atomic_write
from specexp.artifacts.environment import complete_provenance
from specexp.artifacts.files import READERS
from specexp.artifacts.fingerprint import Fingerprint
from specexp.artifacts.kinds import classes_with
from specexp.artifacts.manifest import (
    MANIFEST,
    MOST_BYTES,
    Manifest,
    canonical_json,
    manifest_json,
    read_bytes,
    read_json,
    sha256,
)
from specexp.artifacts.parts import init_args_of
from specexp.artifacts.validation import ArtifactError
from specexp.base.messages import did_you_mean, restated, type_and_line

BEST = "best"
BEST_TREE = "best-tree"
"""The alias of the fastest composition that drafts, even if plain decoding is faster."""
_VERSION = re.compile(r"v[1-9][0-9]*")
_ALIAS = re.compile(r"[a-z][a-z0-9_-]*")


def all_kinds() -> dict[str, type[Artifact]]:
    """Return the classes of all kinds, keyed by name."""
    return classes_with("specexp.artifacts.kinds", "kind")


def write_artifact(
    folder: str | Path,
    kind: str,
    payloads: Mapping[str, Any],
    provenance: Mapping[str, Any] | None = None,
    fingerprint: Fingerprint | None = None,
    *,
    name: str | None = None,
    aliases: Iterable[str] = ("best",),
    check: Callable[[Artifact], object] = lambda artifact: None,
) -> Artifact:
    """Write the next version in ``folder``, completely or not at all, point the aliases to it, and read it back.

    Args:
        payloads: File contents by file name, as the kind requires: JSON values, or arrays by name for safetensors.
            Most kinds also take ``parts.json``: ``{"drafter": {"class_path": ..., "init_args": {...}}, ...}``.
        provenance: Any of study, trial, command, device, config, ``metrics`` (maps a name to a number or to
            ``{"value", "low", "high"}``) and any other fields. Commit and package versions are added.
        fingerprint: The result of :func:`specexp.artifacts.fingerprint`; without it, loading does not compare models.
        name: Name of the artifact; defaults to the folder's name.
        aliases: Aliases that will point to this version.
        check: Function called with the artifact before anything is written; its exceptions propagate.

    Raises:
        ArtifactError: The content does not match the kind, or it cannot be written; no files are left behind.
    """
    folder = Path(folder)
    chosen = kind_named(kind, f"{folder}: ")
    data = {file: _encode(file, content, f"{folder}: {file}") for file, content in payloads.items()}
    fields = {
        "kind": kind,
        "name": name or folder.name,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "fingerprint": dict(fingerprint or {}),
        "payloads": {file: {"sha256": sha256(found), "bytes": len(found)} for file, found in data.items()},
    }
    try:
        fields["provenance"] = complete_provenance(provenance or {})
        data[MANIFEST] = manifest_json(fields)
    except (TypeError, ValueError) as error:
        raise ArtifactError(f"{folder}: provenance or fingerprint is not JSON ({error})") from error
    manifest = Manifest.from_json(data[MANIFEST], str(folder))
    _check_payload_names(chosen, manifest, folder)
    check(_decode(chosen, manifest, data, folder))  # parsed as when read, before anything is written
    version = _write_version(folder, data)
    for alias in aliases:
        set_alias(folder, alias, version.name)
    return read_artifact(version)


def read_artifact(folder: str | Path) -> Artifact:
    """Read an artifact and check its schema, kind, files, hashes and payloads. No class that it names is imported.

    ``folder`` is a version (``artifacts/tree_shape/v2``), an alias of one (``artifacts/tree_shape/best``), or the
    folder that holds the versions. Raises ArtifactError, which names the folder and the field, if anything is wrong.
    """
    folder = resolve(Path(folder))
    manifest = Manifest.from_json(_manifest_in(folder), str(folder))
    chosen = kind_named(manifest.kind, f"{folder}: {MANIFEST}: ")
    _check_payload_names(chosen, manifest, folder)
    with restated(OSError, lambda error: ArtifactError(f"{folder} cannot be read ({error.strerror or error})")):
        undeclared = sorted({*os.listdir(folder)} - {MANIFEST, *manifest.payloads})  # noqa: PTH208
    if undeclared:
        allowed = ", ".join(manifest.payloads)
        raise ArtifactError(f"{folder}: {undeclared[0]} is not declared in {MANIFEST}; allowed are {allowed}")
    data = {}
    for file, entry in manifest.payloads.items():
        data[file] = read_bytes(folder / file, f"{folder}: payload {file}", entry.bytes)
        if sha256(data[file]) != entry.sha256:
            raise ArtifactError(f"{folder}: payload {file} is changed or damaged: its sha256 differs")
    return _decode(chosen, manifest, data, folder)


def value_of(kind: str, path: str | Path) -> Any:
    """Return the value that a :class:`~specexp.base.checked.Reference` refers to. Do not modify it: it may be cached.

    ``kind`` is a kind of artifact or a key of :data:`~specexp.artifacts.files.READERS`, and ``path`` a folder as for
    :func:`read_artifact` or a file. Raises ArtifactError if it cannot be read or is of another kind.
    """
    # static-tree is both: a folder is an artifact, and a file is another project's tree
    if kind in READERS and (kind not in all_kinds() or Path(path).is_file()):
        return READERS[kind](Path(path))
    folder = resolve(Path(path), kind_named(kind).written)
    return _value_in(kind, folder, _manifest_in(folder))


# A sweep reads one artifact thousands of times. The manifest is part of the key because it holds the payloads' hashes.
@lru_cache(maxsize=32)
def _value_in(kind: str, folder: Path, manifest: bytes) -> Any:
    artifact = read_artifact(folder)
    if artifact.kind != kind:
        raise ArtifactError(f"{folder}: kind must be {kind!r} here, got {artifact.kind!r}")
    return artifact.value


def kind_named(kind: str, where: str = "") -> type[Artifact]:
    """Return the class of a kind. Raises an ArtifactError that begins with ``where`` if the kind is unknown."""
    if kind not in all_kinds():
        raise ArtifactError(f"{where}kind {kind!r} is unknown{did_you_mean(kind, all_kinds())}")
    return all_kinds()[kind]


def kind_for(family: str, parts: Mapping[str, Any]) -> type[Artifact] | None:
    """Return the kind that stores the learned state of a drafter or controller, or None if there is none."""
    for kind in all_kinds().values():
        if kind.learned == family and init_args_of(parts.get(family), kind.made_by) is not None:
            return kind
    return None


def _manifest_in(folder: Path) -> bytes:
    return read_bytes(folder / MANIFEST, f"{folder}: {MANIFEST}")


def _check_payload_names(kind: type[Artifact], manifest: Manifest, folder: Path) -> None:
    for file in kind.required:
        if file not in manifest.payloads:
            raise ArtifactError(f"{folder}: payloads has no {file!r}, which a {kind.kind} needs")
    for file in manifest.payloads:
        if file not in kind.files():
            hint = did_you_mean(file, kind.files())
            raise ArtifactError(f"{folder}: payloads has {file!r}, which a {kind.kind} does not have{hint}")


def _decode(kind: type[Artifact], manifest: Manifest, data: Mapping[str, bytes], folder: Path) -> Artifact:
    content = {file: _parse(file, data[file], f"{folder}: {file}") for file in manifest.payloads}
    try:
        return kind(manifest, content, folder)
    except ArtifactError:
        raise
    except Exception as error:  # a value that passed the kind's checks but still breaks its constructor
        raise ArtifactError(f"{folder} cannot be read as a {kind.kind} ({type_and_line(error)})") from error


def _parse(file: str, data: bytes, where: str) -> Any:
    if file.endswith(".json"):
        return read_json(data, where)
    # A safetensors file begins with the length of its header, which is JSON.
    header, most = int.from_bytes(data[:8], "little"), MOST_BYTES["json"]
    if header > most:
        raise ArtifactError(f"{where} has a header of {header} bytes; at most {most} are allowed")
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        return load(data)
    except (SafetensorError, KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise ArtifactError(f"{where} is not a complete safetensors file ({error})") from error


def _encode(file: str, content: Any, where: str) -> bytes:
    try:
        if file.endswith(".json"):
            return canonical_json(content) + b"\n"
        from safetensors.numpy import save

        # safetensors writes the raw memory of an array, which must be contiguous
        return save({name: np.ascontiguousarray(array) for name, array in content.items()})
    except (TypeError, ValueError, AttributeError, RecursionError) as error:
        raise ArtifactError(f"{where} cannot be written ({error})") from error


def resolve(path: Path, written: str = Artifact.written) -> Path:
    """Return the folder with ``artifact.json``: the path itself, an alias's version, or the best version.

    ``written`` is a clause on the command that writes such artifacts, for an error message.
    """
    try:
        if (path / MANIFEST).exists():
            return path
        if path.is_dir():
            if (path / f"{BEST}.json").is_file():
                return _target(path, BEST)
            if known := _names_in(path):
                raise ArtifactError(f"{path}: {BEST}.json is missing; name one of {', '.join(known)}")
            usual = Path("artifacts", path.name, BEST)
            advice = f"; did you mean {str(usual)!r}?" if usual.with_suffix(".json").exists() else ""
            advice = ": it is a model, not an artifact" if (path / "config.json").exists() else advice
            raise ArtifactError(f"{path}: {MANIFEST} is missing{advice}")
        if _ALIAS.fullmatch(path.name) and (path.parent / f"{path.name}.json").is_file():
            return _target(path.parent, path.name)
        known = _names_in(path.parent)
    except ArtifactError:
        raise
    except (OSError, ValueError) as error:  # ValueError: a null byte in the path
        raise ArtifactError(f"{str(path)!r} cannot be read as an artifact folder ({error})") from error
    hint = f"; {path.parent} has {', '.join(known)}" if known else f"; {written}"
    if path.is_file():
        inside = {MANIFEST: path.parent, **{f"{name}.json": path.parent / name for name in known}}.get(path.name)
        hint = ", it is a file" if inside is None else f", it is a file; name {inside}"
    raise ArtifactError(f"{path}: there is no such artifact folder{hint}")


def versions(folder: Path) -> list[str]:
    """Return the names of the versions in a folder, ``v1``, ``v2``, ..., in order."""
    if not folder.is_dir():
        return []
    names = [entry.name for entry in folder.iterdir() if _VERSION.fullmatch(entry.name) and entry.is_dir()]
    return sorted(names, key=lambda name: int(name[1:]))


def _names_in(folder: Path) -> list[str]:
    """Return the names of aliases and versions; empty if there are no versions."""
    known = versions(folder)
    return sorted(entry.stem for entry in folder.glob("*.json")) + known if known else []


def set_alias(folder: Path, alias: str, version: str) -> None:
    """Atomically point ``folder/alias`` to ``folder/version``.

    Raises ArtifactError if the alias is not a plain lower-case name, the version does not exist, or writing fails.
    """
    if not _ALIAS.fullmatch(alias) or _VERSION.fullmatch(alias):
        raise ArtifactError(f"{folder}: an alias must be a lower-case name such as 'best', got {alias!r}")
    if version not in versions(folder):
        raise ArtifactError(f"{folder}: there is no version {version!r} for the alias {alias!r}")
    file = folder / f"{alias}.json"
    with restated(OSError, lambda error: ArtifactError(f"{file} cannot be written ({error.strerror or error})")):
        atomic_write(file, canonical_json({"version": version}) + b"\n")


def _write_version(folder: Path, files: Mapping[str, bytes]) -> Path:
    """Write the folder of the next version atomically, and return it."""
    staging = folder / f".writing-{token_hex(8)}"  # on the same file system, so that it can be renamed
    try:
        staging.mkdir(parents=True)
        for name, data in files.items():
            (staging / name).write_bytes(data)
        while True:  # another process may take a version between the listing and the rename
            taken = versions(folder)
            version = folder / f"v{int(taken[-1][1:]) + 1 if taken else 1}"
            try:
                return staging.rename(version)
            except OSError:
                if not version.exists():
                    raise
    except OSError as error:
        raise ArtifactError(f"{folder}: it cannot be written ({error.strerror or error})") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _target(folder: Path, alias: str) -> Path:
    file = folder / f"{alias}.json"
    content = read_json(read_bytes(file, str(file)), str(file))
    version = content.get("version") if isinstance(content, dict) else None
    if not isinstance(version, str) or not _VERSION.fullmatch(version):
        raise ArtifactError(f'{file}: version must be a version such as "v1", got {version!r}')
    if (folder / version).is_symlink():
        raise ArtifactError(f"{folder / version} is a symbolic link; a plain folder is expected")
    if not (folder / version).is_dir():
        raise ArtifactError(f"{file}: version is {version}, which {folder} does not have")
    return folder / version
