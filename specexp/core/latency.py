"""Costs of steps on a device: passes by the tokens fed and the prefix, and the rest of a step; measured, published or
assumed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Self

from pydantic import ConfigDict, Field

from specexp.core.checked import Checked, IntegerKey, Reference
from specexp.core.dialogue import PLAIN

if TYPE_CHECKING:
    from specexp.core.outcome import Outcome

Milliseconds = Annotated[float, Field(ge=0)]
MOST_OFF = 0.1
"""Relative difference between modelled and live speed that a report puts first."""

_SHORTEST = 0.1  # least time of a pass over a short prefix, as a share of one over the stated prefix
_BESIDE_ARTIFACT = ("artifact", "name", "modelled")


@dataclass(frozen=True)
class Overhead(metaclass=Checked):
    """Costs of a composition's steps outside their passes.

    Args:
        step_ms: milliseconds of a step that drafts.
        node_ms: milliseconds of every node it drafts.
        token_ms: milliseconds of every new token, in plain steps too.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    step_ms: Milliseconds = 0.0
    node_ms: Milliseconds = 0.0
    token_ms: Milliseconds = 0.0


class StepSeconds(NamedTuple):
    """Seconds of a step: its target pass, its draft passes, and the rest."""

    target: float
    draft: float
    beside: float


@dataclass(frozen=True)
class LatencyProfile(metaclass=Checked):
    """Milliseconds of a target pass and of a draft pass by the tokens they are fed, linear between two stated numbers
    of tokens (or steps, see ``buckets``), extrapolated with the last slope (never falling). A longer prefix adds to
    both.

    Args:
        name: name of models and device in tables.
        target_ms: milliseconds of a target pass by tokens fed, 1 among them.
        draft_ms: milliseconds of a draft pass by tokens fed, 1 among them; empty without a draft model.
        step_ms: cost of a step that drafts beside its passes (cache look-up, roll-back, controller).
        node_ms: cost of every node of such a step beside the passes.
        token_ms: cost of every new token beside the passes (verification, commit), in plain steps too.
        prefix_tokens: tokens in the cache that ``target_ms`` and ``draft_ms`` are stated at.
        target_prefix_ms: cost of 1,000 more prefix tokens in a target pass; a shorter prefix takes less.
        target_prefix_token_ms: the same for every token fed, which attends to the prefix.
        draft_prefix_ms: as ``target_prefix_ms``, in a draft pass.
        draft_prefix_token_ms: as ``target_prefix_token_ms``, in a draft pass.
        overheads: ``step_ms``, ``node_ms`` and ``token_ms`` of compositions, by the label of their parts; see
            :meth:`of`.
        source: whether it was measured, published, or assumed.
        modelled: whether the seconds of a run are modelled by it; if not they are measured, and only controllers weigh
            costs by it.
        lanes_ms: milliseconds of a target pass over several lanes, from 2, by the tokens fed of each, 1 among them; if
            empty it costs as much as one lane with all their tokens.
        buckets: whether a pass costs what the next stated number of tokens costs, as in an engine that pads passes to
            those numbers.
        artifact: another profile to take all values from, but ``modelled`` and, if given, the name; in a configuration
            the path of a ``latency-profile`` artifact. None once they are taken.

    Raises:
        ValueError: 1 is missing, a number of tokens is below 1, or a target pass takes no time; there is neither a name
            nor an artifact, or other values are given beside an artifact.

    Example:
        >>> LatencyProfile("7B drafts for 70B", {1: 152.0}, {1: 21.0}).step_seconds(5, [1, 1, 1, 1])
        0.236
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    name: str = ""
    target_ms: dict[IntegerKey, Milliseconds] = field(default_factory=dict)
    draft_ms: dict[IntegerKey, Milliseconds] = field(default_factory=dict)
    step_ms: Milliseconds = 0.0
    node_ms: Milliseconds = 0.0
    token_ms: Milliseconds = 0.0
    prefix_tokens: Annotated[int, Field(ge=0)] = 0
    target_prefix_ms: Milliseconds = 0.0
    target_prefix_token_ms: Milliseconds = 0.0
    draft_prefix_ms: Milliseconds = 0.0
    draft_prefix_token_ms: Milliseconds = 0.0
    overheads: dict[str, Overhead] = field(default_factory=dict)
    source: Literal["measured", "published", "assumed"] = "assumed"
    modelled: bool = True
    lanes_ms: dict[Annotated[IntegerKey, Field(ge=2)], dict[IntegerKey, Milliseconds]] = field(
        default_factory=dict
    )
    buckets: bool = False
    artifact: Annotated[LatencyProfile, Reference("latency-profile")] | None = None

    def __post_init__(self) -> None:
        if self.artifact is not None:
            self._take(self.artifact)
        if not self.name:
            raise ValueError(
                "a latency profile needs a name, such as its models and device, or an artifact to take it from"
            )
        overheads = {
            label: Overhead(**given) if isinstance(given, Mapping) else given
            for label, given in self.overheads.items()
        }
        object.__setattr__(self, "overheads", overheads)
        for label in overheads:
            if label != PLAIN and " + " not in label:
                raise ValueError(
                    f"overheads of latency profile {self.name!r} has {label!r}; 'plain' or a drafter and a builder are "
                    "allowed, such as 'DraftModel + StaticTree'"
                )
        several = {f"lanes_ms of {lanes}": ms for lanes, ms in self.lanes_ms.items()}
        for what, given in {"target_ms": self.target_ms, "draft_ms": self.draft_ms, **several}.items():
            if (given or what in several) and 1 not in given:
                raise ValueError(
                    f"{what} of latency profile {self.name!r} states no milliseconds for 1 token"
                )
            if given and min(given) < 1:
                raise ValueError(
                    f"{what} of latency profile {self.name!r} is stated for {min(given)} tokens; 1 or more are allowed"
                )
        if not self.target_ms or min(self.target_ms.values()) <= 0:
            raise ValueError(f"target_ms of latency profile {self.name!r} must hold milliseconds above 0")

    def _take(self, other: LatencyProfile) -> None:
        given = [
            one.name
            for one in fields(self)
            if one.name not in _BESIDE_ARTIFACT and getattr(self, one.name) != _default(one)
        ]
        if given:
            raise ValueError(
                f"a latency profile was given artifact {other.name!r} and {given[0]}: the artifact states it, leave "
                "one of the two out"
            )
        for one in fields(self):
            if one.name not in _BESIDE_ARTIFACT:
                object.__setattr__(self, one.name, getattr(other, one.name))
        object.__setattr__(self, "name", self.name or other.name)
        object.__setattr__(self, "artifact", None)

    @property
    def label(self) -> str:
        """Name of modelled figures, e.g. ``modelled: 7B drafts for 70B (published)``."""
        return f"modelled: {self.name} ({self.source})"

    @property
    def max_target_tokens(self) -> int:
        """Most tokens of a target pass with stated milliseconds."""
        return max(self.target_ms)

    def exceeded_by(self, tokens: int) -> bool:
        """Return whether a target pass feeds more tokens than are stated; one point holds for any number."""
        return len(self.target_ms) > 1 and tokens > self.max_target_tokens

    @property
    def by_prefix(self) -> bool:
        """Whether passes take longer behind a longer prefix."""
        target = self.target_prefix_ms + self.target_prefix_token_ms
        return target + self.draft_prefix_ms + self.draft_prefix_token_ms > 0

    def of(self, composition: str) -> Self:
        """Return the profile with the overheads of a composition, named by its
        :attr:`~specexp.core.parts.Parts.label`.

        If none are listed for it, those of the first listed composition with the same drafter are taken, else they
        stay.
        The result has no further overheads to look up.
        """
        if not self.overheads:
            return self
        found = self.overheads.get(composition)
        if found is None and composition != PLAIN:
            drafter = composition.rpartition(" + ")[0]
            listed = (label for label in self.overheads if label.rpartition(" + ")[0] == drafter)
            found = self.overheads.get(next(listed, ""))
        own = {} if found is None else asdict(found)
        return replace(self, overheads={}, **own)

    def target_seconds(self, tokens: int, prefix: int | None = None) -> float:
        """Return the seconds of a target pass over ``tokens`` tokens, the root among them."""
        by_prefix = self.target_prefix_ms + self.target_prefix_token_ms * tokens
        return self._pass(self._ms(self._target_points, tokens), by_prefix, prefix)

    def lanes_seconds(self, tokens: int, lanes: int) -> float:
        """Return the seconds of a target pass over several lanes, ``tokens`` of each, at the stated prefix."""
        if lanes == 1 or not self.lanes_ms:
            return self.target_seconds(tokens * lanes)
        known = [(one, self._ms(sorted(ms.items()), tokens)) for one, ms in sorted(self.lanes_ms.items())]
        return _between([(1, self._ms(self._target_points, tokens)), *known], lanes) / 1e3

    def draft_seconds(self, tokens: int, prefix: int | None = None) -> float:
        """Return the seconds of a draft pass; raises ``ValueError`` if none are stated."""
        if not self.draft_ms:
            raise ValueError(f"latency profile {self.name!r} states no draft_ms, but a draft model was run")
        by_prefix = self.draft_prefix_ms + self.draft_prefix_token_ms * tokens
        return self._pass(self._ms(self._draft_points, tokens), by_prefix, prefix)

    def beside_seconds(self, tokens: int, draft_passes: int, new_tokens: float = 1) -> float:
        """Return the seconds of a step beside its passes."""
        drafting = self.step_ms + self.node_ms * (tokens - 1) if tokens > 1 or draft_passes else 0.0
        return (drafting + self.token_ms * new_tokens) / 1e3

    def step_seconds(
        self, tokens: int, pass_tokens: Sequence[int] = (), new_tokens: int = 1, prefix: int | None = None
    ) -> float:
        """Return the seconds of a whole step that commits ``new_tokens`` tokens."""
        return sum(self.step_parts(tokens, pass_tokens, new_tokens, prefix))

    def step_parts(
        self, tokens: int, pass_tokens: Sequence[int] = (), new_tokens: int = 1, prefix: int | None = None
    ) -> StepSeconds:
        """Return :meth:`step_seconds` by part."""
        return StepSeconds(
            self.target_seconds(tokens, prefix),
            sum(self.draft_seconds(fed, prefix) for fed in pass_tokens),
            self.beside_seconds(tokens, len(pass_tokens), new_tokens),
        )

    def outcome_parts(self, outcome: Outcome) -> StepSeconds:
        """Return the seconds of a decoded step by part."""
        new_tokens = len(outcome.new_token_ids)
        prefix = len(outcome.context) - new_tokens - 1  # all that was committed before it, but the root
        return self.step_parts(outcome.tree.num_nodes + 1, outcome.pass_tokens, new_tokens, prefix)

    def plain_seconds(self, prompt_tokens: int, new_tokens: int) -> float:
        """Return the seconds of plain decoding, one step per new token."""
        plain = self.of(PLAIN)
        if not plain.by_prefix:
            return new_tokens * plain.step_seconds(1)
        known = range(prompt_tokens - 1, prompt_tokens - 1 + new_tokens)
        return sum(plain.step_seconds(1, prefix=prefix) for prefix in known)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, the keys of milliseconds as text; :meth:`from_dict` reads them."""
        values = asdict(self)
        for what in ("target_ms", "draft_ms"):
            values[what] = {str(tokens): ms for tokens, ms in values[what].items()}
        values["lanes_ms"] = {
            str(lanes): {str(tokens): ms for tokens, ms in one.items()}
            for lanes, one in self.lanes_ms.items()
        }
        return {name: value for name, value in values.items() if name not in ("modelled", "artifact")}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], modelled: bool = True) -> Self:
        """Return the profile of :meth:`to_dict`'s values; raises ``ValueError`` or ``TypeError`` for others."""
        read = dict(values)
        for name in ("target_ms", "draft_ms"):
            if name in read:
                read[name] = {int(tokens): float(ms) for tokens, ms in read[name].items()}
        read["lanes_ms"] = {
            int(lanes): {int(tokens): float(ms) for tokens, ms in one.items()}
            for lanes, one in read.get("lanes_ms", {}).items()
        }
        return cls(**read, modelled=modelled)

    @cached_property
    def _target_points(self) -> list[tuple[int, float]]:
        return sorted(self.target_ms.items())

    @cached_property
    def _draft_points(self) -> list[tuple[int, float]]:
        return sorted(self.draft_ms.items())

    def _ms(self, points: Sequence[tuple[int, float]], tokens: int) -> float:
        if self.buckets:
            tokens = next((stated for stated, _ in points if stated >= tokens), tokens)
        return _between(points, tokens)

    def _pass(self, milliseconds: float, prefix_ms: float, prefix: int | None) -> float:
        if prefix is not None and prefix_ms:
            longer = prefix_ms * (prefix - self.prefix_tokens) / 1e3
            milliseconds = max(milliseconds + longer, _SHORTEST * milliseconds)
        return milliseconds / 1e3


def outcome_seconds(outcome: Outcome, profile: LatencyProfile | None) -> float:
    """Return the seconds of a decoded step: modelled by a profile, or measured without one."""
    return sum(outcome.seconds.values() if profile is None else profile.outcome_parts(outcome))


def _default(one: Any) -> Any:
    return one.default_factory() if one.default is MISSING else one.default


def _between(points: Sequence[tuple[int, float]], tokens: int) -> float:
    """Milliseconds at ``tokens`` on the line through sorted points."""
    place = bisect_left(points, (tokens,))
    if place < len(points) and points[place][0] == tokens:
        return points[place][1]
    if place == 0 or len(points) == 1:
        return points[0][1]
    (before, low), (after, high) = points[min(place, len(points) - 1) - 1 : min(place, len(points) - 1) + 1]
    slope = (high - low) / (after - before)
    if place == len(points):
        return high + max(slope, 0.0) * (tokens - after)
    return low + slope * (tokens - before)
