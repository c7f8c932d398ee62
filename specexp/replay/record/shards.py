"""A recording put together from its shards: the files that one machine would have written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from specexp.replay.format.errors import RecordingError
from specexp.replay.format.recorded_turn import RecordedTurn
from specexp.replay.format.recording import RecordingManifest, read_turns, write_turns


def is_recorded(folder: Path) -> bool:
    """Whether a folder holds a recording with all of its prompts."""
    try:
        return RecordingManifest.load(folder).complete
    except RecordingError:  # or it is gone, for another worker has put all together
        return False


def merge(manifest: RecordingManifest, whole: Path, parts: Sequence[Path], turns_per_file: int) -> None:
    """Write the turns of all parts, in their order, in files as large as the recorder's.

    Args:
        manifest: Of the whole; gets its files.
        whole: Its folder.
        parts: Folders of finished recordings that follow one another.
        turns_per_file: A file ends with the conversation that fills it.

    Raises:
        RecordingError: A part is damaged.
        OSError: A file cannot be written.
    """
    files, kept = dict(manifest.files), list[RecordedTurn]()

    def write() -> None:
        name = f"turns-{len(files):05d}.parquet"
        files[name] = write_turns(whole / name, kept)
        kept.clear()

    known = {tuple(one) for entry in files.values() for one in entry["conversations"]}
    for turn in _turns(parts):
        if (turn.prompt_id, turn.sample) in known:
            continue
        kept.append(turn)
        if turn.turn == turn.turns - 1 and len(kept) >= turns_per_file:
            write()
    if kept:
        write()
    manifest.files = files


def _turns(parts: Sequence[Path]) -> Iterator[RecordedTurn]:
    for part in parts:
        for name, entry in RecordingManifest.load(part).files.items():
            yield from read_turns(part / name, entry)
