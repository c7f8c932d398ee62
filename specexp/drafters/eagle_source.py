"""The draft source of :class:`~specexp.drafters.Eagle`: one layer over the target's hidden states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from typing_extensions import override

from specexp.core.context import Context
from specexp.drafters.draft_source import DraftSource, Fed

if TYPE_CHECKING:
    from torch import nn

    from specexp.drafters.networks import EagleHead, KeysValues


class EagleSource(DraftSource):
    """An EAGLE head and its KV cache for one sequence.

    A row is computed from a token and the hidden state of the position before it. This state is the target's for
    committed tokens and the head's for drafted ones. Drafted rows are dropped when the step ends, and accepted tokens
    are fed again with the target's states.
    """

    vocab_size: int = 0
    context_limit: int = 0

    def __init__(
        self, head: EagleHead, embeddings: nn.Module, output: nn.Module, vocab_size: int, context_limit: int
    ) -> None:
        self._head, self._embeddings, self._output = head, embeddings, output
        self.vocab_size, self.context_limit = vocab_size, context_limit
        weight = head.fuse.weight
        self._device, self._dtype = weight.device, weight.dtype
        self._states = weight.new_empty((0, weight.shape[0]))  # [positions, d] of the target
        self._empty = weight.new_empty((head.heads, 0, weight.shape[0] // head.heads))
        self._cache: KeysValues = (self._empty, self._empty)
        self._clear_step()

    @property
    @override
    def length(self) -> int:
        return self._cache[0].shape[-2]

    def learn(self, states: torch.Tensor) -> None:
        """Append the target's hidden states ``[m, d]`` (inputs of its output layer) for the next positions."""
        self._states = torch.cat((self._states, states.to(self._dtype)))

    def begin(self, positions: int, states: torch.Tensor | None) -> None:
        """Set the target's hidden states for the first ``positions`` tokens.

        Args:
            positions: number of positions fed to the target.
            states: ``[m, d]`` hidden states of the last of them; unknown states before these become zero.
        """
        given = 0 if states is None else states.shape[0]
        before = self._states[: positions - given]
        gap = self._states.new_zeros((positions - given - before.shape[0], before.shape[1]))
        self._states = torch.cat((before, gap))
        if states is not None:
            self.learn(states)

    @override
    def truncate(self, rows: int) -> None:
        self._cache = self._cache[0][:, :rows], self._cache[1][:, :rows]
        self._clear_step()

    def forget_states(self) -> None:
        """Drop the target's hidden states."""
        self._states = self._states[:0]

    @override
    def copy_from(self, other: DraftSource, rows: int) -> None:
        assert isinstance(other, EagleSource)
        self._cache = other._cache[0][:, :rows].clone(), other._cache[1][:, :rows].clone()
        self._clear_step()

    @override
    def prefill(self, token_ids: Sequence[int]) -> None:
        if token_ids:
            past, count = self.length, len(token_ids)
            self._run_committed(token_ids, np.arange(past, past + count))
            self.commit(range(count))

    @override
    @torch.inference_mode()
    def feed(self, context: Context, fed: Fed) -> list[Any]:
        past, answers = self.length, []
        tokens, depths = list(fed.tokens), np.array(fed.depths)
        if fed.known == 0:  # committed tokens share one pass: their states are the target's, already known
            count = fed.pending
            self._run_committed(tokens[:count], depths[:count] + past)
            answers.append((self._output(self._made[-1:]), 0))
            tokens, depths = tokens[count:], depths[count:]
        nodes = list(range(fed.known or 1, len(fed.ancestors)))
        parents = [fed.ancestors[node][-2] for node in nodes]
        found: dict[int, Any] = {}
        # one pass of the head per level, since a node's row needs its parent's state
        for depth in sorted(set(depths.tolist())):
            level = [index for index in range(len(nodes)) if depths[index] == depth]
            rows = self._made.shape[0]  # rows of the step so far
            for index in level:
                self._rows[nodes[index]] = rows + level.index(index)
            visible = torch.zeros(
                (len(level), past + rows + len(level)), dtype=torch.bool, device=self._device
            )
            visible[:, : past + self._pending] = True
            for place, index in enumerate(level):
                visible[place, [past + self._row(node) for node in fed.ancestors[nodes[index]]]] = True
            states = self._made[[self._row(parents[index]) for index in level]]
            self._run([tokens[index] for index in level], states, depths[level] + past, visible)
            logits = self._output(self._made[rows:])  # [m, V]
            found.update((index, (logits, place)) for place, index in enumerate(level))
        return answers + [found[index] for index in range(len(nodes))]

    @override
    def commit(self, rows: Sequence[int]) -> None:
        kept = [row for row in rows if row < self._pending]  # drafted rows used the head's states
        self._cache = (
            torch.cat((self._cache[0], self._step[0][:, kept]), dim=-2),
            torch.cat((self._cache[1], self._step[1][:, kept]), dim=-2),
        )
        self._clear_step()

    @override
    def for_new_sequence(self) -> EagleSource:
        return EagleSource(self._head, self._embeddings, self._output, self.vocab_size, self.context_limit)

    def _clear_step(self) -> None:
        self._step: KeysValues = (self._empty, self._empty)  # keys and values of the step's rows
        self._made = self._states[:0]  # [rows, d] states that the head predicted for them
        self._rows: dict[int, int] = {}  # node below the root -> row of the step
        self._pending = 0

    def _row(self, node: int) -> int:
        return self._rows[node] if node else self._pending - 1

    def _run_committed(self, tokens: Sequence[int], positions: Any) -> None:
        """Run the head on committed tokens, each with the target's hidden state of the position before it."""
        past, self._pending = self.length, len(tokens)
        zero = self._states.new_zeros((1, self._states.shape[1]))  # the state before the first token
        states = torch.cat((zero, self._states))[past : past + self._pending]
        visible = torch.ones((self._pending, past + self._pending), dtype=torch.bool, device=self._device)
        self._run(tokens, states, positions, visible.tril(past))

    def _run(
        self, tokens: Sequence[int], states: torch.Tensor, positions: Any, visible: torch.Tensor
    ) -> None:
        ids = torch.tensor(tokens, device=self._device)
        keys = (
            torch.cat((self._cache[0], self._step[0]), dim=-2),
            torch.cat((self._cache[1], self._step[1]), dim=-2),
        )
        places = torch.as_tensor(positions, device=self._device)
        with torch.inference_mode():
            embedded = self._embeddings(ids).to(self._dtype)
            made, (k, v) = self._head(embedded, states, places, visible, keys)
        self._step = torch.cat((self._step[0], k), dim=-2), torch.cat((self._step[1], v), dim=-2)
        self._made = torch.cat((self._made, made))
