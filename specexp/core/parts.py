"""Groups the four parts of a decoder, and checks that they fit together before anything runs.

The loop (:mod:`specexp.core.loop`) and all higher layers use parts only through the contracts of their families.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from inspect import signature
from typing import TYPE_CHECKING, NamedTuple, Self, TypeVar

from typing_extensions import override

from specexp.core.context import Context
from specexp.core.contracts import ArgmaxVerifier, BuilderLimits, Controller, Drafter, TreeBuilder, Verifier
from specexp.core.dialogue import PLAIN
from specexp.core.tree import NodeKind

if TYPE_CHECKING:
    from specexp.core.runtime import Runtime


AnyPart = TypeVar("AnyPart", Drafter, TreeBuilder, Controller)


def parts_in(part: AnyPart | None) -> Iterator[AnyPart]:
    """Yield a drafter, builder or controller, followed by all parts of the same kind nested in it."""
    if part is not None:
        yield part
        for inner in part.inner:
            yield from parts_in(inner)


class _FourParts(NamedTuple):
    drafter: Drafter | None
    builder: TreeBuilder | None
    verifier: Verifier
    controller: Controller


class Parts(_FourParts):
    """The arguments of :class:`specexp.Decoder` after the target: ``Decoder(target, *parts)``.

    ``drafter`` and ``builder`` are None for plain decoding. The default verifier is the greedy :class:`ArgmaxVerifier`,
    and the default controller is :class:`BuilderLimits`.
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
        return super().__new__(cls, drafter, builder, verifier or ArgmaxVerifier(), controller or BuilderLimits())

    @property
    def max_rows(self) -> int:
        """Number of rows in the largest tree, root included. A cache needs room for them after the committed tokens."""
        return 1 + (0 if self.builder is None else self.builder.max_nodes)

    @property
    def wants_prefill_logits(self) -> bool:
        """True if the drafter needs the target's logits at every prompt position."""
        return self.drafter is not None and self.drafter.wants_prefill_logits

    @property
    def wants_hidden(self) -> bool | tuple[int, ...]:
        """The target's hidden states that the drafter needs, in the format of :meth:`Target.keep_hidden`."""
        return False if self.drafter is None else self.drafter.wants_hidden

    @property
    def reads_answers(self) -> bool:
        """True if the drafter or controller learns from the target's logits. A drafting worker then needs them too."""
        # a wrapper does not declare what its inner drafters learn from
        if any(drafter.learns_from != "nothing" for drafter in parts_in(self.drafter)):
            return True
        return self.controller.learns and self.controller.reads_answers

    @property
    def keeps_learning(self) -> bool:
        """True if the drafter or controller keeps learned state for the next prompt. A part with state but no policy is
        assumed to keep it.
        """
        learning = [part for part in (self.drafter, self.controller) if part is not None]
        return any(part.shares_state or (part.state is None and part.state_dict()) for part in learning)

    def context(self, token_ids: Sequence[int], seed: int, sequence: int | str) -> Context:
        """Return a context for a new sequence, with noise at the verifier's temperature."""
        noise_temperature = self.verifier.noise_temperature or 0.0
        return Context(token_ids, seed=seed, sequence=sequence, noise_temperature=noise_temperature)

    @property
    def label(self) -> str:
        """The composition's name in a latency profile, such as ``plain``, ``DraftModel + DySpecGreedy``, ``coupled
        TokenRecycling + StaticTree`` (any fixed shape), or ``Union(PromptLookup, TokenRecycling) + StaticTree``.
        """
        if self.drafter is None or self.builder is None:
            return PLAIN
        coupled = "coupled " if self.drafter.coupled else ""
        return f"{coupled}{_drafter_label(self.drafter)} + {_builder_label(self.builder)}"


def _drafter_label(drafter: Drafter) -> str:
    name, inner = type(drafter).__name__, map(_drafter_label, drafter.inner)
    return f"{name}({', '.join(inner)})" if drafter.inner else name


def _builder_label(builder: TreeBuilder) -> str:
    if builder.shape is not None:  # all fixed shapes have equal costs
        return "StaticTree"
    name = type(builder).__name__
    inner = dict.fromkeys(map(_builder_label, builder.inner))
    return f"{name}({', '.join(inner)})" if inner else name


def check_composition(
    drafter: Drafter | None,
    builder: TreeBuilder | None,
    verifier: Verifier | None = None,
    controller: Controller | None = None,
) -> None:
    """Raise ``ValueError`` if the parts cannot work together. The message states what to change."""
    given = {"drafter": drafter, "builder": builder, "verifier": verifier, "controller": controller}
    for (role, part), family in zip(given.items(), (Drafter, TreeBuilder, Verifier, Controller), strict=True):
        if part is not None and not isinstance(part, family):
            what = f"the class {part.__name__}" if isinstance(part, type) else f"a {type(part).__name__}"
            raise ValueError(
                f"the {role} must be a {family.__name__}, got {what}: the order is drafter, builder, verifier, "
                "controller"
            )
    if drafter is None or builder is None:
        if (drafter is None) != (builder is None):
            missing = "drafter" if drafter is None else "builder"
            raise ValueError(f"the composition has no {missing}: give both drafter and builder, or neither")
    else:
        _check_candidates(drafter, builder)
        # a coupled drafter must add the same noise to a token as the verifier
        if drafter.coupled and verifier is not None and verifier.noise_temperature is None:
            raise ValueError(
                f"{type(drafter).__name__} is coupled, but {type(verifier).__name__} draws noise of its own: "
                "set coupled to false or verify with KeyedSampling"
            )
        for sentence in () if verifier is None else _unmet_by_builder(verifier, builder):
            raise ValueError(f"{type(verifier).__name__} {sentence}")
    if controller is not None:
        controller.check_parts(drafter, builder, verifier)
        for sentence in _conflicts_of(controller, drafter, builder):
            raise ValueError(f"{type(controller).__name__} {sentence}")


def _conflicts_of(controller: Controller, drafter: Drafter | None, builder: TreeBuilder | None) -> Iterator[str]:
    """Yield a message for each requirement of the controller that the other parts do not meet."""
    name = "plain decoding" if builder is None else type(builder).__name__
    if controller.needs_log_probs and drafter is not None and not drafter.gives_log_probs:
        yield f"needs draft probabilities, but {type(drafter).__name__} gives none: draft with DraftModel"
    if controller.reads_states and drafter and type(drafter).path_states is Drafter.path_states:
        yield f"reads a draft model's states, but {type(drafter).__name__} gives none: draft with DraftModel"
    if builder is not None and controller.num_choices > builder.num_choices:
        choices = f"chooses from {controller.num_choices} builders, but {name} holds {builder.num_choices}"
        yield f"{choices}: list {controller.num_choices} builders in a Choice"
    stops = type(controller).keep_drafting is not Controller.keep_drafting
    if stops and builder is not None and _flattens(builder):
        yield "may end a draft because of a drawn token, which changes the output: set acceptance_power to 1"
    if controller.plans_threshold and (builder is None or not builder.takes_threshold):
        yield f"plans a threshold, but {name} does not take one: use DySpecThreshold"


def _flattens(builder: TreeBuilder) -> bool:
    """Return whether a builder flattens acceptance estimates, so that a node may be left out because of its token."""
    return getattr(builder, "acceptance_power", 1.0) < 1.0 or any(map(_flattens, builder.inner))


def _check_candidates(drafter: Drafter, builder: TreeBuilder) -> None:
    for inner in builder.inner:  # each has its own width and kind
        _check_candidates(drafter, inner)
    for sentence in _unmet_by(type(drafter).__name__, drafter, builder):
        raise ValueError(f"{type(builder).__name__} {sentence}")


def _unmet_by(name: str, drafter: Drafter, builder: TreeBuilder) -> Iterator[str]:
    """Yield a message for each of the builder's requests that the drafter cannot answer."""
    if builder.max_candidates > drafter.max_candidates and not builder.accepts_fewer_candidates:
        limit = f"{name} ranks at most {drafter.max_candidates}"
        yield f"asks for {builder.max_candidates} candidates a node, but {limit}: narrow the tree or widen the drafter"
    if builder.phrase_length > drafter.phrase_length:
        has = f"keeps phrases of {drafter.phrase_length}: set phrase_length of both to the same value"
        has = has if drafter.phrase_length > 1 else "has none: wrap it in a PhraseCache"
        yield f"asks for phrases of {builder.phrase_length} tokens, but {name} {has}"
    if builder.needs_log_probs and not drafter.gives_log_probs:
        yield f"needs draft probabilities, but {name} gives none: use the drafter DraftModel or a static tree"
    # a coupled drafter ranks candidates by the target's noise
    if builder.kind is not NodeKind.POINT_MASS and drafter.coupled:
        yield f"draws its candidates, but {name} is coupled: set candidates to top-k or coupled to false"
    elif builder.kind is not NodeKind.POINT_MASS and not drafter.draws:
        yield f"draws its candidates, but {name} has no distribution to draw from: set candidates to top-k"


def _unmet_by_builder(verifier: Verifier, builder: TreeBuilder) -> Iterator[str]:
    """Yield a message for each requirement of the verifier that the builder does not meet."""
    name = type(builder).__name__
    if verifier.needs_draws and builder.kind is NodeKind.POINT_MASS:
        can = "candidates" in signature(type(builder)).parameters
        draw = "set candidates to drawn" if can else "use a builder that draws"
        yield f"gains nothing if {name} does not draw: {draw} or verify with RejectionSampling"
    if not verifier.takes_trees and builder.max_leaves > 1:
        yield f"verifies chains, but {name} makes trees: use a Chain or verify with TraversalVerification"


def join_target(parts: Parts, target: Runtime) -> None:
    """Connect the parts to the target; raises ``ValueError`` if they do not work with it."""
    if parts.drafter is not None:
        parts.drafter.check_vocabulary(target.vocab_size)
        parts.drafter.use_target(target)
        target.keep_hidden(parts.drafter.wants_hidden)
    if parts.builder is None:
        return
    name = type(parts.builder).__name__
    nodes = parts.builder.max_nodes
    leaves = parts.builder.max_leaves
    if nodes >= target.context_limit:
        room = f"the target's context holds {target.context_limit} tokens"
        raise ValueError(f"{name} makes trees of up to {nodes} nodes, but {room}: lower its budget")
    drafts = () if parts.drafter is None else parts.drafter.models  # draft models process the same tree
    if leaves > (most := min(model.max_leaves for model in (target, *drafts))):
        raise ValueError(
            f"{name} makes trees of up to {leaves} leaves, but a pass takes at most {most}: lower its budget"
        )
