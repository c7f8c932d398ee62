"""What a study that has ended keeps for whoever types its command again."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import ConfigDict, TypeAdapter, ValidationError

from specexp.artifacts.atomic_write import atomic_write
from specexp.bench.record import PromptRecord, line_of, read_records
from specexp.sweep.error import StudyError

CONCLUDED = "concluded.json"
CONFIRM = "confirm.jsonl"
CONCLUDED_BY = "concluded_by"
"""The study's attribute that says who concluded what, and where the results lie, for workers of other machines."""


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
    """Records of the confirmations that a new one is pooled with.

    Args:
        folder: The study's.
        kept: What it keeps.
        measured_on: Digest of what confirmations must share.
        samples: Continuations of every prompt in one confirmation, by which their numbers tell confirmations apart.
    """
    path = folder / CONFIRM
    if kept is None or kept.measured_on != measured_on or not path.exists():
        return []
    return [record for record in read_records(path) if record.sample < kept.confirmations * samples]


def keep_records(
    folder: Path, kept: Concluded | None, measured_on: str, records: Iterable[PromptRecord]
) -> None:
    """Write ``confirm.jsonl``, whole or not at all, once a confirmation is done.

    Records of other prompts, models or lengths cannot be pooled: their file is put aside, as ``confirm.1.jsonl``.

    Args:
        folder: The study's.
        kept: What it keeps.
        measured_on: Digest of what confirmations must share.
        records: Of the new confirmation, and of those that it is pooled with.

    Raises:
        OSError: It cannot be written.
    """
    path = folder / CONFIRM
    if kept is not None and kept.measured_on != measured_on and path.exists():
        path.rename(_unused(path))
    atomic_write(path, "".join(map(line_of, records)))


def _unused(path: Path) -> Path:
    number = 1
    while (free := path.with_name(f"{path.stem}.{number}{path.suffix}")).exists():
        number += 1
    return free
