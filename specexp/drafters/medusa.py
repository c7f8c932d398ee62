"""Medusa: heads on the target's last hidden state predict several future tokens at once (Cai et al. 2024)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from typing_extensions import override

from specexp.base.checked import Reference
from specexp.core.context import Context
from specexp.core.contracts import Drafter
from specexp.core.dialogue import Candidates, Request
from specexp.core.outcome import Outcome
from specexp.core.runtime import Runtime
from specexp.drafters.draft_vocabulary import DraftVocabulary, VocabularyFile, VocabularySize
from specexp.drafters.ranking import Scoring, Temperature, ToRank, answered_in_part, rank
from specexp.drafters.target_mark import MARK, check_arrays, output_layer

if TYPE_CHECKING:
    import torch
    from torch import nn


class Medusa(Drafter):
    """Drafts each depth with a separate head, which reads the hidden state at the position before the root.

    A head does not see the tokens drafted at earlier depths. All nodes at a given depth therefore have the same
    candidates, and one pass over the heads drafts a whole tree. The first step uses the prompt's last hidden state.
    Heads work only with the target they were trained for; ``experiments/heads`` trains them.

    Args:
        head: arrays of :class:`~specexp.drafters.networks.MedusaHeads`, and the mark that identifies its target; in a
            configuration, the path to a ``draft-head`` artifact.
        temperature: this, the remaining arguments and the errors are as in :class:`~specexp.drafters.DraftModel`.

    Raises:
        ValueError: ``head`` does not have the expected arrays.
    """

    gives_log_probs = True
    learns_from = "accepted"
    runs_model = True
    max_candidates: int = 2**31  # until the vocabulary is known
    wants_hidden = True
    _network: nn.Module  # set by use_target(), like the output layer
    _output: Callable[[torch.Tensor], torch.Tensor]

    def __init__(
        self,
        head: Annotated[Mapping[str, Any], Reference("draft-head")],
        temperature: Temperature | None = None,
        coupled: bool = False,
        vocabulary: VocabularyFile | None = None,
        vocabulary_size: VocabularySize | None = None,
    ) -> None:
        check_arrays("Medusa", head, ("bias", MARK, "weight"))
        self.coupled = coupled
        self.draws = not coupled
        self._head = head
        self._vocabulary = vocabulary, vocabulary_size
        self._reduced: DraftVocabulary | None = None
        self._choice = Scoring(temperature, coupled=coupled)
        self._take(None)

    @override
    def check_vocabulary(self, vocab_size: int) -> None:
        self.max_candidates = vocab_size

    @override
    def use_target(self, target: Runtime) -> None:
        from specexp.core.language_model import final_logits
        from specexp.drafters.networks import MedusaHeads

        network = MedusaHeads.of(self._head)
        output = output_layer(target, self._head, network.weight.shape[-1], "Medusa")
        self._reduced = DraftVocabulary.read(*self._vocabulary, target.vocab_size)
        if self._reduced is not None:
            output = self._reduced.layer(output)
        self._output = partial(final_logits, target.model, output=output)
        self._network = network.to(device=target.device, dtype=target.dtype)

    @override
    def for_new_sequence(self) -> Medusa:
        other = copy(self)
        other.reset()
        return other

    @override
    def begin(self, context: Context, prefill: Outcome | None) -> None:
        self._take(None if prefill is None or prefill.hidden is None else prefill.hidden[-1])

    @override
    def costs_pass(self, request: Request) -> bool:
        return self._state is not None and self._answers is None

    @override
    def propose(self, context: Context, request: Request) -> Candidates:
        fed = self.costs_pass(request)
        logits = self._logits()
        heads = 0 if logits is None else logits.shape[0]
        reached = [index for index, depth in enumerate(request.depths()) if depth < heads]

        def answer(part: Request) -> Candidates:
            assert logits is not None
            # head k predicts the tokens at depth k + 1, that is, the children of nodes at depth k
            return rank(self._choice, [ToRank(context, part, logits[part.depths()], self._reduced)])[0]

        if len(reached) == request.rows.size:
            candidates = answer(request)
        else:
            candidates = answered_in_part(request, self.max_candidates, reached, answer)
        return replace(candidates, pass_tokens=(1,)) if fed else candidates

    @override
    def observe(self, outcome: Outcome) -> None:
        assert outcome.hidden is not None  # wants_hidden
        row = (0, *outcome.accepted)[len(outcome.new_token_ids) - 1]  # its answer is the next root
        self._take(outcome.hidden[row])

    @override
    def reset(self) -> None:
        self._take(None)

    def _take(self, state: torch.Tensor | None) -> None:
        self._state = None if state is None else state.clone()  # frees the pass's other rows
        self._answers: torch.Tensor | None = None  # [heads, V] logits of the step

    def _logits(self) -> torch.Tensor | None:
        """Return ``[heads, V]`` logits for this step, or None if there is no hidden state."""
        import torch

        if self._answers is None and self._state is not None:
            with torch.inference_mode():
                self._answers = self._output(self._network(self._state))
        return self._answers
