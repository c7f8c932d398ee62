"""A recording on disk: ``recording.json`` and Parquet files of recorded turns.

Each Parquet file is written atomically before the JSON file lists it, so that an interrupted recording can be resumed.
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

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError
from typing_extensions import TypedDict

from specexp.artifacts.atomic_write import atomic_write
from specexp.artifacts.fingerprint import Fingerprint, fingerprint, first_difference
from specexp.artifacts.manifest import sha256
from specexp.core.noise import NOISE_VERSION
from specexp.replay.format.trie import Ranked, RecordingError, Trie

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from specexp.data import Prompt
    from specexp.models.llama_cpp import LlamaCppModel
    from specexp.models.pair import ModelPair

MANIFEST = "recording.json"
SCHEMA_VERSION = 1
_VALUES = 1024  # maximum number of values hashed per parameter
_NEEDED = "record it with python -m specexp.record"
_NUMBERS = ("index", "sample", "turn", "turns")
_TEXTS = ("prompt_id", "category", "finish_reason")


@dataclass(frozen=True)
class RecordedTurn:
    """One recorded turn: its prompt, its answer, and the predictions of target and draft."""

    prompt_id: str
    category: str
    index: int  # position of the prompt in its set
    sample: int  # number of this sampled answer to the prompt, from 0
    turn: int  # position in the conversation, from 0 to ``turns - 1``
    turns: int
    prompt: NDArray[np.int32]  # all tokens before the answer, including earlier turns
    answer: NDArray[np.int32]
    finish_reason: str  # ``eos``, ``repetition``, ``length`` or ``context``
    # [a, k] the target's k best tokens and their logits after each of the `a` tokens prefilled in this turn
    prefill_top: NDArray[np.int32]
    prefill_logits: NDArray[np.float32]
    trie: Trie  # predictions of both models after the prompt, each answer token and each drafted token

    def to_row(self) -> dict[str, Any]:
        """Return the turn as a table row, with its arrays flattened."""
        trie = self.trie
        return {
            **{name: getattr(self, name) for name in ("prompt_id", "category", *_NUMBERS, "finish_reason")},
            "prompt": self.prompt,
            "answer": self.answer,
            "asked_rows": self.prefill_top.shape[0],
            "asked": self.prefill_top.ravel(),
            "asked_logits": self.prefill_logits.ravel(),
            "parents": trie.parents,
            "tokens": trie.tokens,
            "draft_counts": trie.draft.counts,
            "draft_tokens": trie.draft.tokens,
            "draft_log_probs": trie.draft.values,
            "target_counts": trie.target.counts,
            "target_tokens": trie.target.tokens,
            "target_logits": trie.target.values,
        }

    @staticmethod
    def from_row(row: Mapping[str, Any]) -> RecordedTurn:
        """Rebuild a turn from a row that :meth:`to_row` returned."""

        def ints(name: str) -> NDArray[np.int32]:
            return np.asarray(row[name], dtype=np.int32)

        def floats(name: str) -> NDArray[np.float32]:
            return np.asarray(row[name], dtype=np.float32)

        answer, rows = ints("answer"), int(row["asked_rows"])
        draft = Ranked(ints("draft_counts"), ints("draft_tokens"), floats("draft_log_probs"))
        target = Ranked(ints("target_counts"), ints("target_tokens"), floats("target_logits"))
        fields: dict[str, Any] = {name: str(row[name]) for name in _TEXTS}
        fields |= {name: int(row[name]) for name in _NUMBERS}
        return RecordedTurn(
            **fields,
            prompt=ints("prompt"),
            answer=answer,
            prefill_top=ints("asked").reshape(rows, -1),
            prefill_logits=floats("asked_logits").reshape(rows, -1),
            trie=Trie(ints("parents"), ints("tokens"), draft, target, answer.size),
        )


class FileEntry(TypedDict):
    """The manifest entry of a Parquet file. ``conversations`` lists ``[prompt id, sample number]`` pairs."""

    sha256: str
    bytes: int
    turns: int
    conversations: list[list[Any]]


@dataclass
class RecordingManifest:
    """The contents of ``recording.json``: the models, settings and files of a recording."""

    fingerprint: Fingerprint  # identifies the tokenizer, the target and the draft, including the weights of both models
    # Settings that affect the recorded data: pair, law (the verifier's sampling settings), generation, drafter,
    # scoring (of its draft model, or None), coverage, candidates, target_top_k, and prompts (prompt id -> hash).
    made_of: dict[str, Any]
    vocab_size: int
    context_limits: dict[str, int]  # context length of ``target`` and ``draft``, in tokens
    files: dict[str, FileEntry] = field(default_factory=dict)
    complete: bool = False
    # one row per composition: counts from a few prompts, decoded live and replayed
    live_sample: list[dict[str, Any]] = field(default_factory=list)
    # command, git commit, package versions, device, creation time
    provenance: dict[str, Any] = field(default_factory=dict)

    def live_error(self, fidelity: str) -> float | None:
        """Return the signed relative error in replayed tokens per step that has the largest magnitude.

        Only compositions with this fidelity (a ``Fidelity`` as text) count. Returns None if the live sample has none.
        """
        rows = [row for row in self.live_sample if row.get("fidelity") == fidelity]
        return max((float(row["relative_error"]) for row in rows), key=abs, default=None)

    @property
    def answers(self) -> int:
        """Number of recorded answers."""
        return sum(entry["turns"] for entry in self.files.values())

    def save(self, folder: Path) -> None:
        """Write ``recording.json`` atomically."""
        fields = {"schema_version": SCHEMA_VERSION, "noise_version": NOISE_VERSION, **asdict(self)}
        atomic_write(folder / MANIFEST, json.dumps(fields, indent=1, default=str) + "\n")

    @staticmethod
    def load(folder: Path) -> RecordingManifest:
        """Read ``recording.json``. Raises RecordingError if it is missing, damaged or of another version."""
        path = folder / MANIFEST
        try:
            fields = TypeAdapter(dict[str, Any]).validate_json(path.read_bytes())
            for name, wanted in {"schema_version": SCHEMA_VERSION, "noise_version": NOISE_VERSION}.items():
                if fields.get(name) != wanted:
                    why = f"must have {name} {wanted}, got {fields.get(name)!r}"
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
    """A complete recording, opened from its folder. Its turns are read on first use.

    Raises RecordingError if the recording is missing, damaged or incomplete.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.manifest = RecordingManifest.load(self.folder)
        if not self.manifest.complete:
            raise RecordingError(
                f"recording: {self.folder} was interrupted after {self.manifest.answers} turns; run the command that "
                "made it again to resume it"
            )

    @cached_property
    def turns(self) -> dict[tuple[str, int], list[RecordedTurn]]:
        """The turns of each conversation, keyed by prompt id and sample. Raises RecordingError if a file is damaged."""
        found: dict[tuple[str, int], list[RecordedTurn]] = {}
        for name, entry in self.manifest.files.items():
            for turn in read_turns(self.folder / name, entry):
                found.setdefault((turn.prompt_id, turn.sample), []).append(turn)
        return found

    @property
    def bytes(self) -> int:
        """Total size of the Parquet files in bytes."""
        return int(sum(entry["bytes"] for entry in self.manifest.files.values()))

    def conversation(self, prompt_id: str, sample: int = 0) -> list[RecordedTurn]:
        """Return the turns of a prompt. Raises RecordingError if it was not recorded."""
        turns = self.turns.get((prompt_id, sample))
        if turns is None:
            raise RecordingError(
                f"recording: {self.folder} holds no sample {sample} of prompt {prompt_id!r}; record all prompts of "
                "the experiment's data and of its stages"
            )
        return turns

    def check_fingerprint(self, given: Fingerprint) -> None:
        """Raise RecordingError if ``given``, from :func:`recording_fingerprint`, belongs to another pair of models."""
        found = difference(self.manifest.fingerprint, given)
        if found is not None:
            raise RecordingError(f"recording: {self.folder} was made with {found}: record with the configured pair")

    def check_made_of(self, section: str, given: Mapping[str, Any], keys: Sequence[str] | None = None) -> None:
        """Raise RecordingError if ``given`` differs from the recorded ``section``. ``keys`` limits the comparison."""
        found = different_setting(section, self.manifest.made_of[section], given, keys)
        if found is not None:
            raise RecordingError(
                f"recording: {self.folder} was made with {found}: record again, or configure the recorded value"
            )


def different_setting(section: str, recorded: Any, given: Any, keys: Sequence[str] | None = None) -> str | None:
    """Describe the first setting that differs within a section of ``made_of``. Return None if all are equal."""
    name, key = "verifier" if section == "law" else section, None
    if isinstance(recorded, Mapping) and isinstance(given, Mapping):
        key = next((key for key in keys or sorted({*recorded, *given}) if recorded.get(key) != given.get(key)), None)
        if key is None:
            return None
        name, recorded, given = f"{name}.{key}", recorded.get(key), given.get(key)
    return None if recorded == given else f"{name} {recorded!r}, and the configured one is {given!r}"


def hash_of(prompt: Prompt) -> str:
    """Return a hash of a prompt, covering the text of all its turns and the tokens of the first."""
    return sha256(repr((prompt.turns, prompt.token_ids)).encode())[:16]


def difference(recorded: Fingerprint, given: Fingerprint) -> str | None:
    """Describe the first difference between the recorded and the given models. Return None if there is none."""
    found = first_difference(recorded, given)
    if found is None:
        return None
    section, key, known, value = found
    return f"another {'target' if section == 'model' else section} ({key} {known}, and the configured one has {value})"


def check_file(path: Path, entry: FileEntry) -> bytes:
    """Return the contents of a Parquet file. Raises RecordingError if it is missing or damaged."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise RecordingError(
            f"recording: {path} cannot be read ({error.strerror or error}): {_NEEDED} again"
        ) from error
    if len(data) != entry["bytes"] or sha256(data) != entry["sha256"]:
        changed = len(data) == entry["bytes"]
        what = "other bytes than were written" if changed else f"{len(data)} of {entry['bytes']} bytes"
        raise RecordingError(f"recording: {path} was truncated or changed (it holds {what}): {_NEEDED} again")
    return data


def read_turns(path: Path, entry: FileEntry) -> Iterator[RecordedTurn]:
    """Yield the turns in a Parquet file. Raises RecordingError if it is missing or damaged."""
    import pandas as pd

    content = BytesIO(check_file(path, entry))
    yield from map(RecordedTurn.from_row, pd.read_parquet(content).to_dict("records"))


def write_turns(path: Path, turns: Sequence[RecordedTurn]) -> FileEntry:
    """Write turns to a Parquet file atomically, and return its manifest entry."""
    import pandas as pd

    data = bytes(pd.DataFrame([turn.to_row() for turn in turns]).to_parquet(index=False))
    atomic_write(path, data)
    return {
        "sha256": sha256(data),
        "bytes": len(data),
        "turns": len(turns),
        "conversations": [list(one) for one in dict.fromkeys((turn.prompt_id, turn.sample) for turn in turns)],
    }


def weights_fingerprint(model: PreTrainedModel | LlamaCppModel) -> dict[str, Any]:
    """Return a model's dtype, parameter count and weight hash, to detect fine-tuning or a change of precision.

    For speed, the hash covers the name, shape, dtype and at most 1,024 evenly spaced values of each parameter.
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
    if source := getattr(model.config, "weights_from", None):
        dtype += f", weights from {source}"
    return {"dtype": dtype, "parameters": count, "weights_sha256": digest.hexdigest()}


def recording_fingerprint(pair: ModelPair) -> Fingerprint:
    """Return the fingerprint that artifacts store (tokenizer and target), plus weight hashes of both models."""
    sections = fingerprint(pair.target, pair.tokenizer)
    sections["target"] = weights_fingerprint(pair.target)
    if pair.draft is not None:
        sections["draft"] = weights_fingerprint(pair.draft)
    return sections
