"""Parts that contain parts of their own family: whatever a wrapper does not define is folded over ``inner``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import copy
from itertools import chain
from typing import TYPE_CHECKING, Any, Self

from typing_extensions import override

from specexp.core.contracts import Controller, Drafter, Part, TreeBuilder
from specexp.core.tree import NodeKind

if TYPE_CHECKING:
    from specexp.core.context import Context
    from specexp.core.dialogue import DraftState, Request


class _Forwarded:
    """A class attribute that a function computes from the inner parts and its own name."""

    def __init__(self, compute: Callable[[tuple[Any, ...], str], Any]) -> None:
        self.compute = compute

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, part: Any, owner: type | None = None) -> Any:
        return self if part is None else self.compute(part.inner, self.name)


def folded(fold: Callable[[Iterable[Any]], Any]) -> Any:
    """Return a class attribute that folds the inner parts' attribute of the same name, e.g. by ``any`` or ``sum``. An
    object may have a value of its own.
    """
    return _Forwarded(lambda inner, name: fold(getattr(one, name) for one in inner))


def to_all() -> Any:
    """Return a method that calls the method of the same name on all inner parts."""

    def method_of(inner: tuple[Any, ...], name: str) -> Callable[..., None]:
        def call_all(*args: Any) -> None:
            for one in inner:
                getattr(one, name)(*args)

        return call_all

    return _Forwarded(method_of)


def _most(values: Iterable[int]) -> int:
    return max(values, default=1)


class PartWrapper(Part):
    """The life cycle of a drafter or controller around others: each event goes to all of them."""

    inner: tuple[Any, ...]
    begin = to_all()
    observe = to_all()
    reset = to_all()

    @property
    @override
    def shares_state(self) -> bool:
        return self.state == "carry" or any(one.shares_state for one in self.inner)

    @override
    def for_new_sequence(self) -> Self:
        other = copy(self)  # shallow: each inner part decides what it shares
        other.inner = tuple(one.for_new_sequence() for one in self.inner)
        return other

    @override
    def state_dict(self) -> dict[str, Any]:
        return {str(number): one.state_dict() for number, one in enumerate(self.inner)}

    @override
    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.check_entries(state, [str(number) for number in range(len(self.inner))])
        for number, one in enumerate(self.inner):
            one.load_state_dict(state[str(number)])


class DrafterWrapper(PartWrapper, Drafter):
    """A drafter that calls others."""

    inner: tuple[Drafter, ...]
    wants_prefill_logits = folded(any)
    wants_hidden = folded(any)
    coupled = folded(any)
    gives_log_probs = folded(any)
    draws = folded(any)
    phrase_length = folded(_most)
    learned_candidates = folded(lambda counts: max(counts, default=0))
    models = folded(lambda models: tuple(chain.from_iterable(models)))
    max_candidates = folded(sum)  # the candidates of all of them, one after the other
    use_draft_model = to_all()
    use_target = to_all()
    check_vocabulary = to_all()

    @override
    def costs_pass(self, request: Request) -> bool:
        return any(one.costs_pass(request) for one in self.inner)


class BuilderWrapper(TreeBuilder):
    """A builder that builds with others, and needs whatever one of them needs."""

    # one drawn node is enough to need a verifier for drawn nodes
    kind = folded(lambda kinds: max(kinds, key=lambda kind: kind is not NodeKind.POINT_MASS))
    needs_log_probs = folded(any)
    accepts_fewer_candidates = folded(all)
    takes_threshold = folded(all)
    num_choices = folded(_most)
    phrase_length = folded(_most)
    max_nodes = folded(max)
    max_candidates = folded(max)


class ControllerWrapper(PartWrapper, Controller):
    """A controller that calls others."""

    inner: tuple[Controller, ...]
    plans_threshold = folded(any)
    needs_log_probs = folded(any)
    num_choices = folded(_most)
    uses_seconds = folded(any)
    learns = folded(any)
    reads_answers = folded(any)
    sees_load = folded(any)
    check_parts = to_all()
    use_latency = to_all()

    @override
    def keep_drafting(self, context: Context, state: DraftState) -> bool:
        return all(one.keep_drafting(context, state) for one in self.inner)
