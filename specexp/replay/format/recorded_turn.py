"""One answered turn of a recording."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specexp.replay.format.trie import Ranked, Trie


@dataclass(frozen=True)
class RecordedTurn:
    """What was asked, what plain decoding answered, and what target and draft said on the way.

    Attributes:
        prompt_id: Name of the prompt.
        category: Category of the prompt.
        index: Place of the prompt in its set.
        sample: Number of the continuation.
        turn: Place in the conversation, from 0.
        turns: Number of turns of the conversation.
        prompt: Tokens before the answer: of a later turn all earlier ones with their answers.
        answer: The output's tokens.
        finish_reason: Why it ended: ``eos``, ``length`` or ``context``.
        asked: ``[a, k]`` the target's best tokens after each token fed by this turn's prefill, best first.
        asked_logits: ``[a, k]`` their logits.
        trie: What was said after the prompt, after the answer's tokens, and after drafted ones.
    """

    prompt_id: str
    category: str
    index: int
    sample: int
    turn: int
    turns: int
    prompt: NDArray[np.int32]
    answer: NDArray[np.int32]
    finish_reason: str
    asked: NDArray[np.int32]
    asked_logits: NDArray[np.float32]
    trie: Trie

    @property
    def key(self) -> tuple[str, int, int]:
        """Prompt, sample and turn."""
        return self.prompt_id, self.sample, self.turn

    def to_row(self) -> dict[str, Any]:
        """As one row of a table, lists flat."""
        trie = self.trie
        return {
            "prompt_id": self.prompt_id,
            "category": self.category,
            "index": self.index,
            "sample": self.sample,
            "turn": self.turn,
            "turns": self.turns,
            "finish_reason": self.finish_reason,
            "prompt": self.prompt,
            "answer": self.answer,
            "asked_rows": self.asked.shape[0],
            "asked": self.asked.ravel(),
            "asked_logits": self.asked_logits.ravel(),
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
        """From :meth:`to_row`."""

        def ints(name: str) -> NDArray[np.int32]:
            return np.asarray(row[name], dtype=np.int32)

        def floats(name: str) -> NDArray[np.float32]:
            return np.asarray(row[name], dtype=np.float32)

        answer, rows = ints("answer"), int(row["asked_rows"])
        trie = Trie(
            ints("parents"),
            ints("tokens"),
            Ranked(ints("draft_counts"), ints("draft_tokens"), floats("draft_log_probs")),
            Ranked(ints("target_counts"), ints("target_tokens"), floats("target_logits")),
            answer.size,
        )
        return RecordedTurn(
            prompt_id=str(row["prompt_id"]),
            category=str(row["category"]),
            index=int(row["index"]),
            sample=int(row["sample"]),
            turn=int(row["turn"]),
            turns=int(row["turns"]),
            prompt=ints("prompt"),
            answer=answer,
            finish_reason=str(row["finish_reason"]),
            asked=ints("asked").reshape(rows, -1),
            asked_logits=floats("asked_logits").reshape(rows, -1),
            trie=trie,
        )
