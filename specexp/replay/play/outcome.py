"""What the recorded target said about a replayed tree."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from specexp.core.context import Context
from specexp.core.outcome import Outcome
from specexp.core.tree import TokenTree, TreeShape
from specexp.replay.format.ngram_fallback import LONGEST, Answer, NgramFallback
from specexp.replay.format.recorded_turn import RecordedTurn
from specexp.replay.format.trie import NOWHERE, NotRecordedError

if TYPE_CHECKING:
    import torch

Top = tuple[NDArray[np.int64], NDArray[np.float32]]


class RecordedOutcome(Outcome):
    """An outcome without logits: the target's best tokens come from the recording, and only if asked for.

    Args:
        turn: The turn that is replayed.
        root: The tree's root, a node of the spine.
        lenient: Whether answers that were not recorded are nobody's token instead of an error.
    """

    def __init__(
        self,
        context: Context,
        tree: TokenTree,
        accepted: tuple[int, ...],
        new_token_ids: tuple[int, ...],
        pass_tokens: tuple[int, ...],
        turn: RecordedTurn,
        root: int,
        lenient: bool = False,
    ) -> None:
        super().__init__(context, tree, NO_LOGITS, accepted, new_token_ids, pass_tokens)
        self.turn = turn
        self.root = root
        self.lenient = lenient
        self._nodes: list[int] | None = None

    @property
    def nodes(self) -> list[int]:
        """``[n + 1]`` the rows' nodes in the trie."""
        if self._nodes is None:
            child, parents = self.turn.trie.child, self.tree.shape.parents.tolist()
            self._nodes = [self.root]
            for parent, token in zip(parents[1:], self.tree.tokens.tolist()[1:], strict=True):
                self._nodes.append(child(self._nodes[parent], token))
        return self._nodes

    def recorded_part(self, fallback: NgramFallback | None = None) -> RecordedOutcome:
        """The same of the rows whose answers were recorded, or can be estimated: all that is learned from it."""
        trie = self.turn.trie
        answers: list[Answer | None] = [
            trie.target[node] if node >= 0 and trie.target.count(node) else None for node in self.nodes
        ]
        tree = self.tree
        if fallback is not None:
            tokens, parents = tree.tokens.tolist(), tree.shape.parents.tolist()
            for row, answer in enumerate(answers):
                if answer is None:
                    above = row
                    path: list[int] = []
                    while above >= 0 and len(path) < LONGEST:
                        path.append(tokens[above])
                        above = parents[above]
                    answers[row] = fallback.after(self.turn, self.root, tuple(path[::-1]))
        known = np.array([answer is not None for answer in answers])
        part = self
        if not known.all():
            for row, parent in enumerate(tree.shape.parents.tolist()[1:], start=1):
                known[row] &= known[parent]
            part = self._of(known)
        widths = {answer[0].size for answer in answers if answer is not None}
        width = min(widths)
        kept = [
            answer
            for answer, there in zip(answers, known.tolist(), strict=True)
            if there and answer is not None
        ]
        part.top = (
            np.array([tokens[:width] for tokens, _ in kept], dtype=np.int64),
            np.array([logits[:width] for _, logits in kept], dtype=np.float32),
        )
        return part

    def _of(self, known: NDArray[np.bool_]) -> RecordedOutcome:
        """The outcome of a part of the tree."""
        tree, row = self.tree, np.cumsum(known) - 1
        part = RecordedOutcome(
            self.context,
            tree.select(known),
            tuple(int(row[accepted]) for accepted in self.accepted if known[accepted]),
            self.new_token_ids,
            self.pass_tokens,
            self.turn,
            self.root,
            self.lenient,
        )
        part.seconds = self.seconds
        part._nodes = [node for node, kept in zip(self.nodes, known.tolist(), strict=True) if kept]
        return part

    def _first(self) -> NDArray[np.int64]:
        return self._best(1)[0][:, 0].copy()

    def _best(self, k: int) -> Top:
        if self.top is None or self.top[0].shape[1] < k:
            target = self.turn.trie.target
            tokens = np.full((len(self.nodes), k), NOWHERE, dtype=np.int64)
            logits = np.full(tokens.shape, -np.inf, dtype=np.float32)
            for row, node in enumerate(self.nodes):
                found, values = target[node] if node >= 0 else (tokens[row, :0], logits[row, :0])
                if found.size < k:
                    if self.lenient:
                        continue
                    self._refuse(row, k)
                tokens[row], logits[row] = found[:k], values[:k]
            self.top = tokens, logits
        return self.top

    def _refuse(self, row: int, k: int) -> None:
        path = [int(self.tree.tokens[node]) for node in self.tree.shape.path(row)]
        raise NotRecordedError(
            f"prompt {self.turn.prompt_id!r}, after {self.root} new tokens: the target's {k} best tokens after {path} "
            "are learned from and were not recorded; record with a coverage that drafts there, and a target_top_k of "
            f"at least {k}"
        )


class RecordedPrefill(Outcome):
    """The prefill of a turn as step 0, without logits."""

    def __init__(self, context: Context, fed: NDArray[np.int64], turn: RecordedTurn) -> None:
        rows = np.arange(fed.size)
        chain = TokenTree(TreeShape(rows - 1, np.where(rows == 0, -1, 0)), fed)
        super().__init__(context, chain, NO_LOGITS, tuple(range(1, fed.size)), ())
        self.top = turn.asked.astype(np.int64), turn.asked_logits
        self.turn = turn

    def _best(self, k: int) -> Top:
        assert self.top is not None
        if self.top[0].shape[1] < k:
            raise NotRecordedError(
                f"prompt {self.turn.prompt_id!r}: the target's {k} best tokens after every token of the prompt are "
                f"learned from and {self.top[0].shape[1]} were recorded; record with a target_top_k of at least {k}"
            )
        return self.top


class _NoLogits:
    """Stands for logits where nobody reads them."""

    def __getitem__(self, row: int) -> Any:
        return self


NO_LOGITS = cast("torch.Tensor", _NoLogits())
