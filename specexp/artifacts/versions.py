"""Versions of an artifact in one folder, and the names ``best`` and ``latest`` that point at one.

``artifacts/tree_shape`` holds the versions ``v1``, ``v2``, ... and, for each alias, a small file such as
``best.json`` with ``{"version": "v2"}``. A file is replaced in one step on every operating system, which
neither a symbolic link nor a copied folder is; the path ``artifacts/tree_shape/best`` is understood wherever
an artifact is loaded, and ``artifacts/tree_shape`` alone means ``best``.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

from specexp.artifacts.error import ArtifactError
from specexp.artifacts.manifest import MANIFEST, canonical_json, read_bytes, read_json

BEST = "best"
_VERSION = re.compile(r"v[1-9][0-9]*")
_ALIAS = re.compile(r"[a-z][a-z0-9_-]*")


def resolve(path: Path) -> Path:
    """The folder with ``artifact.json`` that ``path`` means: itself, what an alias names, or the best
    version.

    Raises:
        ArtifactError: nothing is there, or the alias names no version.
    """
    try:
        if (path / MANIFEST).exists():
            return path
        if path.is_dir():
            if _alias_file(path, BEST).is_file():
                return _target(path, BEST)
            missing, known = MANIFEST, _names_in(path)
            if known:
                missing = f"{BEST}.json"
            raise ArtifactError(
                f"{path}: {missing} is missing" + (f"; name one of {', '.join(known)}" if known else "")
            )
        if _ALIAS.fullmatch(path.name) and _alias_file(path.parent, path.name).is_file():
            return _target(path.parent, path.name)
        known = _names_in(path.parent)
    except (OSError, ValueError) as error:
        if isinstance(error, ArtifactError):
            raise
        raise ArtifactError(f"{str(path)!r} cannot be read as an artifact folder ({error})") from error
    hint = f"; {path.parent} has {', '.join(known)}" if known else ""
    hint = ", it is a file" if path.is_file() else hint
    raise ArtifactError(f"{path}: there is no such artifact folder{hint}")


def versions(folder: Path) -> list[str]:
    """``v1``, ``v2``, ... in order; empty where there are none."""
    if not folder.is_dir():
        return []
    names = [entry.name for entry in folder.iterdir() if _VERSION.fullmatch(entry.name) and entry.is_dir()]
    return sorted(names, key=lambda name: int(name[1:]))


def _names_in(folder: Path) -> list[str]:
    """Aliases and versions; none where there is no version."""
    known = versions(folder)
    return sorted(entry.stem for entry in folder.glob("*.json")) + known if known else []


def set_alias(folder: Path, alias: str, version: str) -> None:
    """Let ``folder/alias`` mean ``folder/version`` from now on, in one step.

    Raises:
        ArtifactError: the alias is no plain lower-case name, there is no such version, or the file cannot be
            written.
    """
    if not _ALIAS.fullmatch(alias) or _VERSION.fullmatch(alias):
        raise ArtifactError(
            f"{folder}: {alias!r} cannot be an alias; a lower-case name such as 'best' is expected"
        )
    if version not in versions(folder):
        raise ArtifactError(f"{folder}: there is no version {version!r} for the alias {alias!r} to name")
    write_file(_alias_file(folder, alias), canonical_json({"version": version}) + b"\n")


def write_file(path: Path, data: bytes) -> None:
    """Write a file whole or not at all.

    Raises:
        ArtifactError: it cannot be written; what was there stays.
    """
    temporary = _unused_name(path.parent)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(data)
        temporary.replace(path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise ArtifactError(f"{path} cannot be written ({error.strerror or error})") from error


def write_version(folder: Path, files: Mapping[str, bytes]) -> Path:
    """Write the next version's folder whole or not at all, and give its path.

    Raises:
        ArtifactError: it cannot be written.
    """
    try:
        with _staging(folder) as staging:
            for name, data in files.items():
                (staging / name).write_bytes(data)
            return _claim(folder, staging)
    except OSError as error:
        raise ArtifactError(
            f"{folder}: the artifact cannot be written ({error.strerror or error})"
        ) from error


@contextmanager
def _staging(folder: Path) -> Iterator[Path]:
    staging = _unused_name(folder)
    staging.mkdir(parents=True)
    try:
        yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _claim(folder: Path, staging: Path) -> Path:
    """Rename to the first free version; another writer may take one between the look and the rename."""
    while True:
        taken = versions(folder)
        version = folder / f"v{int(taken[-1][1:]) + 1 if taken else 1}"
        try:
            return staging.rename(version)
        except OSError:
            if not version.exists():
                raise


def _unused_name(folder: Path) -> Path:
    return folder / f".writing-{uuid4().hex}"


def _alias_file(folder: Path, alias: str) -> Path:
    return folder / f"{alias}.json"


def _target(folder: Path, alias: str) -> Path:
    file = _alias_file(folder, alias)
    content = read_json(read_bytes(file, str(file)), str(file))
    version = content.get("version") if isinstance(content, dict) else None
    if not isinstance(version, str) or not _VERSION.fullmatch(version):
        raise ArtifactError(
            f'{file}: version is {version!r}; a version such as {{"version": "v1"}} is expected'
        )
    if (folder / version).is_symlink():
        raise ArtifactError(f"{folder / version} is a symbolic link; a plain folder is expected")
    if not (folder / version).is_dir():
        raise ArtifactError(f"{file}: version names {version}, which {folder} does not have")
    return folder / version
