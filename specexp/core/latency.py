"""Models how long decoding steps take on a device, from measured, published or assumed costs. The time of a pass
depends on the number of tokens fed and on the prefix length; the rest of a step has its own costs.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from functools import cached_property
from math import ceil, log
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, TypeAdapter

from specexp.base.checked import Checked, IntegerKey, Reference
from specexp.core.dialogue import PLAIN

if TYPE_CHECKING:
    from specexp.core.outcome import Outcome

Milliseconds = Annotated[float, Field(ge=0)]
ByTokens = dict[Annotated[IntegerKey, Field(ge=1)], Milliseconds]
MOST_OFF = 0.1
"""The relative difference between modelled and live speed above which a report begins with a warning."""

NEARLY_FREE = 1.25
"""A pass over a draft counts as nearly free if its cost is at most this multiple of the cost of a one-token pass."""

_SHORTEST = 0.1  # minimum time of a pass after a short prefix, as a fraction of the time at the stated prefix


@dataclass(frozen=True)
class Overhead(metaclass=Checked):
    """The time that a composition's steps spend outside their passes.

    Args:
        step_ms: milliseconds per step that drafts.
        node_ms: milliseconds per drafted node.
        token_ms: milliseconds per new token, including in plain steps.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    step_ms: Milliseconds = 0.0
    node_ms: Milliseconds = 0.0
    token_ms: Milliseconds = 0.0


@dataclass(frozen=True)
class LatencyProfile(metaclass=Checked):
    """The time of target and draft passes in milliseconds, by number of tokens fed. It is interpolated linearly between
    the given numbers and extrapolated above them with the last slope (at least 0). A longer prefix adds time.

    Args:
        name: the models and device, e.g. ``Llama 2 7B drafts for 70B on an A100``; by default the artifact's name.
        target_ms: milliseconds of a target pass, by number of tokens fed; an entry for 1 token is required.
        draft_ms: the same for a draft pass; empty if there is no draft model.
        step_ms: milliseconds per step that drafts, outside its passes.
        node_ms: milliseconds per drafted node, outside the passes.
        token_ms: milliseconds per new token, outside the passes, including in plain steps.
        prefix_tokens: prefix length to which ``target_ms`` and ``draft_ms`` apply.
        target_prefix_ms: milliseconds that 1,000 more prefix tokens add to a target pass; a shorter prefix saves time.
        target_prefix_token_ms: the same per token fed, because each token attends to the prefix.
        draft_prefix_ms: like ``target_prefix_ms``, for a draft pass.
        draft_prefix_token_ms: like ``target_prefix_token_ms``, for a draft pass.
        overheads: ``step_ms``, ``node_ms`` and ``token_ms`` of compositions, by label, such as
            ``DraftModel + StaticTree``; see :meth:`of`.
        source: whether the profile was measured, published, or assumed.
        modelled: whether a run's times are modelled with the profile. If not, they are measured, and only controllers
            use the profile, to weigh costs.
        lanes_ms: duration of a target pass in milliseconds, keyed by number of lanes (at least 2), then by tokens fed
            per lane (1 must be included). If empty, a pass costs as much as one lane with all tokens.
        buckets: whether a number of tokens is rounded up to the next given one, as if passes are padded.
        artifact: another profile to copy all values from, except ``modelled`` and a given name. In a configuration, the
            path of a ``latency-profile`` artifact. None after the copy.

    Example:
        >>> LatencyProfile("7B drafts for 70B", {1: 152.0}, {1: 21.0}).step_seconds(5, [1, 1, 1, 1])
        0.236
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    name: str = ""
    target_ms: ByTokens = field(default_factory=dict)
    draft_ms: ByTokens = field(default_factory=dict)
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
    lanes_ms: dict[Annotated[IntegerKey, Field(ge=2)], ByTokens] = field(default_factory=dict)
    buckets: bool = False
    artifact: Annotated[LatencyProfile, Reference("latency-profile")] | None = None

    def __post_init__(self) -> None:
        if self.artifact is not None:
            self._take(self.artifact)
        if not self.name:
            raise ValueError(
                "a latency profile needs a name, such as its models and device, or an artifact that has one"
            )
        lanes = {f"lanes_ms of {lanes}": ms for lanes, ms in self.lanes_ms.items()}
        for what, ms in {"target_ms": self.target_ms, "draft_ms": self.draft_ms, **lanes}.items():
            if 1 not in ms and (ms or what in lanes):
                raise ValueError(f"{what} of latency profile {self.name!r} must have an entry for 1 token")
        if min(self.target_ms.values(), default=0) <= 0:
            raise ValueError(f"target_ms of latency profile {self.name!r} must hold milliseconds above 0")

    def _take(self, other: LatencyProfile) -> None:
        for one in fields(self):
            if one.name not in ("artifact", "name", "modelled"):
                default = one.default if one.default_factory is MISSING else one.default_factory()
                if getattr(self, one.name) != default:
                    raise ValueError(
                        f"a latency profile was given artifact {other.name!r} and {one.name}: the artifact sets "
                        f"{one.name}, so leave one of the two out"
                    )
                object.__setattr__(self, one.name, getattr(other, one.name))
        object.__setattr__(self, "name", self.name or other.name)
        object.__setattr__(self, "artifact", None)

    @property
    def label(self) -> str:
        """The label of modelled figures, e.g. ``modelled: 7B drafts for 70B (published)``."""
        return f"modelled: {self.name} ({self.source})"

    @property
    def max_target_tokens(self) -> int:
        """The largest number of tokens in ``target_ms``."""
        return max(self.target_ms)

    def exceeded_by(self, tokens: int) -> bool:
        """Return whether a target pass feeds more tokens than ``target_ms`` covers; a single entry covers all."""
        return len(self.target_ms) > 1 and tokens > self.max_target_tokens

    @property
    def free_nodes(self) -> int:
        """The maximum number of nodes for which a target pass is nearly free (:data:`NEARLY_FREE`)."""
        most = NEARLY_FREE * self.target_seconds(1)
        sizes = range(1, self.max_target_tokens + 1)
        return max(rows - 1 for rows in sizes if self.target_seconds(rows) <= most)

    @property
    def by_prefix(self) -> bool:
        """True if passes take longer with a longer prefix."""
        target = self.target_prefix_ms + self.target_prefix_token_ms
        return target + self.draft_prefix_ms + self.draft_prefix_token_ms > 0

    def of(self, composition: str) -> Self:
        """Return the profile for a composition (:attr:`~specexp.core.parts.Parts.label`), with its overheads applied
        and empty :attr:`overheads`.

        If the composition is not listed, the first listed one with the same drafter is used. If there is none, the
        profile's own overheads are kept.
        """
        if not self.overheads:
            return self
        found = self.overheads.get(composition)
        if found is None and composition != PLAIN:
            drafter = composition.rpartition(" + ")[0]
            listed = (cost for label, cost in self.overheads.items() if label.rpartition(" + ")[0] == drafter)
            found = next(listed, None)
        return replace(self, overheads={}, **({} if found is None else asdict(found)))

    def target_seconds(self, tokens: int, prefix: int | None = None) -> float:
        """Return the time of a target pass over ``tokens`` tokens (root included), in seconds."""
        by_prefix = self.target_prefix_ms + self.target_prefix_token_ms * tokens
        return self._pass(self._ms(self._target_points, tokens), by_prefix, prefix)

    def lanes_seconds(self, tokens: int, lanes: int) -> float:
        """Return the time of a target pass over lanes of ``tokens`` tokens each, in seconds, at ``prefix_tokens``."""
        if lanes == 1 or not self.lanes_ms:
            return self.target_seconds(tokens * lanes)
        known = [(one, self._ms(sorted(ms.items()), tokens)) for one, ms in sorted(self.lanes_ms.items())]
        return _between([(1, self._ms(self._target_points, tokens)), *known], lanes) / 1e3

    def draft_seconds(self, tokens: int, prefix: int | None = None) -> float:
        """Return the time of a draft pass in seconds; raises ``ValueError`` if the profile has no ``draft_ms``."""
        if not self.draft_ms:
            raise ValueError(f"latency profile {self.name!r} states no draft_ms, but a draft model was run: set it")
        by_prefix = self.draft_prefix_ms + self.draft_prefix_token_ms * tokens
        return self._pass(self._ms(self._draft_points, tokens), by_prefix, prefix)

    def beside_seconds(self, tokens: int, draft_passes: int, new_tokens: float = 1) -> float:
        """Return the time that a step spends outside its passes, in seconds."""
        drafting = self.step_ms + self.node_ms * (tokens - 1) if tokens > 1 or draft_passes else 0.0
        return (drafting + self.token_ms * new_tokens) / 1e3

    def step_seconds(
        self, tokens: int, pass_tokens: Sequence[int] = (), new_tokens: int = 1, prefix: int | None = None
    ) -> float:
        """Return the time of a whole step that commits ``new_tokens`` tokens, in seconds."""
        return sum(self.step_parts(tokens, pass_tokens, new_tokens, prefix))

    def step_parts(
        self, tokens: int, pass_tokens: Sequence[int] = (), new_tokens: int = 1, prefix: int | None = None
    ) -> tuple[float, float, float]:
        """Return the same time as :meth:`step_seconds`: of the target pass, the draft passes, and everything else."""
        return (
            self.target_seconds(tokens, prefix),
            sum(self.draft_seconds(fed, prefix) for fed in pass_tokens),
            self.beside_seconds(tokens, len(pass_tokens), new_tokens),
        )

    def outcome_parts(self, outcome: Outcome) -> tuple[float, float, float]:
        """Return the modelled time of a decoded step in seconds, in the parts of :meth:`step_parts`."""
        new_tokens = len(outcome.new_token_ids)
        prefix = len(outcome.context) - new_tokens - 1  # tokens committed before the step, without the root
        return self.step_parts(outcome.tree.num_nodes + 1, outcome.pass_tokens, new_tokens, prefix)

    def plain_seconds(self, prompt_tokens: int, new_tokens: int) -> float:
        """Return the time of plain decoding in seconds, with one step per new token."""
        plain = self.of(PLAIN)
        if not plain.by_prefix:
            return new_tokens * plain.step_seconds(1)
        known = range(prompt_tokens - 1, prompt_tokens - 1 + new_tokens)
        return sum(plain.step_seconds(1, prefix=prefix) for prefix in known)

    def to_dict(self) -> dict[str, Any]:
        """Return the profile as plain values for JSON, with integer keys as text; :meth:`from_dict` reads them."""
        exclude = {"modelled", "artifact"}
        values: dict[str, Any] = TypeAdapter(LatencyProfile).dump_python(self, mode="json", exclude=exclude)
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], modelled: bool = True) -> Self:
        """Restore a profile from the values of :meth:`to_dict`; raises ``ValueError`` if they are invalid."""
        return TypeAdapter(cls).validate_python({**values, "modelled": modelled})

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
            longer = prefix_ms * (prefix - self.prefix_tokens) / 1e3  # prefix costs are per 1,000 tokens
            milliseconds = max(milliseconds + longer, _SHORTEST * milliseconds)
        return milliseconds / 1e3


def outcome_seconds(outcome: Outcome, profile: LatencyProfile | None) -> float:
    """Return the duration of a decoding step in seconds: modelled if a profile is given, otherwise measured."""
    return sum(outcome.seconds.values() if profile is None else profile.outcome_parts(outcome))


def _between(points: Sequence[tuple[int, float]], tokens: int) -> float:
    """Return the milliseconds at ``tokens``, interpolated linearly between sorted points."""
    place = bisect_left(points, (tokens,))  # much faster than numpy.interp for one number
    if place < len(points) and points[place][0] == tokens:
        return points[place][1]
    if place == 0 or len(points) == 1:
        return points[0][1]
    last = min(place, len(points) - 1)
    (before, low), (after, high) = points[last - 1 : last + 1]
    slope = (high - low) / (after - before)
    if place == len(points):
        return high + max(slope, 0.0) * (tokens - after)  # it never falls
    return low + slope * (tokens - before)


def distinct_experts(experts: int, used: int, rows: int) -> float:
    """Return the expected number of distinct experts that a pass reads in a layer: E (1 - (1 - k/E)^R).

    Each of R ``rows`` uses k of E ``experts`` and chooses them independently; in real text, the choices overlap more.
    """
    return experts * (1 - (1 - used / experts) ** rows)


def experts_sentence(sizes: Mapping[str, Any]) -> str | None:
    """Return a sentence on how a target's experts affect the cost of larger trees; None if ``sizes`` has no experts."""
    used = sizes.get("num_experts_per_tok") or 0
    experts = sizes.get("num_experts") or sizes.get("num_local_experts") or 0  # the second is Mixtral's name
    if not 0 < used < experts:
        return None
    times = ", ".join(f"{distinct_experts(experts, used, rows) / used:.1f}" for rows in (2, 4, 8, 16))
    full = ceil(log(0.1) / log(1 - used / experts))
    return (
        f"Each row uses {used} of {experts} experts, so passes over 2, 4, 8 and 16 rows read up to {times} times the "
        "experts of one row: a small tree costs more than in a dense model, and further nodes are as cheap only "
        f"beyond {full} rows, which read 90 % of the experts"
    )
