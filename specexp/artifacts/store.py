"""Writing and reading artifacts; whatever is written was first read back by the reader."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from specexp.artifacts import files, kinds
from specexp.artifacts.artifact import Artifact
from specexp.artifacts.error import ArtifactError
from specexp.artifacts.fingerprint import Fingerprint
from specexp.artifacts.manifest import (
    MANIFEST,
    MOST_BYTES,
    Manifest,
    canonical_json,
    check_depth,
    most_bytes,
    read_bytes,
    read_json,
    sha256,
)
from specexp.artifacts.parts import init_args_of
from specexp.artifacts.plugins import class_in, names_in
from specexp.artifacts.provenance import complete_provenance
from specexp.artifacts.versions import resolve, set_alias, write_version
from specexp.core.messages import did_you_mean, type_and_line


def write_artifact(
    folder: str | Path,
    kind: str,
    payloads: Mapping[str, Any],
    provenance: Mapping[str, Any] | None = None,
    fingerprint: Fingerprint | None = None,
    *,
    name: str | None = None,
    aliases: Iterable[str] = ("latest", "best"),
    check: Callable[[Artifact], object] = lambda artifact: None,
) -> Artifact:
    """Write the next version below ``folder``, whole or not at all, and let the aliases name it.

    Args:
        folder: e.g. ``artifacts/tree_shape``; the version becomes ``artifacts/tree_shape/v1``, ``v2``, ...
        kind: name of a module of ``specexp/artifacts/kinds``, with dashes.
        payloads: content by file name, JSON values or arrays by name for safetensors; the kind's class says which. Most
            kinds also take ``parts.json``: ``{"drafter": {"class_path": ..., "init_args": {...}}, "builder": ...}``.
        provenance: any of study, trial, command, device, config, ``metrics`` (a number, or ``{"value", "low",
            "high"}``, by name) and whatever else explains the result; commit and package versions are added.
        fingerprint: what :func:`specexp.artifacts.fingerprint` says; without one nothing is compared on loading.
        name: what the artifact is called; the folder's name if None.
        aliases: names that mean this version from now on.
        check: called with the artifact before anything is written; what it raises is raised here.

    Returns:
        The artifact as read back, its :attr:`folder` being the version's.

    Raises:
        ArtifactError: the content is not what the kind promises, or it cannot be written; nothing is left behind.
    """
    folder = Path(folder)
    chosen = _kind(kind, f"{folder}")
    data = {file: _encode(file, content, f"{folder}: {file}") for file, content in payloads.items()}
    try:
        manifest = Manifest(
            kind=kind,
            name=name or folder.name,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            provenance=complete_provenance(provenance or {}),
            fingerprint=dict(fingerprint or {}),
            payloads={file: {"sha256": sha256(found), "bytes": len(found)} for file, found in data.items()},
        )
        data[MANIFEST] = manifest.to_json()
    except (TypeError, ValueError) as error:
        raise ArtifactError(
            f"{folder}: provenance or fingerprint cannot be written as JSON ({error})"
        ) from error
    manifest = Manifest.from_json(data[MANIFEST], str(folder))
    _check_payload_names(chosen, manifest, folder)
    check(_decode(chosen, manifest, data, folder))
    version = write_version(folder, data)
    for alias in aliases:
        set_alias(folder, alias, version.name)
    return read_artifact(version)


def read_artifact(folder: str | Path) -> Artifact:
    """Read an artifact and check all of it: schema, kind, every file, every hash, every payload.

    Whether a file may be read is checked before it is, and no class that the artifact names is looked for. The hashes
    show damage, not authorship: whoever changes an artifact can write them anew.

    Args:
        folder: a version (``artifacts/tree_shape/v2``), an alias of one (``artifacts/tree_shape/best``), or the
            folder of versions.

    Raises:
        ArtifactError: one sentence that names the folder and the field.
    """
    folder = resolve(Path(folder))
    manifest = Manifest.from_json(_manifest_in(folder), str(folder))
    chosen = _kind(manifest.kind, f"{folder}: {MANIFEST}")
    _check_payload_names(chosen, manifest, folder)
    _check_files(folder, manifest)
    data = {
        file: read_bytes(folder / file, f"{folder}: payload {file}", most_bytes(file))
        for file in manifest.payloads
    }
    for file, entry in manifest.payloads.items():
        if len(data[file]) != entry["bytes"]:
            size = f"{len(data[file])} bytes long, {entry['bytes']} are recorded"
            raise ArtifactError(f"{folder}: payload {file} is {size}: it was changed or truncated")
        if sha256(data[file]) != entry["sha256"]:
            raise ArtifactError(
                f"{folder}: payload {file} does not have the recorded sha256: it was changed or damaged"
            )
    return _decode(chosen, manifest, data, folder)


def value_of(kind: str, path: str | Path) -> Any:
    """The plain value that a reference stands for, see :class:`~specexp.core.references.Reference`.

    An artifact is read once for every content of its manifest, which holds the hashes of its payloads: a sweep composes
    thousands of candidates with the same one. Nobody may change the value.

    Args:
        kind: name of a kind of artifacts, or of a module of ``specexp/artifacts/files``; of both where either may be
            named.
        path: folder of the artifact, as :func:`read_artifact` takes it, or the file.

    Raises:
        ArtifactError: it cannot be read, or is of another kind.
    """
    if kind in names_in(files) and (kind not in names_in(kinds) or Path(path).is_file()):
        return import_module(f"{files.__name__}.{kind.replace('-', '_')}").read(Path(path))
    folder = resolve(Path(path))
    return _value_in(kind, folder, _manifest_in(folder))


@lru_cache(maxsize=32)
def _value_in(kind: str, folder: Path, manifest: bytes) -> Any:
    artifact = read_artifact(folder)
    if artifact.kind != kind:
        raise ArtifactError(f"{folder}: kind is {artifact.kind!r}; {kind!r} is expected here")
    return artifact.value


def kind_named(kind: str) -> type[Artifact]:
    """The class of a kind.

    Raises:
        LookupError: there is none.
    """
    return class_in(kinds, kind, Artifact)


def kind_for(family: str, parts: Mapping[str, Any]) -> type[Artifact] | None:
    """The kind that holds what a part of a composition learns; None where there is none.

    Args:
        family: ``drafter`` or ``controller``.
        parts: ``class_path`` and ``init_args`` of the four parts.
    """
    for name in names_in(kinds):
        kind = kind_named(name)
        if kind.learned == family and init_args_of(parts.get(family), kind.made_by) is not None:
            return kind
    return None


def _kind(kind: str, where: str) -> type[Artifact]:
    try:
        return kind_named(kind)
    except LookupError as error:
        raise ArtifactError(
            f"{where}: kind {kind!r} is not known{did_you_mean(kind, names_in(kinds))}"
        ) from error


def _manifest_in(folder: Path) -> bytes:
    return read_bytes(folder / MANIFEST, f"{folder}: {MANIFEST}")


def _check_files(folder: Path, manifest: Manifest) -> None:
    """Refuse a folder that holds anything but the manifest and its payloads, each a plain file of the recorded size."""
    try:
        for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
            where = f"{folder}: {entry.name}"
            if entry.is_symlink():
                raise ArtifactError(f"{where} is a symbolic link; a plain file is expected")
            if entry.name == MANIFEST:
                continue
            if entry.name not in manifest.payloads:
                raise ArtifactError(
                    f"{where} is not declared in {MANIFEST}: only {', '.join(manifest.payloads)} may be there"
                )
            size, recorded = entry.stat(follow_symlinks=False).st_size, manifest.payloads[entry.name]["bytes"]
            if entry.is_file() and size != recorded:
                raise ArtifactError(
                    f"{folder}: payload {entry.name} is {size} bytes long, {recorded} are recorded: it was changed or "
                    "truncated"
                )
    except OSError as error:
        raise ArtifactError(f"{folder} cannot be read ({error.strerror or error})") from error


def _check_payload_names(kind: type[Artifact], manifest: Manifest, folder: Path) -> None:
    """Refuse payloads that the kind does not have."""
    for file in kind.required:
        if file not in manifest.payloads:
            raise ArtifactError(f"{folder}: payloads has no {file!r}, which a {kind.kind} needs")
    for file in manifest.payloads:
        if file not in kind.files():
            hint = did_you_mean(file, kind.files())
            raise ArtifactError(f"{folder}: payloads has {file!r}, which a {kind.kind} does not hold{hint}")


def _decode(kind: type[Artifact], manifest: Manifest, data: Mapping[str, bytes], folder: Path) -> Artifact:
    """Parse the payloads and let the kind take them."""
    content = {file: _parse(file, data[file], f"{folder}: {file}") for file in manifest.payloads}
    try:
        return kind(manifest, content, folder)
    except ArtifactError:
        raise
    except Exception as error:  # a value that no check of the kind foresaw: still the artifact's fault
        names = ", ".join(manifest.payloads)
        raise ArtifactError(f"{folder}: {names} is no {kind.kind} ({type_and_line(error)})") from error


def _parse(file: str, data: bytes, where: str) -> Any:
    if file.endswith(".json"):
        return read_json(data, where)
    header = int.from_bytes(data[:8], "little")
    if header > MOST_BYTES["json"]:
        raise ArtifactError(
            f"{where} has a header of {header} bytes; at most {MOST_BYTES['json']} are allowed"
        )
    check_depth(data[8 : 8 + header], where)
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        return load(data)
    except (SafetensorError, KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise ArtifactError(f"{where} is not a whole safetensors file ({error})") from error


def _encode(file: str, content: Any, where: str) -> bytes:
    try:
        if file.endswith(".json"):
            return canonical_json(content) + b"\n"
        from safetensors.numpy import save

        return save({name: np.ascontiguousarray(array) for name, array in content.items()})
    except (TypeError, ValueError, AttributeError, RecursionError) as error:
        raise ArtifactError(f"{where} cannot be written ({error})") from error
