"""A recording on disk: ``recording.json`` and Parquet files of answered turns.

Every file is written whole and then listed with its hash: a recording cut off anywhere goes on where it stopped.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from specexp.artifacts.fingerprint import Fingerprint, first_difference
from specexp.artifacts.manifest import sha256
from specexp.replay.errors import RecordingError
from specexp.replay.estimates import Estimates
from specexp.replay.turn import RecordedTurn
from specexp.whole_file import write_whole

MANIFEST = "recording.json"
SCHEMA_VERSION = 1
_NEEDED = "record it with python -m specexp.record"


@dataclass
class Manifest:
    """What a recording is of.

    Attributes:
        fingerprint: of target, draft and tokenizer, weights included.
        made_of: ``pair``, ``verifier``, ``drafter``, ``generation`` and ``coverage``, as configured.
        vocab_size: of both models.
        context_limits: of ``target`` and ``draft``.
        files: name to ``{"sha256": ..., "bytes": ..., "turns": ...}``, in the order recorded.
        complete: whether every prompt is in it.
        live_sample: what the recorded composition took live, and what replay said of the same prompts.
        provenance: command, git commit, package versions, device, creation time.
    """

    fingerprint: Fingerprint
    made_of: dict[str, Any]
    vocab_size: int
    context_limits: dict[str, int]
    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    complete: bool = False
    live_sample: list[dict[str, Any]] = field(default_factory=list)
    provenance: dict[str, Any] = field(default_factory=dict)

    def save(self, folder: Path) -> None:
        """Write ``recording.json``, whole or not at all."""
        fields = {"schema_version": SCHEMA_VERSION, **asdict(self)}
        write_whole(folder / MANIFEST, json.dumps(fields, indent=1, default=str) + "\n")

    @staticmethod
    def load(folder: Path) -> Manifest:
        """Read ``recording.json``.

        Raises:
            RecordingError: there is none, or it is not one.
        """
        path = folder / MANIFEST
        try:
            fields = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise RecordingError(f"recording: {folder} holds no {MANIFEST}; {_NEEDED}") from error
        except (OSError, ValueError) as error:
            raise RecordingError(f"recording: {path} cannot be read ({error}); {_NEEDED} again") from error
        if not isinstance(fields, dict) or fields.get("schema_version") != SCHEMA_VERSION:
            found = fields.get("schema_version") if isinstance(fields, dict) else None
            raise RecordingError(
                f"recording: {path} has schema_version {found!r}; {SCHEMA_VERSION} is expected: {_NEEDED} again"
            )
        fields.pop("schema_version")
        try:
            return Manifest(**fields)
        except TypeError as error:
            raise RecordingError(f"recording: {path} is not whole ({error}); {_NEEDED} again") from error


class Recording:
    """A finished recording, its turns read when first asked for.

    Args:
        folder: where it lies.

    Raises:
        RecordingError: there is none, or it was cut off and not finished.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.manifest = Manifest.load(self.folder)
        if not self.manifest.complete:
            raise RecordingError(
                f"recording: {self.folder} was cut off after {sum(f['turns'] for f in self.manifest.files.values())} "
                "turns; the command that made it goes on where it stopped"
            )

    @cached_property
    def turns(self) -> dict[tuple[str, int], list[RecordedTurn]]:
        """By prompt id and sample the turns of each conversation, in the order recorded.

        Raises:
            RecordingError: a file is missing or damaged.
        """
        found: dict[tuple[str, int], list[RecordedTurn]] = {}
        for name, entry in self.manifest.files.items():
            for turn in read_turns(self.folder / name, entry):
                found.setdefault((turn.prompt_id, turn.sample), []).append(turn)
        return found

    @cached_property
    def estimates(self) -> Estimates:
        """Of what the target would have said where nothing was recorded."""
        return Estimates(turn for turns in self.turns.values() for turn in turns)

    @property
    def bytes(self) -> int:
        """Of its Parquet files."""
        return int(sum(entry["bytes"] for entry in self.manifest.files.values()))

    def conversation(self, prompt_id: str, sample: int = 0) -> list[RecordedTurn]:
        """The turns of a prompt.

        Raises:
            RecordingError: it was not recorded.
        """
        turns = self.turns.get((prompt_id, sample))
        if turns is None:
            raise RecordingError(
                f"recording: {self.folder} holds no sample {sample} of prompt {prompt_id!r}; record the prompts of "
                "the experiment's data, and those of its stages"
            )
        return turns

    def check_fingerprint(self, given: Fingerprint) -> None:
        """Refuse other models or another tokenizer.

        Raises:
            RecordingError: one sentence that names what differs.
        """
        difference = first_difference(self.manifest.fingerprint, given)
        if difference is not None:
            raise RecordingError(
                f"recording: {self.folder}: {difference.replace('the artifact', 'the recording')}; record with the "
                "configured pair"
            )

    def check_made_of(
        self, section: str, given: Mapping[str, Any], keys: Sequence[str] | None = None
    ) -> None:
        """Refuse a configuration whose output differs from the recorded one.

        Args:
            section: ``pair``, ``verifier`` or ``generation``.
            given: as configured.
            keys: what must be equal; everything if None.

        Raises:
            RecordingError: one sentence with both values.
        """
        recorded = self.manifest.made_of[section]
        for key in keys if keys is not None else sorted({*recorded, *given}):
            if recorded.get(key) != given.get(key):
                raise RecordingError(
                    f"recording: {self.folder} was made with {section}.{key} {recorded.get(key)!r} and the "
                    f"configuration says {given.get(key)!r}: record again with it, or configure the recorded one"
                )


def read_turns(path: Path, entry: Mapping[str, Any]) -> Iterator[RecordedTurn]:
    """The turns of a Parquet file.

    Raises:
        RecordingError: it is missing, or is not what was written.
    """
    import tempfile

    from datasets import Dataset, disable_progress_bars

    try:
        data = path.read_bytes()
    except OSError as error:
        raise RecordingError(
            f"recording: {path} cannot be read ({error.strerror or error}); {_NEEDED} again"
        ) from error
    if len(data) != entry["bytes"] or sha256(data) != entry["sha256"]:
        raise RecordingError(
            f"recording: {path} is {len(data)} bytes long and not the file of {entry['bytes']} bytes that was written: "
            "it was truncated or changed; remove it, and the command that made it records it again"
        )
    disable_progress_bars()
    with tempfile.TemporaryDirectory() as cache:
        table = Dataset.from_parquet(str(path), cache_dir=cache, keep_in_memory=True)
        for row in table.with_format("numpy"):
            yield RecordedTurn.from_row(row)


def write_turns(path: Path, turns: Sequence[RecordedTurn]) -> dict[str, Any]:
    """Write a Parquet file; its entry in the manifest."""
    from datasets import Dataset, disable_progress_bars

    disable_progress_bars()
    part = path.with_suffix(".part")
    Dataset.from_list([turn.to_row() for turn in turns]).to_parquet(str(part))
    data = part.read_bytes()
    part.replace(path)
    return {"sha256": sha256(data), "bytes": len(data), "turns": len(turns)}
