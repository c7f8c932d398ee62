"""The draft source for heads that read the target's hidden states, such as :class:`~specexp.drafters.Eagle`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from typing_extensions import override

from specexp.core.context import Context
from specexp.drafters.draft_source import DraftSource, Fed


class EagleSource(DraftSource):
    """An EAGLE head with its KV cache for one sequence.

    A row is computed from a token and the hidden state at the previous position. This state comes from the target for
    committed tokens, and from the head for drafted ones. Drafted rows are dropped when the step ends, and accepted
    tokens are fed again with the target's states. No state precedes the first token, so other rows ignore its row.

    Args:
        head: an ``EagleHead`` or ``Eagle3Network``.
        embed: function that maps token ids to embeddings ``[m, d]``.
        output: function that maps the head's states to logits.
        width: size of the target's hidden states.
        vocab_size: size of the target's vocabulary.
        context_limit: maximum number of positions.
    """

    def __init__(
        self,
        head: Any,
        embed: Callable[[torch.Tensor], torch.Tensor],
        output: Callable[[torch.Tensor], torch.Tensor],
        width: int,
        vocab_size: int,
        context_limit: int,
    ) -> None:
        self._given = head, embed, output, width, vocab_size, context_limit
        self._head = head
        self._embed = embed
        self._output = output
        self.vocab_size = vocab_size
        self.context_limit = context_limit
        self._states = next(head.parameters()).new_empty((0, width))  # [positions, width] of the target
        self._cache = _TreeCache()
        self._clear_step()

    @property
    @override
    def length(self) -> int:
        return self._cache.committed

    def learn(self, states: torch.Tensor) -> None:
        """Append the target's hidden states ``[m, width]`` for the next positions."""
        self._states = torch.cat((self._states, states.to(self._states)))

    def begin(self, positions: int, states: torch.Tensor | None, continued: bool) -> None:
        """Set the target's hidden states for the first ``positions`` tokens.

        Args:
            positions: number of positions fed to the target.
            states: ``[m, width]`` hidden states at the last ``m`` positions; unknown earlier states are set to zero.
            continued: whether the states of earlier turns are known.
        """
        given = 0 if states is None else states.shape[0]
        before = self._states[: positions - given if continued else 0]
        gap = self._states.new_zeros((positions - given - before.shape[0], before.shape[1]))
        self._states = torch.cat((before, gap))
        if states is not None:
            self.learn(states)

    @override
    def truncate(self, rows: int) -> None:
        self._cache.committed = min(rows, self.length)
        self._clear_step()

    @override
    def copy_from(self, other: DraftSource, rows: int) -> None:
        assert isinstance(other, EagleSource)
        self._cache = other._cache.copy(rows)
        self._clear_step()

    @override
    def prefill(self, token_ids: Sequence[int]) -> None:
        if token_ids:
            self._run_committed(token_ids)
            self.commit(range(len(token_ids)))

    @override
    @torch.inference_mode()
    def feed(self, context: Context, fed: Fed) -> list[Any]:
        past, answers = self.length, []
        tokens, depths = list(fed.tokens), np.array(fed.depths)
        if fed.known == 0:  # committed tokens share one pass, as the target's states are already known
            count = fed.pending
            self._run_committed(tokens[:count])
            answers.append((self._output(self._made[-1:]), 0))
            tokens, depths = tokens[count:], depths[count:]
        nodes = list(range(fed.known or 1, len(fed.ancestors)))
        parents = [fed.ancestors[node][-2] for node in nodes]
        found: dict[int, Any] = {}
        # one pass of the head per level, since a node's row needs its parent's state
        for depth in sorted(set(depths.tolist())):
            level = [index for index in range(len(nodes)) if depths[index] == depth]
            rows = self._made.shape[0]  # rows of the step so far
            visible = np.zeros((len(level), past + rows + len(level)), dtype=np.bool_)
            visible[:, : past + self._pending] = True
            for place, index in enumerate(level):
                self._rows[nodes[index]] = rows + place
                visible[place, [past + self._row(node) for node in fed.ancestors[nodes[index]]]] = True
            states = self._head.again(self._made[[self._row(parents[index]) for index in level]])
            self._run([tokens[index] for index in level], states, depths[level] + past, visible)
            logits = self._output(self._made[rows:])  # [m, V]
            found.update((index, (logits, place)) for place, index in enumerate(level))
        return answers + [found[index] for index in range(len(nodes))]

    @override
    def commit(self, rows: Sequence[int]) -> None:
        # drop drafted rows, which were computed from the head's states
        self._cache.committed += sum(row < self._pending for row in rows)
        self._clear_step()

    @override
    def for_new_sequence(self) -> EagleSource:
        made = type(self)(*self._given)
        made.vocabulary = self.vocabulary
        return made

    def _clear_step(self) -> None:
        self._cache.rows = self._cache.committed
        # [rows, d] states that the head predicted for the step's rows
        self._made = self._states.new_empty((0, 0))
        self._rows: dict[int, int] = {}  # node below the root -> row of the step
        self._pending = 0

    def _row(self, node: int) -> int:
        return self._rows[node] if node else self._pending - 1

    @torch.inference_mode()
    def _run_committed(self, tokens: Sequence[int]) -> None:
        """Run the head on committed tokens, each with the target's hidden state at the previous position."""
        past = self.length
        self._pending = len(tokens)
        states = self._states[max(past - 1, 0) : past + self._pending - 1]
        if past == 0:  # before the first token
            states = torch.cat((self._states.new_zeros((1, self._states.shape[1])), states))
        visible = np.tri(self._pending, past + self._pending, past, dtype=np.bool_)
        positions = np.arange(past, past + self._pending)
        self._run(tokens, self._head.fuse_states(states), positions, visible)

    def _run(self, tokens: Sequence[int], inputs: torch.Tensor, positions: Any, visible: Any) -> None:
        visible[positions > 0, 0] = False
        device = inputs.device
        embedded = self._embed(torch.tensor(tokens, device=device)).to(inputs)
        numbers = torch.as_tensor(positions, device=device)
        # if the mask hides only the first row, drop both that row and the mask
        self._cache.first = first = int(visible[:, 1:].all() and (positions > 0).all())
        mask = None if first else torch.from_numpy(visible).to(device)
        made = self._head(embedded[None], inputs[None], numbers, mask, self._cache)[0]
        self._cache.rows += len(tokens)
        self._made = torch.cat((self._made, made)) if self._made.shape[0] else made


class _TreeCache:
    """Keys and values of one sequence: committed rows, then rows of the current step."""

    def __init__(self) -> None:
        self._layers: list[list[torch.Tensor]] = []  # keys and values [1, heads, capacity, d] of each layer
        self.committed = 0  # number of committed rows
        self.rows = 0  # total number of rows; the next pass appends to them
        self.first = 0  # first row that the next pass reads

    def update(self, keys: torch.Tensor, values: torch.Tensor, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Append ``[1, heads, m, d]`` rows to a layer, and return the rows that the pass reads."""
        end = self.rows + keys.shape[-2]
        if layer == len(self._layers):
            self._layers.append([one[..., :0, :] for one in (keys, values)])
        kept = self._layers[layer]
        for place, given in enumerate((keys, values)):  # value heads may be narrower than key heads
            if end > kept[place].shape[-2]:
                grown = given.new_empty((*given.shape[:2], max(256, 2 * end), given.shape[-1]))
                grown[..., : self.rows, :] = kept[place][..., : self.rows, :]
                kept[place] = grown
            kept[place][..., self.rows : end, :] = given
        return kept[0][..., self.first : end, :], kept[1][..., self.first : end, :]

    def copy(self, rows: int) -> _TreeCache:
        made = _TreeCache()
        made._layers = [[one.clone() for one in layer] for layer in self._layers]
        made.committed = made.rows = rows
        return made
