"""One answered turn of a recording, and estimates of answers that were not recorded.

An unrecorded answer of the target is estimated by its answer after the same two tokens, or after the last one alone, at
the nearest position. After drafted tokens a later position counts too, since the estimate is the target's answer there
and not the output. Along the output itself only earlier positions count.
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
    """The prompt and answer of a turn, with the answers of target and draft on the way."""

    prompt_id: str
    category: str
    index: int  # position of the prompt in its set
    sample: int  # number of the continuation
    turn: int  # position in the conversation of ``turns`` turns, from 0
    turns: int
    prompt: NDArray[np.int32]  # tokens before the answer, with those of earlier turns and their answers
    answer: NDArray[np.int32]
    finish_reason: str  # ``eos``, ``length`` or ``context``
    asked: NDArray[
        np.int32
    ]  # [a, k] the target's best tokens after each token of this turn's prefill, best first
    asked_logits: NDArray[np.float32]  # [a, k]
    trie: Trie  # answers of both models after the prompt, the answer's tokens and drafted tokens

    def to_row(self) -> dict[str, Any]:
        """Return one row of a table, with flat lists."""
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
"""``[k]`` best tokens of the target and their logits."""
Gram = tuple[int, ...]
"""One or two tokens by which an estimate is looked up."""


class NgramFallback:
    """Recorded answers of the target in all turns, by the last tokens before them."""

    def __init__(self, turns: Iterable[RecordedTurn]) -> None:
        self._turns = {_key(turn): _AnsweredNodes(turn) for turn in turns}
        # The last answered node of each gram in the last two turns that have it.
        self._last: dict[Gram, list[tuple[_AnsweredNodes, int]]] = {}
        for answered in self._turns.values():
            for gram, nodes in answered.nodes.items():
                self._last[gram] = [*self._last.get(gram, ())[-1:], (answered, nodes[-1])]

    def after(self, turn: RecordedTurn, root: int, path: Gram) -> Answer | None:
        """Return the answer after the same one or two tokens as ``path``, below ``root`` new tokens of a turn."""
        own = self._turns[_key(turn)]
        for gram in (path, path[1:]) if len(path) > 1 else (path,):
            node = own.nearest(gram, root)
            if node != NOWHERE:
                return turn.trie.target[node]
            for answered, other in self._last.get(gram, ())[::-1]:
                if answered is not own:
                    return answered.turn.trie.target[other]
        return None


def _key(turn: RecordedTurn) -> tuple[str, int, int]:
    return turn.prompt_id, turn.sample, turn.turn


class _AnsweredNodes:
    """Answered nodes of one turn by the tokens that lead to them, in the order of their positions in the output."""

    def __init__(self, turn: RecordedTurn) -> None:
        self.turn = turn
        self.nodes: dict[Gram, list[int]] = {}
        self._offs: dict[Gram, list[int]] = {}
        trie = turn.trie
        parents, tokens, counts = trie.parents.tolist(), trie.tokens.tolist(), trie.target.counts.tolist()
        off = list(range(len(parents)))  # the last spine node above each node
        for node in range(trie.spine + 1, len(parents)):
            off[node] = off[parents[node]]
        for node in sorted(range(1, len(parents)), key=off.__getitem__):
            if counts[node]:
                gram = tokens[parents[node]], tokens[node]
                for key in (gram, gram[1:]):
                    self.nodes.setdefault(key, []).append(node)
                    self._offs.setdefault(key, []).append(off[node])

    def nearest(self, gram: Gram, root: int) -> int:
        """Return the node whose spine node is nearest to ``root``, the earlier of two; none of the output to come."""
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
