"""Which parts go together: checked when they are composed, never in the middle of a run."""

from __future__ import annotations

from specexp.core.controller import Controller
from specexp.core.drafter import Drafter
from specexp.core.messages import shown
from specexp.core.parts import Parts
from specexp.core.runtime import Runtime
from specexp.core.tree import NodeKind
from specexp.core.tree_builder import TreeBuilder
from specexp.core.verifier import Verifier


def check_composition(
    drafter: Drafter | None,
    builder: TreeBuilder | None,
    verifier: Verifier | None = None,
    controller: Controller | None = None,
) -> None:
    """Refuse parts that cannot work together.

    Raises:
        ValueError: one sentence that says what to change.
    """
    families = (
        ("drafter", Drafter),
        ("builder", TreeBuilder),
        ("verifier", Verifier),
        ("controller", Controller),
    )
    for (role, family), part in zip(families, (drafter, builder, verifier, controller), strict=True):
        if part is not None and not isinstance(part, family):
            given = f"the class {part.__name__}" if isinstance(part, type) else f"a {type(part).__name__}"
            raise ValueError(
                f"the {role} is {given}; a {family.__name__} is expected: the order is drafter, builder, verifier, "
                "controller"
            )
    if (drafter is None) != (builder is None):
        missing = "drafter" if drafter is None else "builder"
        raise ValueError(
            f"the composition has no {missing}: give both drafter and builder, or neither for plain decoding"
        )
    if drafter is not None and builder is not None:
        _check_candidates(drafter, builder)
    if controller is not None:
        controller.check_parts(drafter, builder, verifier)
    coupled = drafter is not None and drafter.coupled
    if coupled and verifier is not None and verifier.noise_temperature is None:
        raise ValueError(
            f"{type(drafter).__name__} is coupled, but {type(verifier).__name__} draws noise of its own: "
            "set coupled to false or verify with KeyedSampling"
        )
    if (
        controller is not None
        and controller.needs_log_probs
        and drafter is not None
        and not drafter.gives_log_probs
    ):
        raise ValueError(
            f"{type(controller).__name__} decides by draft probabilities and {type(drafter).__name__} gives none: "
            "draft with DraftModel or take another controller"
        )
    if controller is not None and builder is not None and controller.num_choices > builder.num_choices:
        raise ValueError(
            f"{type(controller).__name__} chooses from {controller.num_choices} builders and {type(builder).__name__} "
            f"holds {builder.num_choices}: list as many builders in a Choice"
        )
    if (
        controller is not None
        and controller.plans_threshold
        and (builder is None or not builder.takes_threshold)
    ):
        given = "plain decoding" if builder is None else type(builder).__name__
        raise ValueError(
            f"{type(controller).__name__} plans a threshold and {given} follows none: use DySpecThreshold or "
            "another controller"
        )


def join_target(parts: Parts, target: Runtime) -> None:
    """Let parts and their target take from each other what they need, and refuse those that do not go together.

    Raises:
        ValueError: one sentence that says what to change.
    """
    if parts.drafter is not None:
        parts.drafter.check_vocabulary(target.vocab_size)
        parts.drafter.use_target(target)
        target.keep_hidden(parts.drafter.wants_hidden)
    if parts.builder is not None and parts.builder.max_nodes >= target.context_limit:
        raise ValueError(
            f"{type(parts.builder).__name__} makes trees of up to {parts.builder.max_nodes} nodes and the target's "
            f"context holds {target.context_limit} tokens: lower its budget"
        )
    for model in (target, *(() if parts.drafter is None else parts.drafter.models)):
        if parts.builder is not None and parts.builder.max_leaves > model.max_leaves:
            raise ValueError(
                f"{type(parts.builder).__name__} makes trees of up to {parts.builder.max_leaves} leaves and a pass "
                f"of the model takes {model.max_leaves}: lower its budget"
            )


def check_model(model: object) -> None:
    """Refuse what is no model of Hugging Face's.

    Raises:
        ValueError: it is a name, a pair or anything else without a configuration.
    """
    if not hasattr(getattr(model, "config", None), "get_text_config"):
        raise ValueError(
            f"a model was expected and {shown(model)} is a {type(model).__name__}: load one with specexp.load_pair "
            "or AutoModelForCausalLM.from_pretrained"
        )


def _check_candidates(drafter: Drafter, builder: TreeBuilder) -> None:
    for inner in builder.inner:  # each has a width and a kind of its own
        _check_candidates(drafter, inner)
    if builder.max_candidates > drafter.max_candidates and not builder.accepts_fewer_candidates:
        raise ValueError(
            f"the {type(builder).__name__} asks for {builder.max_candidates} candidates a node "
            f"and {type(drafter).__name__} ranks at most {drafter.max_candidates}: "
            "narrow the tree or widen the drafter"
        )
    if builder.phrase_length > drafter.phrase_length:
        raise ValueError(
            f"{type(builder).__name__} asks for phrases of {builder.phrase_length} tokens and {type(drafter).__name__} "
            + (
                f"keeps phrases of {drafter.phrase_length}: shorten them or keep longer ones"
                if drafter.phrase_length > 1
                else "has none: wrap it in a PhraseCache"
            )
        )
    if builder.needs_log_probs and not drafter.gives_log_probs:
        raise ValueError(
            f"{type(builder).__name__} decides by draft probabilities and {type(drafter).__name__} gives none: "
            "draft with DraftModel or build a static tree"
        )
    if builder.kind is not NodeKind.POINT_MASS and drafter.coupled:
        raise ValueError(
            f"{type(builder).__name__} draws its candidates and {type(drafter).__name__} is coupled, so it ranks them "
            "by the target's noise: set candidates to top-k or draft with a DraftModel that is not coupled"
        )
    if builder.kind is not NodeKind.POINT_MASS and not drafter.draws:
        raise ValueError(
            f"{type(builder).__name__} draws its candidates and {type(drafter).__name__} has no distribution to "
            "draw from: set candidates to top-k or draft with DraftModel"
        )
