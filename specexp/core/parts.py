"""The four parts together: what a decoder takes after its target.

A drafter guesses, a builder decides which guesses become nodes of a tree, a verifier which of them become output, and a
controller how much to draft. The loop (:mod:`specexp.core.decode`) and everything above know parts by the contracts of
their families alone; what a part is capable of it declares, and what it does not declare is taken to be the least
favourable.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Self

from typing_extensions import override

from specexp.core.context import Context
from specexp.core.controller import BuilderLimits, Controller
from specexp.core.drafter import Drafter
from specexp.core.latency import PLAIN
from specexp.core.tree_builder import TreeBuilder
from specexp.core.verifier import ArgmaxVerifier, Verifier


class _FourParts(NamedTuple):
    drafter: Drafter | None
    builder: TreeBuilder | None
    verifier: Verifier
    controller: Controller


class Parts(_FourParts):
    """What :class:`specexp.Decoder` takes after the target: ``Decoder(target, *parts)``.

    Args:
        drafter: who guesses; None, with ``builder`` None, for plain decoding.
        builder: which guesses become nodes.
        verifier: what is accepted; greedy decoding (:class:`ArgmaxVerifier`) if None.
        controller: how much to draft; :class:`BuilderLimits` if None.
    """

    __slots__ = ()

    @override
    def __new__(
        cls,
        drafter: Drafter | None = None,
        builder: TreeBuilder | None = None,
        verifier: Verifier | None = None,
        controller: Controller | None = None,
    ) -> Self:
        return super().__new__(
            cls, drafter, builder, verifier or ArgmaxVerifier(), controller or BuilderLimits()
        )

    @property
    def max_rows(self) -> int:
        """Rows of the largest tree, its root included: the room a cache must keep beside the committed tokens."""
        return 1 + (0 if self.builder is None else self.builder.max_nodes)

    @property
    def wants_prefill_logits(self) -> bool:
        """Whether the drafter needs the target's logits of every prompt position."""
        return self.drafter is not None and self.drafter.wants_prefill_logits

    @property
    def reads_answers(self) -> bool:
        """Whether drafter or controller learn from the target's answers, so that who drafts elsewhere needs them."""
        drafters = [self.drafter] if self.drafter is not None else []
        for drafter in drafters:
            drafters += drafter.inner
        if any(drafter.learns_from != "nothing" for drafter in drafters):
            return True
        return self.controller.learns and self.controller.reads_answers

    @property
    def keeps_learning(self) -> bool:
        """Whether drafter or controller know more after a prompt than before it, and start the next one from that; one
        that states no policy of its state keeps it.
        """
        learning = [part for part in (self.drafter, self.controller) if part is not None]
        return any(
            part.shares_state or (not hasattr(part, "state") and part.state_dict()) for part in learning
        )

    @property
    def wants_hidden(self) -> bool:
        """Whether the drafter needs the target's hidden states."""
        return self.drafter is not None and self.drafter.wants_hidden

    def context(self, token_ids: Sequence[int], seed: int, sequence: int | str) -> Context:
        """A sequence that begins, its noise at the verifier's temperature."""
        noise_temperature = self.verifier.noise_temperature or 0.0
        return Context(token_ids, seed=seed, sequence=sequence, noise_temperature=noise_temperature)

    @property
    def label(self) -> str:
        """What a latency profile calls the composition: ``DraftModel + DySpecGreedy``, ``coupled TokenRecycling +
        StaticTree`` (for all trees of a fixed shape cost the same beside their passes), ``Union(PromptLookup,
        TokenRecycling) + StaticTree``, or ``plain``.
        """
        if self.drafter is None or self.builder is None:
            return PLAIN
        coupled = "coupled " if self.drafter.coupled else ""
        return f"{coupled}{_drafter_label(self.drafter)} + {_builder_label(self.builder)}"


def _drafter_label(drafter: Drafter) -> str:
    name, inner = type(drafter).__name__, map(_drafter_label, drafter.inner)
    return f"{name}({', '.join(inner)})" if drafter.inner else name


def _builder_label(builder: TreeBuilder) -> str:
    if builder.fixed_shape:
        return "StaticTree"
    name, inner = type(builder).__name__, dict.fromkeys(map(_builder_label, builder.inner))
    return f"{name}({', '.join(inner)})" if inner else name
