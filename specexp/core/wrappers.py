"""Parts that wrap other parts of their family. A wrapper takes any attribute it does not define from these parts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import copy
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, Self

from typing_extensions import override

from specexp.core.contracts import Drafter, Part, TreeBuilder
from specexp.core.tree import NodeKind

if TYPE_CHECKING:
    from specexp.core.context import Context
    from specexp.core.dialogue import Request
    from specexp.core.outcome import Outcome


class _Folded:
    """An attribute that combines the inner parts' attributes of the same name, unless an object sets its own value."""

    def __init__(self, fold: Callable[[Iterable[Any]], Any]) -> None:
        self.fold = fold

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, part: Any, owner: type | None = None) -> Any:
        return self if part is None else self.fold(getattr(one, self.name) for one in part.inner)


folded: Any = _Folded


def call_all(methods: Iterable[Callable[..., None]]) -> Callable[..., None]:
    """Return a single function that calls all of these methods, one per inner part."""
    bound = list(methods)

    def call(*args: Any) -> None:
        for method in bound:
            method(*args)

    return call


class PartWrapper(Part):
    """The life cycle of a drafter or controller that wraps others and passes each event on to all of them."""

    inner: tuple[Any, ...]
    inner_key: ClassVar[str] = "{}"  # format string that turns an inner part's number into its key in the state
    own_entries: ClassVar[tuple[str, ...]] = ()  # keys of the wrapper's own state
    observe = folded(call_all)

    def forget(self) -> None:
        """Reset the wrapper's own state."""

    @property
    @override
    def shares_state(self) -> bool:
        return self.state == "carry" or any(one.shares_state for one in self.inner)

    @override
    def for_new_sequence(self) -> Self:
        other = copy(self)
        other.inner = tuple(one.for_new_sequence() for one in self.inner)
        return other

    @override
    def begin(self, context: Context, prefill: Outcome | None) -> None:
        if self.state not in (None, "carry") and not context.continued:
            self.forget()
        call_all(one.begin for one in self.inner)(context, prefill)

    @override
    def reset(self) -> None:
        self.forget()
        call_all(one.reset for one in self.inner)()

    @override
    def state_dict(self) -> dict[str, Any]:
        return {key: one.state_dict() for key, one in self._inner_by_key().items()}

    @override
    def load_state_dict(self, state: dict[str, Any]) -> None:
        inner = self._inner_by_key()
        self.check_entries(state, [*self.own_entries, *inner])
        for key, one in inner.items():
            one.load_state_dict(state[key])

    def _inner_by_key(self) -> dict[str, Any]:
        return {self.inner_key.format(number): one for number, one in enumerate(self.inner)}


def _one_kind(wanted: Iterable[bool | tuple[int, ...]]) -> bool | tuple[int, ...]:
    kinds = set(wanted) - {False}
    if len(kinds) > 1:
        raise ValueError("the drafters read hidden states of different layers: use those that read the same ones")
    return kinds.pop() if kinds else False


class DrafterWrapper(PartWrapper, Drafter):
    """A drafter that calls other drafters."""

    inner: tuple[Drafter, ...]
    wants_prefill_logits = folded(any)
    wants_hidden = folded(_one_kind)
    coupled = folded(any)
    gives_log_probs = folded(any)
    draws = folded(any)
    phrase_length = folded(max)
    learned_candidates = folded(lambda counts: max(counts, default=0))
    models = folded(lambda models: tuple(chain(*models)))
    max_candidates = folded(sum)
    use_draft_model = folded(call_all)
    use_target = folded(call_all)
    check_vocabulary = folded(call_all)

    @override
    def costs_pass(self, request: Request) -> bool:
        return any(one.costs_pass(request) for one in self.inner)


class BuilderWrapper(TreeBuilder):
    """A builder that uses other builders and needs everything that any of them needs."""

    kind = folded(lambda kinds: max(kinds, key=lambda kind: kind is not NodeKind.POINT_MASS))
    needs_log_probs = folded(any)
    accepts_fewer_candidates = folded(all)
    takes_threshold = folded(all)
    num_choices = folded(max)
    phrase_length = folded(max)
    max_nodes = folded(max)
    max_candidates = folded(max)
