"""One answered turn of a recording, and estimates of answers that were not recorded.

An unrecorded answer of the target is estimated by its answer after the same two tokens, or after the last one alone, as
near to the place as there is one. After drafted tokens a later place counts too, since the estimate is the target's
answer there and not the output. Along the output itself earlier places alone count.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specexp.replay.format.trie import NOWHERE, Ranked, Trie

_NUMBERS = ("index", "sample", "turn", "turns")
_TEXTS = ("prompt_id", "category", "finish_reason")


@dataclass(frozen=True)
class RecordedTurn:
    """The prompt and answer of a turn, with the answers of target and draft on the way.

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
        trie: Answers of both models after the prompt, the answer's tokens and drafted tokens.
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
        """One row of a table, with flat lists."""
        trie = self.trie
        return {
            **{name: getattr(self, name) for name in ("prompt_id", "category", *_NUMBERS, "finish_reason")},
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
            asked=ints("asked").reshape(rows, -1),
            asked_logits=floats("asked_logits").reshape(rows, -1),
            trie=Trie(ints("parents"), ints("tokens"), draft, target, answer.size),
        )


Answer = tuple[NDArray[np.int32], NDArray[np.float32]]
Gram = tuple[int, ...]
LONGEST = 2
"""Tokens by which an estimate is looked up, at most."""


class NgramFallback:
    """Recorded answers of the target in all turns, by the last tokens before them."""

    def __init__(self, turns: Iterable[RecordedTurn]) -> None:
        self._turns = {turn.key: _Places(turn) for turn in turns}
        self._last: dict[Gram, list[tuple[_Places, int]]] = {}  # of the last two turns that have it
        for places in self._turns.values():
            for gram, nodes in places.nodes.items():
                self._last[gram] = [*self._last.get(gram, ())[-1:], (places, nodes[-1])]

    def after(self, turn: RecordedTurn, root: int, path: Gram) -> Answer | None:
        """The answer after the same last tokens of ``path``, behind ``root`` new tokens of a turn."""
        own = self._turns[turn.key]
        for length in range(min(LONGEST, len(path)), 0, -1):
            gram = path[-length:]
            node = own.nearest(gram, root)
            if node != NOWHERE:
                return turn.trie.target[node]
            for places, other in self._last.get(gram, ())[::-1]:
                if places is not own:
                    return places.turn.trie.target[other]
        return None


class _Places:
    """Answered nodes of one turn by the tokens that lead to them, in the order of their places in the output."""

    def __init__(self, turn: RecordedTurn) -> None:
        self.turn = turn
        self.nodes: dict[Gram, list[int]] = {}
        self._offs: dict[Gram, list[int]] = {}
        trie = turn.trie
        parents, tokens, counts = trie.parents.tolist(), trie.tokens.tolist(), trie.target.counts.tolist()
        off = list(range(len(parents)))  # spine node that each hangs off
        for node in range(trie.spine + 1, len(parents)):
            off[node] = off[parents[node]]
        for node in sorted(range(1, len(parents)), key=off.__getitem__):
            if counts[node]:
                gram = tokens[parents[node]], tokens[node]
                for key in (gram, gram[1:]):
                    self.nodes.setdefault(key, []).append(node)
                    self._offs.setdefault(key, []).append(off[node])

    def nearest(self, gram: Gram, root: int) -> int:
        """The node that hangs off the place nearest to ``root``, the earlier of two; none of the output to come."""
        offs = self._offs.get(gram)
        if offs is None:
            return NOWHERE
        nodes, spine = self.nodes[gram], self.turn.trie.spine
        after = bisect_left(offs, root + 1)
        later = after
        while later < len(nodes) and nodes[later] <= spine:
            later += 1
        if later == len(nodes) or (after and root - offs[after - 1] <= offs[later] - root):
            return nodes[after - 1] if after else NOWHERE
        return nodes[later]
