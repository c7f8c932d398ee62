"""The four parts of a decoder, and which go together: checked when composed, never in the middle of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from specexp.builders import TreeBuilder
    from specexp.controllers import Controller
    from specexp.drafters import Drafter
    from specexp.verifiers import Verifier


class Parts(NamedTuple):
    """What :class:`specexp.Decoder` takes after the target: ``Decoder(target, *parts)``."""

    drafter: Drafter | None
    builder: TreeBuilder | None
    verifier: Verifier | None = None
    controller: Controller | None = None


def check_composition(
    drafter: Drafter | None, builder: TreeBuilder | None, verifier: Verifier | None = None
) -> None:
    """Refuse parts that cannot work together.

    Raises:
        ValueError: one sentence that says what to change.
    """
    if (drafter is None) != (builder is None):
        missing = "drafter" if drafter is None else "builder"
        raise ValueError(
            f"the composition has no {missing}: give both drafter and builder, or neither for plain decoding"
        )
    if drafter is not None and builder is not None and builder.max_candidates > drafter.max_candidates:
        raise ValueError(
            f"the {type(builder).__name__} asks for {builder.max_candidates} candidates a node "
            f"and {type(drafter).__name__} ranks at most {drafter.max_candidates}: "
            "narrow the tree or widen the drafter"
        )
    coupled = drafter is not None and drafter.coupled
    if coupled and verifier is not None and verifier.noise_temperature is None:
        raise ValueError(
            f"{type(drafter).__name__} is coupled, but {type(verifier).__name__} draws noise of its own: "
            "set coupled to false or verify with KeyedSampling"
        )
