"""The folder of a recording that is being made: what lies there already, what is missing, and who may write."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BytesIO
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specexp.artifacts.atomic_write import atomic_write
from specexp.artifacts.file_lock import held
from specexp.config import ConfigError
from specexp.core.messages import first_line
from specexp.replay.format.errors import RecordingError
from specexp.replay.format.recording import MANIFEST, RecordingManifest, check_file, difference, hash_of
from specexp.replay.record.plan import RecordingPlan

if TYPE_CHECKING:
    from specexp.data import Prompt
    from specexp.models.pair import ModelPair
    from specexp.replay.record.recorder import Recorder

_LOCK = ".lock"


def manifest_of(planned: RecordingPlan, pair: ModelPair, prompts: Sequence[Prompt]) -> RecordingManifest:
    """Of the recording that lies there already, or of a new one.

    Raises:
        ConfigError: Another recording lies there.
    """
    from specexp.artifacts.provenance import complete_provenance
    from specexp.core.placement import placement
    from specexp.replay.format.weights import recording_fingerprint

    made_of, marks = planned.made_of(), recording_fingerprint(pair)
    hashes = {prompt.prompt_id: hash_of(prompt) for prompt in prompts}
    manifest = _known(planned.folder)
    if manifest is None or not manifest.files:
        limits = {
            role: int(model.config.get_text_config().max_position_embeddings)
            for role, model in (("target", pair.target), ("draft", pair.draft))
            if model is not None
        }
        vocab_size = int(pair.target.config.get_text_config().vocab_size)
        provenance = complete_provenance(
            {
                "command": "python -m specexp.record",
                "device": placement(pair.target),
                "config": planned.config.to_dict(),
            }
        )
        return RecordingManifest(
            marks, {**made_of, "prompts": hashes}, vocab_size, limits, provenance=provenance
        )
    other = difference(manifest.fingerprint, marks) or _first_other(manifest.made_of, made_of)
    if other is None:
        changed = [name for name, one in hashes.items() if manifest.made_of["prompts"].get(name, one) != one]
        if changed:
            other = f"a prompt {changed[0]!r} of other text or tokens"
    if other is not None:
        raise _another(planned, other)
    manifest.made_of["prompts"] |= hashes
    recorded = manifest.made_of["generation"]
    recorded["samples"] = max(recorded["samples"], made_of["generation"]["samples"])
    return manifest


def answers_held(planned: RecordingPlan) -> int:
    """Answers that lie in the folder already, as far as can be told without models and prompts.

    Raises:
        ConfigError: Another recording lies there.
    """
    manifest = _known(planned.folder)
    if manifest is None or not manifest.files:
        return 0
    other = _first_other(manifest.made_of, planned.made_of())
    if other is not None:
        raise _another(planned, other)
    return sum(entry["turns"] for entry in manifest.files.values())


def _another(planned: RecordingPlan, other: str) -> ConfigError:
    return ConfigError(
        f"recording: {planned.folder} holds a recording that was made with {other}: remove it, or name another folder "
        "in record.to"
    )


def check_own(folder: Path) -> None:
    """Refuse a folder that holds files of something else, among which a recording would be lost.

    Raises:
        ConfigError: It names one of them.
    """
    found = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    other = next((name for name in found if not name.startswith((".", "turns-", MANIFEST))), None)
    if other is not None:
        raise ConfigError(
            f"recording: {folder} holds {other}, which belongs to no recording: name another folder in record.to"
        )


def _known(folder: Path) -> RecordingManifest | None:
    """Of the recording that lies there already."""
    if not (folder / MANIFEST).exists():
        check_own(folder)
        return None
    try:
        return RecordingManifest.load(folder)
    except RecordingError as error:
        raise ConfigError(f"{first_line(error)}: remove it, or name another folder in record.to") from error


def _first_other(recorded: Mapping[str, Any], given: Mapping[str, Any]) -> str | None:
    """What another recording was made with, as a clause; more samples of the same are no other recording."""
    for section, value in given.items():
        known = recorded[section]
        if not isinstance(value, Mapping) or not isinstance(known, Mapping):
            if known != value:
                return f"{section} {known!r}, and the configuration says {value!r}"
            continue
        for key in sorted({*known, *value}):
            if known.get(key) != value.get(key) and (section, key) != ("generation", "samples"):
                name = f"{'verifier' if section == 'law' else section}.{key}"
                return f"{name} {known.get(key)!r}, and the configuration says {value.get(key)!r}"
    return None


def missing_in(
    manifest: RecordingManifest, folder: Path, prompts: Sequence[Prompt], samples: int
) -> list[tuple[Prompt, int]]:
    """Prompts and samples that no whole file holds; files that are not whole are forgotten."""
    for name, entry in list(manifest.files.items()):
        try:
            check_file(folder / name, entry)
        except RecordingError:
            del manifest.files[name]
    known = {
        (prompt_id, sample)
        for entry in manifest.files.values()
        for prompt_id, sample in entry["conversations"]
    }
    return [
        (prompt, sample)
        for prompt in prompts
        for sample in range(samples)
        if (prompt.prompt_id, sample) not in known
    ]


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Keep other processes away; the lock of one that was killed is gone with it."""
    with held(folder / _LOCK) as mine:
        if not mine:
            raise ConfigError(
                f"recording: {folder} is being recorded by another process: wait for it, or name another folder in "
                "record.to"
            )
        yield


def _learned(folder: Path, manifest: RecordingManifest) -> Path:
    """Where drafters that carry what they learned stood after the files so far."""
    return folder / f"drafters-{len(manifest.files):05d}.pt"


def keep_learned(recorder: Recorder, folder: Path, manifest: RecordingManifest) -> None:
    """Write what drafters that carry have learned, for another process that goes on after the files so far."""
    import torch

    if not recorder.shares_state:
        return
    content = BytesIO()
    torch.save(recorder.state_dict(), content)
    atomic_write(_learned(folder, manifest), content.getvalue())
    for older in sorted(folder.glob("drafters-*.pt"))[:-2]:  # the manifest may still be of one file less
        older.unlink()


def go_on(recorder: Recorder, folder: Path, manifest: RecordingManifest) -> None:
    """Let drafters that carry go on from what they had learned after the files so far."""
    import torch

    path = _learned(folder, manifest)
    if recorder.shares_state and path.exists():
        recorder.load_state_dict(torch.load(path, weights_only=True))


def next_file(manifest: RecordingManifest) -> str:
    """A name that no file of turns has."""
    return next(name for number in count() if (name := f"turns-{number:05d}.parquet") not in manifest.files)
