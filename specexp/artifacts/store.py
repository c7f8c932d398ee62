"""Writing and loading artifacts; whatever is written was first read back by the loader."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
from specexp.artifacts.manifest import MANIFEST, Manifest, canonical_json, read_bytes, read_json, sha256
from specexp.artifacts.plugins import class_in, names_in
from specexp.artifacts.provenance import complete_provenance
from specexp.artifacts.versions import resolve, set_alias, write_version
from specexp.artifacts.wandb_reference import PREFIX, download
from specexp.core.messages import did_you_mean


def save_artifact(
    folder: str | Path,
    kind: str,
    payloads: Mapping[str, Any],
    provenance: Mapping[str, Any] | None = None,
    fingerprint: Fingerprint | None = None,
    *,
    name: str | None = None,
    aliases: Iterable[str] = ("latest", "best"),
) -> Artifact:
    """Write the next version below ``folder``, whole or not at all, and let the aliases name it.

    Args:
        folder: e.g. ``artifacts/tree_shape``; the version becomes ``artifacts/tree_shape/v1``, ``v2``, ...
        kind: ``static-tree``, ``thresholds``, ``composition``, ``adjacency-matrix``, ``phrase-cache``, ``q-table``,
            ``schedule`` or ``latency-profile``.
        payloads: content by file name. ``static-tree``: ``tree.json`` (rank paths) and optionally
            ``parts.json`` (``{"drafter": {"class_path": ..., "init_args": {...}}, "builder": ..., ...}``);
            ``thresholds``: ``thresholds.json`` and optionally ``parts.json``;
            ``composition``: ``parts.json``;
            ``adjacency-matrix``: ``matrix.safetensors`` (``TokenRecycling.state_dict()``) and optionally
            ``parts.json``;
            ``phrase-cache``: ``phrases.safetensors`` (``PhraseCache.store.state_dict()``) and optionally
            ``parts.json``;
            ``q-table``: ``q.safetensors`` and ``bins.json`` (``QLearning.state_dict()``) and optionally ``parts.json``;
            ``schedule``: ``schedule.json`` (``{"class_path": "Scheduled", "init_args": {...}}``) and optionally
            ``parts.json``;
            ``latency-profile``: ``profile.json`` (``LatencyProfile.to_dict()``, and whatever was measured for it).
        provenance: any of study, trial, command, device, config, ``metrics`` (a number, or ``{"value", "low",
            "high"}``, by name) and whatever else explains the result; commit and package versions are added.
        fingerprint: of :func:`specexp.artifacts.fingerprint`; without one nothing is compared on loading.
        name: of the artifact; the folder's name if None.
        aliases: names that mean this version from now on.

    Returns:
        The artifact as loaded back, its :attr:`folder` being the version's.

    Raises:
        ArtifactError: the content is not what the kind promises, or it cannot be written; nothing is left
            behind.

    Example:
        >>> save_artifact("artifacts/tree", "static-tree", {"tree.json": [[0], [0, 0]]})  # doctest: +SKIP
    """
    folder = Path(folder)
    chosen = _kind(kind, f"{folder}")
    written: dict[str, bytes] = {}
    for file, content in payloads.items():
        written[file] = _encode(file, content, f"{folder}: {file}")
    try:
        manifest = Manifest(
            kind=kind,
            name=name or folder.name,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            provenance=complete_provenance(provenance or {}),
            fingerprint=dict(fingerprint or {}),
            payloads={file: {"sha256": sha256(data), "bytes": len(data)} for file, data in written.items()},
        )
        written[MANIFEST] = manifest.to_json()
    except (TypeError, ValueError) as error:
        raise ArtifactError(
            f"{folder}: provenance or fingerprint cannot be written as JSON ({error})"
        ) from error
    _decode(chosen, Manifest.from_json(written[MANIFEST], str(folder)), written, folder)
    version = write_version(folder, written)
    for alias in aliases:
        set_alias(folder, alias, version.name)
    return load_artifact(version)


def load_artifact(path_or_reference: str | Path) -> Artifact:
    """Load an artifact and check all of it: schema, kind, every hash, every payload.

    Args:
        path_or_reference: folder of a version (``artifacts/tree_shape/v2``), an alias of one
            (``artifacts/tree_shape/best``), the folder of versions, or ``wandb:entity/project/name:alias``.

    Raises:
        ArtifactError: one sentence that names the folder and the field.

    Example:
        >>> artifact = load_artifact("artifacts/tree_shape/best")  # doctest: +SKIP
        >>> Decoder(pair.target, *artifact.parts)  # doctest: +SKIP
    """
    folder = _folder_of(path_or_reference)
    manifest = Manifest.from_json(read_bytes(folder / MANIFEST, f"{folder}: {MANIFEST}"), str(folder))
    chosen = _kind(manifest.kind, f"{folder}: {MANIFEST}")
    files = {file: read_bytes(folder / file, f"{folder}: payload {file}") for file in manifest.payloads}
    for file, entry in manifest.payloads.items():
        if len(files[file]) != entry["bytes"]:
            size = f"{len(files[file])} bytes long, {entry['bytes']} are recorded"
            raise ArtifactError(f"{folder}: payload {file} is {size}: it was changed or truncated")
        if sha256(files[file]) != entry["sha256"]:
            raise ArtifactError(
                f"{folder}: payload {file} does not have the recorded sha256: it was changed or damaged"
            )
    return _decode(chosen, manifest, files, folder)


def value_of(kind: str, reference: str) -> Any:
    """The plain value that a reference stands for, see :class:`~specexp.core.references.Reference`.

    An artifact is read once for every content of its manifest, which holds the hashes of its payloads: a sweep composes
    thousands of candidates with the same one. Nobody may change the value.

    Args:
        kind: of an artifact, or of a file in ``specexp/artifacts/files``.
        reference: path of either, or ``wandb:entity/project/name:alias`` of an artifact.

    Raises:
        ArtifactError: it cannot be read, or is of another kind.
    """
    if kind in names_in(files):
        return import_module(f"{files.__name__}.{kind.replace('-', '_')}").read(Path(reference))
    folder = _folder_of(reference)
    return _value_in(kind, folder, read_bytes(folder / MANIFEST, f"{folder}: {MANIFEST}"))


@lru_cache(maxsize=32)
def _value_in(kind: str, folder: Path, manifest: bytes) -> Any:
    artifact = load_artifact(folder)
    if artifact.kind != kind:
        raise ArtifactError(f"{folder}: kind is {artifact.kind!r}; {kind!r} is expected here")
    return artifact.value


def _folder_of(path_or_reference: str | Path) -> Path:
    """The version's folder, downloaded where it is W&B's."""
    if str(path_or_reference).startswith(PREFIX):
        return resolve(download(str(path_or_reference)))
    return resolve(Path(path_or_reference))


def kind_for(family: str, parts: Mapping[str, Any]) -> type[Artifact] | None:
    """The kind that holds what a part of a composition learns; None where there is none.

    Args:
        family: ``drafter`` or ``controller``.
        parts: ``class_path`` and ``init_args`` of the four parts.
    """
    made = (parts.get(family) or {}).get("class_path")
    for name in names_in(kinds):
        kind = class_in(kinds, name, Artifact)
        if kind.learned == family and made in kind.made_by:
            return kind
    return None


def _kind(kind: str, where: str) -> type[Artifact]:
    try:
        return class_in(kinds, kind, Artifact)
    except LookupError as error:
        raise ArtifactError(
            f"{where}: kind {kind!r} is not known{did_you_mean(kind, names_in(kinds))}"
        ) from error


def _decode(kind: type[Artifact], manifest: Manifest, files: Mapping[str, bytes], folder: Path) -> Artifact:
    """Parse the payloads and let the kind check them."""
    for file in kind.required:
        if file not in manifest.payloads:
            raise ArtifactError(f"{folder}: payloads has no {file!r}, which a {kind.kind} needs")
    for file in manifest.payloads:
        if file not in (*kind.required, *kind.optional):
            hint = did_you_mean(file, (*kind.required, *kind.optional))
            raise ArtifactError(f"{folder}: payloads has {file!r}, which a {kind.kind} does not hold{hint}")
    content = {file: _parse(file, files[file], f"{folder}: {file}") for file in manifest.payloads}
    return kind(manifest, content, folder)


def _parse(file: str, data: bytes, where: str) -> Any:
    if file.endswith(".json"):
        return read_json(data, where)
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
