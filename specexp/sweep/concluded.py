"""What a study that has ended keeps for whoever types its command again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import ConfigDict, TypeAdapter, ValidationError

from specexp.artifacts.atomic_write import atomic_write
from specexp.bench.record import PromptRecord, read_records, write_records
from specexp.sweep.error import StudyError

CONCLUDED = "concluded.json"
CONFIRM = "confirm.jsonl"


@dataclass(frozen=True)
class Deployed:
    """What the aliases of a study's artifact name.

    Attributes:
        asked: Digest of what was asked for: the kind, the folder, whether it starts cold.
        trial: Trial that ``best`` decodes with; None where it decodes plainly.
        tree: Trial that ``best-tree`` decodes with.
        folder: Version that ``best`` names.
    """

    asked: str
    trial: int | None
    tree: int
    folder: str


@dataclass(frozen=True)
class Concluded:
    """The end of a study, in ``concluded.json``.

    Attributes:
        of: Digest of what was concluded from: the study, what was confirmed of it, and what was to be exported.
        measured_on: Digest of what confirmations must share to be pooled.
        confirmations: How many were pooled.
        said: Table and sentences, as they were printed.
        gain: Whether what is deployed is faster than plain decoding, by the interval.
        answer: What it came to, in a sentence.
        deployed: What was exported; None where nothing was.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    of: str
    measured_on: str
    confirmations: int
    said: str
    gain: bool
    answer: str = ""
    deployed: Deployed | None = None

    @staticmethod
    def load(folder: Path) -> Concluded | None:
        """What the study in a folder keeps; None where it has not ended yet.

        Raises:
            StudyError: The file holds something else.
        """
        path = folder / CONCLUDED
        try:
            return TypeAdapter(Concluded).validate_json(path.read_bytes(), strict=True)
        except FileNotFoundError:
            return None
        except (OSError, ValidationError) as error:
            raise StudyError(
                f"{path} is not what a finished study keeps: remove it, and the best trials are confirmed anew"
            ) from error

    def save(self, folder: Path) -> None:
        """Write the file, whole or not at all.

        Raises:
            OSError: It cannot be written.
        """
        atomic_write(folder / CONCLUDED, json.dumps(asdict(self), indent=2) + "\n")


def earlier_records(
    folder: Path, kept: Concluded | None, measured_on: str, samples: int
) -> list[PromptRecord]:
    """Records of the confirmations that a new one is pooled with; what an interrupted one left is removed.

    Records of other prompts, models or lengths cannot be pooled: their file is put aside, as ``confirm.1.jsonl``.

    Args:
        folder: The study's.
        kept: What it keeps.
        measured_on: Digest of what confirmations must share.
        samples: Continuations of every prompt in one confirmation, by which their numbers tell confirmations apart.
    """
    path = folder / CONFIRM
    if not path.exists():
        return []
    if kept is not None and kept.measured_on != measured_on:
        path.rename(_unused(path))
        return []
    whole = 0 if kept is None else kept.confirmations * samples
    records = [record for record in read_records(path) if record.sample < whole]
    _rewrite(path, records)
    return records


def _rewrite(path: Path, records: Sequence[PromptRecord]) -> None:
    beside = path.with_name(f".{path.name}.part")
    beside.unlink(missing_ok=True)
    write_records(beside, records)
    beside.replace(path)


def _unused(path: Path) -> Path:
    number = 1
    while (free := path.with_name(f"{path.stem}.{number}{path.suffix}")).exists():
        number += 1
    return free
