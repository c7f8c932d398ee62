"""A recorded turn, and its conversion to and from a table row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specexp.replay.format.trie import Ranked, Trie

_NUMBERS = ("index", "sample", "turn", "turns")
_TEXTS = ("prompt_id", "category", "finish_reason")


@dataclass(frozen=True)
class RecordedTurn:
    """The prompt and answer of a turn, with the predictions of target and draft."""

    prompt_id: str
    category: str
    index: int  # position of the prompt in its set
    sample: int  # number of the sampled answer to this prompt
    turn: int  # position in the conversation of ``turns`` turns, from 0
    turns: int
    prompt: NDArray[np.int32]  # all tokens before the answer, including earlier turns
    answer: NDArray[np.int32]
    finish_reason: str  # ``eos``, ``repetition``, ``length`` or ``context``
    # [a, k] the target's top tokens and logits after each of the a tokens fed in this turn's prefill, best first
    prefill_top: NDArray[np.int32]
    prefill_logits: NDArray[np.float32]
    trie: Trie  # predictions of both models after the prompt, each answer token and drafted tokens

    def to_row(self) -> dict[str, Any]:
        """Return a table row, with arrays flattened."""
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
        """The inverse of :meth:`to_row`."""

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
