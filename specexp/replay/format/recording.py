"""A recording on disk: ``recording.json`` and Parquet files of answered turns.

Every file is written whole and then listed with its hash, so that an interrupted recording can be continued.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError
from typing_extensions import TypedDict

from specexp.artifacts.atomic_write import atomic_write
from specexp.artifacts.fingerprint import Fingerprint, fingerprint
from specexp.artifacts.manifest import sha256
from specexp.core.noise import NOISE_VERSION
from specexp.replay.format.recorded_turn import RecordedTurn
from specexp.replay.format.trie import RecordingError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from specexp.data import Prompt
    from specexp.models.llama_cpp import LlamaCppModel
    from specexp.models.pair import ModelPair

MANIFEST = "recording.json"
SCHEMA_VERSION = 1
_VALUES = 1024  # of a parameter that are hashed
_NEEDED = "record it with python -m specexp.record"
_ORDER = ("tokenizer", "model", "target", "draft")  # sections of a fingerprint, the most basic first


class FileEntry(TypedDict):
    """A Parquet file of turns; ``conversations`` are pairs of prompt id and sample."""

    sha256: str
    bytes: int
    turns: int
    conversations: list[list[Any]]


@dataclass
class RecordingManifest:
    """The models and settings of a recording, and its files."""

    fingerprint: Fingerprint  # marks of target, draft and tokenizer, weights included
    # Settings that change the answers: pair, law (of the verifier's output), generation, drafter, scoring (of the
    # draft model inside it, or None), coverage, candidates and target_top_k, and the hash of each prompt by its id.
    made_of: dict[str, Any]
    vocab_size: int
    context_limits: dict[str, int]  # tokens that the contexts of target and draft hold
    files: dict[str, FileEntry] = field(default_factory=dict)
    complete: bool = False
    # counts of some prompts, live and replayed, for each composition
    live_sample: list[dict[str, Any]] = field(default_factory=list)
    # command, git commit, package versions, device, creation time
    provenance: dict[str, Any] = field(default_factory=dict)

    def live_error(self, fidelity: str) -> float | None:
        """Return the largest signed error of replayed tokens per step in the live sample; None if there is none.

        Only compositions of this fidelity count (the text of :class:`~specexp.replay.play.fidelity.Fidelity`).
        """
        rows = [row for row in self.live_sample if row.get("fidelity") == fidelity]
        return max((float(row["relative_error"]) for row in rows), key=abs, default=None)

    @property
    def answers(self) -> int:
        """Number of recorded answers."""
        return sum(entry["turns"] for entry in self.files.values())

    def save(self, folder: Path) -> None:
        """Write ``recording.json``, whole or not at all."""
        fields = {"schema_version": SCHEMA_VERSION, "noise_version": NOISE_VERSION, **asdict(self)}
        atomic_write(folder / MANIFEST, json.dumps(fields, indent=1, default=str) + "\n")

    @staticmethod
    def load(folder: Path) -> RecordingManifest:
        """Read ``recording.json``; raises RecordingError if it is missing or damaged."""
        path = folder / MANIFEST
        try:
            fields = TypeAdapter(dict[str, Any]).validate_json(path.read_bytes())
            # the first recordings have no version of the keyed noise
            known = {"schema_version": (None, SCHEMA_VERSION), "noise_version": (1, NOISE_VERSION)}
            for name, (default, wanted) in known.items():
                if fields.get(name, default) != wanted:
                    why = f"has {name} {fields.get(name, default)!r}, and specexp reads {wanted}"
                    raise RecordingError(f"recording: {path} {why}: {_NEEDED} again")
            return TypeAdapter(RecordingManifest).validate_python(fields)
        except FileNotFoundError as error:
            raise RecordingError(f"recording: {folder} holds no {MANIFEST}; {_NEEDED}") from error
        except OSError as error:
            raise RecordingError(f"recording: {path} cannot be read ({error}); {_NEEDED} again") from error
        except ValidationError as error:
            wrong = error.errors()[0]
            why = f"{'.'.join(map(str, wrong['loc']))}: {wrong['msg']}".removeprefix(": ")
            raise RecordingError(f"recording: {path} is damaged ({why}); {_NEEDED} again") from error


class Recording:
    """A complete recording in a folder; raises RecordingError if there is none. Its turns are read on first use."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.manifest = RecordingManifest.load(self.folder)
        if not self.manifest.complete:
            raise RecordingError(
                f"recording: {self.folder} was interrupted after {self.manifest.answers} turns; the command that made "
                "it continues it"
            )

    @cached_property
    def turns(self) -> dict[tuple[str, int], list[RecordedTurn]]:
        """The turns of each conversation by prompt id and sample; raises RecordingError if a file is damaged."""
        found: dict[tuple[str, int], list[RecordedTurn]] = {}
        for name, entry in self.manifest.files.items():
            for turn in read_turns(self.folder / name, entry):
                found.setdefault((turn.prompt_id, turn.sample), []).append(turn)
        return found

    @property
    def bytes(self) -> int:
        """Size of its Parquet files."""
        return int(sum(entry["bytes"] for entry in self.manifest.files.values()))

    def conversation(self, prompt_id: str, sample: int = 0) -> list[RecordedTurn]:
        """Return the turns of a prompt; raises RecordingError if it was not recorded."""
        turns = self.turns.get((prompt_id, sample))
        if turns is None:
            raise RecordingError(
                f"recording: {self.folder} holds no sample {sample} of prompt {prompt_id!r}; record the prompts of "
                "the experiment's data, and those of its stages"
            )
        return turns

    def check_fingerprint(self, given: Fingerprint) -> None:
        """Raise RecordingError unless the models and the tokenizer of a :func:`recording_fingerprint` are the same."""
        found = difference(self.manifest.fingerprint, given)
        if found is not None:
            raise RecordingError(
                f"recording: {self.folder} was made with {found}: record with the configured pair"
            )

    def check_made_of(
        self, section: str, given: Mapping[str, Any], keys: Sequence[str] | None = None
    ) -> None:
        """Raise RecordingError unless a configured section of ``made_of`` equals the recorded one (in ``keys``)."""
        found = different_setting(section, self.manifest.made_of[section], given, keys)
        if found is not None:
            raise RecordingError(
                f"recording: {self.folder} was made with {found}: record with the latter, or configure the former"
            )


def different_setting(
    section: str, recorded: Any, given: Any, keys: Sequence[str] | None = None
) -> str | None:
    """Return the first setting of a section of ``made_of`` that differs, as a clause; None if there is none."""
    name, key = "verifier" if section == "law" else section, None
    if isinstance(recorded, Mapping) and isinstance(given, Mapping):
        every = keys or sorted({*recorded, *given})
        key = next((key for key in every if recorded.get(key) != given.get(key)), None)
        if key is None:
            return None
        name, recorded, given = f"{name}.{key}", recorded.get(key), given.get(key)
    return None if recorded == given else f"{name} {recorded!r}, and the configured one is {given!r}"


def hash_of(prompt: Prompt) -> str:
    """Return a hash of the text of all turns of a prompt and of the tokens of the first."""
    return sha256(repr((prompt.turns, prompt.token_ids)).encode())[:16]


def difference(recorded: Fingerprint, given: Mapping[str, Mapping[str, Any]]) -> str | None:
    """Return the first difference of models as a clause; None if there is none."""
    for section in sorted(given, key=_ORDER.index):
        known = recorded.get(section, {})
        for key, value in given[section].items():
            if key in known and known[key] != value:
                role = "target" if section == "model" else section
                return (
                    f"another {role} ({key} {_short(known[key])}, and the configured one has {_short(value)})"
                )
    return None


def _short(value: Any) -> str:
    return f"{value[:12]}..." if isinstance(value, str) and len(value) > 24 else str(value)


def check_file(path: Path, entry: FileEntry) -> bytes:
    """Return the bytes of a Parquet file; raises RecordingError if it is missing or damaged."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise RecordingError(
            f"recording: {path} cannot be read ({error.strerror or error}): {_NEEDED}, which makes it again"
        ) from error
    if len(data) != entry["bytes"] or sha256(data) != entry["sha256"]:
        changed = len(data) == entry["bytes"]
        what = "other bytes than were written" if changed else f"{len(data)} of {entry['bytes']} bytes"
        raise RecordingError(
            f"recording: {path} was truncated or changed, since it holds {what}: {_NEEDED}, which makes it again"
        )
    return data


def read_turns(path: Path, entry: FileEntry) -> Iterator[RecordedTurn]:
    """Yield the turns of a Parquet file; raises RecordingError if it is missing or damaged."""
    import pandas as pd

    content = BytesIO(check_file(path, entry))
    yield from map(RecordedTurn.from_row, pd.read_parquet(content).to_dict("records"))


def write_turns(path: Path, turns: Sequence[RecordedTurn]) -> FileEntry:
    """Write a Parquet file, whole or not at all; returns its entry in the manifest."""
    import pandas as pd

    data = bytes(pd.DataFrame([turn.to_row() for turn in turns]).to_parquet(index=False))
    atomic_write(path, data)
    conversations = dict.fromkeys((turn.prompt_id, turn.sample) for turn in turns)
    return {
        "sha256": sha256(data),
        "bytes": len(data),
        "turns": len(turns),
        "conversations": [list(one) for one in conversations],
    }


def weights_fingerprint(model: PreTrainedModel | LlamaCppModel) -> dict[str, Any]:
    """Return dtype, number of parameters and a hash, which differ for a fine-tuned model or another precision.

    The hash covers names, shapes and 1,024 evenly spaced values of every parameter, so that billions take a moment.
    """
    import torch

    from specexp.models.llama_cpp import LlamaCppModel

    if isinstance(model, LlamaCppModel):
        return model.model.weights()
    digest, count = hashlib.sha256(), 0
    for name, parameter in sorted(model.named_parameters()):
        values = parameter.detach().reshape(-1)
        count += values.numel()
        if values.numel() > _VALUES:
            spread = torch.arange(_VALUES, device=values.device, dtype=torch.int64)
            values = values[spread * (values.numel() - 1) // (_VALUES - 1)]
        digest.update(f"{name} {tuple(parameter.shape)} {parameter.dtype}\n".encode())
        digest.update(values.cpu().contiguous().view(torch.uint8).numpy().tobytes())
    dtype = str(model.dtype).removeprefix("torch.")
    return {"dtype": dtype, "parameters": count, "weights_sha256": digest.hexdigest()}


def recording_fingerprint(pair: ModelPair) -> Fingerprint:
    """Return marks of the tokenizer and the target's architecture, as artifacts have them, and of both weights."""
    sections = fingerprint(pair.target, pair.tokenizer)
    sections["target"] = weights_fingerprint(pair.target)
    if pair.draft is not None:
        sections["draft"] = weights_fingerprint(pair.draft)
    return sections
