"""EAGLE: a layer on top of the target's hidden states predicts the next hidden states (Li et al. 2024)."""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, cast

from typing_extensions import override

from specexp.base.checked import Reference
from specexp.core.context import Context
from specexp.core.outcome import Outcome
from specexp.drafters.draft_model import SelfDrafter
from specexp.drafters.draft_vocabulary import DraftVocabulary, VocabularyFile, VocabularySize
from specexp.drafters.ranking import Temperature, TopK, TopP
from specexp.drafters.target_mark import MARK, check_arrays, output_layer

if TYPE_CHECKING:
    from specexp.core.runtime import Runtime
    from specexp.drafters.eagle_source import EagleSource


_WEIGHTS = ("fuse", "norm_attention", "qkv", "out", "norm_inner", "gate_up", "down")
_ARRAYS = ("heads", MARK, "fuse.bias", *(f"{name}.weight" for name in _WEIGHTS))  # of an EagleHead, and its mark


class StatesDrafter(SelfDrafter, ABC):
    """A :class:`SelfDrafter` with a source that reads the target's hidden states."""

    learns_from = "accepted"
    wants_hidden: bool | tuple[int, ...] = True

    @property
    @override
    def source(self) -> EagleSource:
        return cast("EagleSource", super().source)

    @override
    def begin(self, context: Context, prefill: Outcome | None) -> None:
        if not context.continued:
            self.reset()
        states = None if prefill is None else prefill.hidden
        self.source.begin(len(context) - 1, states, context.continued)
        super().begin(context, prefill)

    @override
    def observe(self, outcome: Outcome) -> None:
        assert outcome.hidden is not None  # wants_hidden
        rows = [0, *outcome.accepted][: len(outcome.new_token_ids)]  # the fed rows that were committed
        self.source.learn(outcome.hidden[rows])
        super().observe(outcome)


class Eagle(StatesDrafter):
    """Drafts with a head that predicts a node's hidden state from the node's token and its parent's hidden state.

    Accepted tokens use the target's hidden states, and drafted tokens use those that the head predicts. The papers
    use :class:`~specexp.builders.BeamRerank` trees (EAGLE-2) and fixed trees (EAGLE). A head works only with the target
    it was trained for; ``experiments/heads`` trains one.

    Args:
        head: arrays of an :class:`~specexp.drafters.networks.EagleHead`, and the mark that identifies its target; in a
            configuration, the path to a ``draft-head`` artifact.
        temperature: this, the remaining arguments and the errors are as in :class:`~specexp.drafters.DraftModel`.

    Raises:
        ValueError: ``head`` does not have the expected arrays.
    """

    def __init__(
        self,
        head: Annotated[Mapping[str, Any], Reference("draft-head")],
        temperature: Temperature | None = None,
        top_k: TopK | None = None,
        top_p: TopP | None = None,
        coupled: bool = False,
        vocabulary: VocabularyFile | None = None,
        vocabulary_size: VocabularySize | None = None,
    ) -> None:
        check_arrays("Eagle", head, _ARRAYS)
        super().__init__(temperature, top_k, top_p, coupled)
        self._head = head
        self._vocabulary = vocabulary, vocabulary_size

    @override
    def use_target(self, target: Runtime) -> None:
        from specexp.core.language_model import final_logits
        from specexp.drafters.eagle_source import EagleSource
        from specexp.drafters.networks import EagleHead

        network = EagleHead.of({name: array for name, array in self._head.items() if name != MARK})
        output = output_layer(target, self._head, network.fuse.weight.shape[0], "Eagle")
        embeddings = target.model.get_input_embeddings()
        network = network.to(device=target.device, dtype=target.dtype)
        reduced = DraftVocabulary.read(*self._vocabulary, target.vocab_size)
        if reduced is not None:
            output = reduced.layer(output)
        width = network.fuse.weight.shape[0]
        vocabulary = target.vocab_size
        limit = target.context_limit
        logits_of = partial(final_logits, target.model, output=output)
        source = EagleSource(network, embeddings, logits_of, width, vocabulary, limit)
        source.vocabulary = reduced
        self.draft_with(source)
