"""The four parts of a decoder together, and the check that they fit, before anything runs.

The loop (:mod:`specexp.core.loop`) and everything above use parts only by the contracts of their families.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Self

from typing_extensions import override

from specexp.core.context import Context
from specexp.core.contracts import ArgmaxVerifier, BuilderLimits, Controller, Drafter, TreeBuilder, Verifier
from specexp.core.dialogue import PLAIN
from specexp.core.tree import NodeKind

if TYPE_CHECKING:
    from specexp.core.runtime import Runtime


class _FourParts(NamedTuple):
    drafter: Drafter | None
    builder: TreeBuilder | None
    verifier: Verifier
    controller: Controller


class Parts(_FourParts):
    """The arguments of :class:`specexp.Decoder` after the target: ``Decoder(target, *parts)``.

    ``drafter`` and ``builder`` are None for plain decoding. The default verifier is greedy (:class:`ArgmaxVerifier`),
    the default controller :class:`BuilderLimits`.
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
        """Rows of the largest tree, root included: the room a cache needs after the committed tokens."""
        return 1 + (0 if self.builder is None else self.builder.max_nodes)

    @property
    def wants_prefill_logits(self) -> bool:
        """True if the drafter needs the target's logits of every prompt position."""
        return self.drafter is not None and self.drafter.wants_prefill_logits

    @property
    def wants_hidden(self) -> bool:
        """True if the drafter needs the target's hidden states."""
        return self.drafter is not None and self.drafter.wants_hidden

    @property
    def reads_answers(self) -> bool:
        """True if drafter or controller learn from the target's logits, so that a drafting worker needs them."""
        # a wrapper declares only what it adds to its inner drafters
        drafters = [] if self.drafter is None else [self.drafter, *self.drafter.inner]
        if any(drafter.learns_from != "nothing" for drafter in drafters):
            return True
        return self.controller.learns and self.controller.reads_answers

    @property
    def keeps_learning(self) -> bool:
        """True if drafter or controller start the next prompt with what they learned; assumed of parts without a
        policy.
        """
        learning = [part for part in (self.drafter, self.controller) if part is not None]
        return any(part.shares_state or (part.state is None and part.state_dict()) for part in learning)

    def context(self, token_ids: Sequence[int], seed: int, sequence: int | str) -> Context:
        """Start a sequence, its noise at the verifier's temperature."""
        noise_temperature = self.verifier.noise_temperature or 0.0
        return Context(token_ids, seed=seed, sequence=sequence, noise_temperature=noise_temperature)

    @property
    def label(self) -> str:
        """Name of the composition in a latency profile: ``DraftModel + DySpecGreedy``, ``coupled TokenRecycling +
        StaticTree`` (for all fixed shapes), ``Union(PromptLookup, TokenRecycling) + StaticTree``, or ``plain``.
        """
        if self.drafter is None or self.builder is None:
            return PLAIN
        coupled = "coupled " if self.drafter.coupled else ""
        return f"{coupled}{_drafter_label(self.drafter)} + {_builder_label(self.builder)}"


def _drafter_label(drafter: Drafter) -> str:
    name, inner = type(drafter).__name__, map(_drafter_label, drafter.inner)
    return f"{name}({', '.join(inner)})" if drafter.inner else name


def _builder_label(builder: TreeBuilder) -> str:
    if builder.shape is not None:  # all fixed shapes cost alike
        return "StaticTree"
    name, inner = type(builder).__name__, dict.fromkeys(map(_builder_label, builder.inner))
    return f"{name}({', '.join(inner)})" if inner else name


def check_composition(
    drafter: Drafter | None,
    builder: TreeBuilder | None,
    verifier: Verifier | None = None,
    controller: Controller | None = None,
) -> None:
    """Raise ``ValueError`` for parts that cannot work together, in one sentence that names the change to make."""
    given = {"drafter": drafter, "builder": builder, "verifier": verifier, "controller": controller}
    for (role, part), family in zip(given.items(), (Drafter, TreeBuilder, Verifier, Controller), strict=True):
        if part is not None and not isinstance(part, family):
            what = f"the class {part.__name__}" if isinstance(part, type) else f"a {type(part).__name__}"
            raise ValueError(
                f"the {role} is {what}; a {family.__name__} is expected: the order is drafter, builder, verifier, "
                "controller"
            )
    if drafter is None or builder is None:
        if (drafter is None) != (builder is None):
            missing = "drafter" if drafter is None else "builder"
            raise ValueError(f"the composition has no {missing}: give both drafter and builder, or neither")
    else:
        _check_candidates(drafter, builder)
        # a coupled drafter needs the noise that the verifier adds to the same tokens
        if drafter.coupled and verifier is not None and verifier.noise_temperature is None:
            raise ValueError(
                f"{type(drafter).__name__} is coupled, but {type(verifier).__name__} draws noise of its own: "
                "set coupled to false or verify with KeyedSampling"
            )
    if controller is not None:
        controller.check_parts(drafter, builder, verifier)
        for sentence in _conflicts_of(controller, drafter, builder):
            raise ValueError(f"{type(controller).__name__} {sentence}")


def _conflicts_of(
    controller: Controller, drafter: Drafter | None, builder: TreeBuilder | None
) -> Iterator[str]:
    """Yield what a controller needs and the other parts lack."""
    name = "plain decoding" if builder is None else type(builder).__name__
    if controller.needs_log_probs and drafter is not None and not drafter.gives_log_probs:
        yield f"decides by draft probabilities and {type(drafter).__name__} gives none: draft with DraftModel"
    if builder is not None and controller.num_choices > builder.num_choices:
        choices = f"chooses from {controller.num_choices} builders and {name} holds {builder.num_choices}"
        yield f"{choices}: list as many builders in a Choice"
    if controller.plans_threshold and (builder is None or not builder.takes_threshold):
        yield f"plans a threshold and {name} follows none: use DySpecThreshold"


def _check_candidates(drafter: Drafter, builder: TreeBuilder) -> None:
    for inner in builder.inner:  # each has its own width and kind
        _check_candidates(drafter, inner)
    for sentence in _unmet_by(type(drafter).__name__, drafter, builder):
        raise ValueError(f"{type(builder).__name__} {sentence}")


def _unmet_by(name: str, drafter: Drafter, builder: TreeBuilder) -> Iterator[str]:
    """Yield what a builder requests and the drafter does not have."""
    if builder.max_candidates > drafter.max_candidates and not builder.accepts_fewer_candidates:
        limit = f"{name} ranks at most {drafter.max_candidates}"
        yield f"asks for {builder.max_candidates} candidates a node and {limit}: narrow the tree or widen the drafter"
    if builder.phrase_length > drafter.phrase_length:
        has = f"keeps phrases of {drafter.phrase_length}: shorten them or keep longer ones"
        has = has if drafter.phrase_length > 1 else "has none: wrap it in a PhraseCache"
        yield f"asks for phrases of {builder.phrase_length} tokens and {name} {has}"
    if builder.needs_log_probs and not drafter.gives_log_probs:
        yield f"decides by draft probabilities and {name} gives none: draft with DraftModel or build a static tree"
    if (
        builder.kind is not NodeKind.POINT_MASS and drafter.coupled
    ):  # it ranks candidates by the target's noise
        yield f"draws its candidates and {name} is coupled: set candidates to top-k or coupled to false"
    elif builder.kind is not NodeKind.POINT_MASS and not drafter.draws:
        yield f"draws its candidates and {name} has no distribution to draw from: set candidates to top-k"


def join_target(parts: Parts, target: Runtime) -> None:
    """Connect parts and target; raises ``ValueError`` if they do not fit."""
    if parts.drafter is not None:
        parts.drafter.check_vocabulary(target.vocab_size)
        parts.drafter.use_target(target)
        target.keep_hidden(parts.drafter.wants_hidden)
    if parts.builder is None:
        return
    name, nodes, leaves = type(parts.builder).__name__, parts.builder.max_nodes, parts.builder.max_leaves
    if nodes >= target.context_limit:
        room = f"the target's context holds {target.context_limit} tokens"
        raise ValueError(f"{name} makes trees of up to {nodes} nodes and {room}: lower its budget")
    drafts = () if parts.drafter is None else parts.drafter.models  # these grow the same tree
    if leaves > (most := min(model.max_leaves for model in (target, *drafts))):
        raise ValueError(
            f"{name} makes trees of up to {leaves} leaves and a pass of the model takes {most}: lower its budget"
        )
