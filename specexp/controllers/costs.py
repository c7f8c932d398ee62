"""Step costs relative to a plain step, taken from a latency profile or a given ratio, or measured once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, Literal

from specexp.core.latency import LatencyProfile
from specexp.core.outcome import Outcome

Sample = tuple[int, float, float, int, float]
"""A measured step: tokens and ms of the target pass, ms and number of draft passes, and ms of everything else."""


class Costs:
    """Step costs, which stay fixed during a run so that decisions based on them are reproducible.

    Without a ratio or a profile, costs are measured: the first ``calibrate`` steps with room for a draft alternate
    between full drafts and plain decoding. The medians of their times then become the profile for the rest of the run.

    Args:
        ratio: cost of a draft pass relative to a plain step. If given, a target pass of any size costs 1.
        calibrate: number of steps to measure.
    """

    def __init__(self, ratio: float | None, calibrate: int) -> None:
        self.ratio = ratio
        self.calibrate = calibrate
        self.profile: LatencyProfile | None = None
        self._given: LatencyProfile | None = None
        self._samples: list[Sample] = []
        self._by_tokens: dict[tuple[str, int], float] = {}  # cached costs of passes

    @property
    def known(self) -> bool:
        """False while costs are still being measured."""
        return self.ratio is not None or self.profile is not None

    @property
    def wants_plain(self) -> bool:
        """True if the next step should be plain decoding, so that its time can be measured."""
        return not self.known and len(self._samples) % 2 == 1

    def use_latency(self, profile: LatencyProfile | None) -> None:
        """Use the run's latency profile, unless a cost ratio was given."""
        if profile is not None and self.ratio is None:
            self._given = profile
            self._fix(profile)

    def reset(self) -> None:
        """Forget measured costs."""
        self._samples = []
        self._by_tokens = {}
        self.profile = self._given

    def step(self, tokens: int, pass_tokens: Sequence[int], new_tokens: float = 1) -> float:
        """Return the cost of a step that feeds ``tokens`` tokens to the target, including the root."""
        if tokens <= 1 and not pass_tokens:
            return 1.0
        if self.ratio is not None:
            return 1.0 + self.draft(pass_tokens)
        profile = self._profile()
        cost = self._cached("target", tokens) + self.draft(pass_tokens)  # of a step with one new token
        return cost + profile.token_ms / 1e3 / profile.step_seconds(1) * (new_tokens - 1)

    def draft(self, pass_tokens: Sequence[int]) -> float:
        """Return the cost of all draft passes, given the number of tokens in each."""
        if self.ratio is not None:
            return self.ratio * len(pass_tokens)
        return sum(self._cached("draft", tokens) for tokens in pass_tokens)

    def _cached(self, what: Literal["target", "draft"], tokens: int) -> float:
        cost = self._by_tokens.get((what, tokens))
        if cost is None:
            profile = self._profile()
            if what == "target":
                seconds = profile.target_seconds(tokens) + profile.beside_seconds(tokens, draft_passes=1)
            else:
                seconds = profile.draft_seconds(tokens) if profile.draft_ms else 0.0
            cost = self._by_tokens[what, tokens] = seconds / profile.step_seconds(1)
        return cost

    def observe(self, outcome: Outcome) -> None:
        """Add a step to the measurement while costs are unknown."""
        seconds = outcome.seconds
        if self.known or not seconds.get("target"):
            return
        if (outcome.tree.num_nodes > 0) == self.wants_plain:
            return  # the last step of an output has no room for a draft
        target, draft = seconds["target"], seconds.get("draft", 0.0)
        rest = sum(seconds.values()) - target - draft
        fed, passes = outcome.tree.num_nodes + 1, outcome.draft_passes
        self._samples.append((fed, 1e3 * target, 1e3 * draft, passes, 1e3 * rest))
        if len(self._samples) >= self.calibrate:
            self._fix(_measured(self._samples))

    def state_dict(self) -> dict[str, Any]:
        """Return the profile and the samples as JSON-serializable values."""
        return {
            "profile": None if self.profile is None else self.profile.to_dict(),
            "samples": [list(sample) for sample in self._samples],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore saved costs. A ratio or profile given for this run takes priority."""
        self._samples = [
            (int(tokens), float(target), float(draft), int(passes), float(rest))
            for tokens, target, draft, passes, rest in state["samples"]
        ]
        if state["profile"] is not None and self.ratio is None and self._given is None:
            self._fix(LatencyProfile.from_dict(state["profile"], modelled=False))

    def _fix(self, profile: LatencyProfile) -> None:
        self.profile = profile
        self._by_tokens = {}

    def _profile(self) -> LatencyProfile:
        if self.profile is None:
            raise RuntimeError("the costs of steps are not measured yet")
        return self.profile


def _measured(samples: Sequence[Sample]) -> LatencyProfile:
    """Return a latency profile built from the medians of measured steps."""
    plain = [sample for sample in samples if sample[0] == 1]
    drafted = sorted(sample for sample in samples if sample[0] > 1)
    target_ms = {1: max(median(sample[1] for sample in plain), 1e-6)}
    middle = len(drafted) // 2  # two points: the medians of small and of large trees
    for half in (drafted[:middle], drafted[middle:]):
        if half:
            tokens = round(median(sample[0] for sample in half))
            target_ms[tokens] = median(sample[1] for sample in half)
    passes = [sample[2] / sample[3] for sample in drafted if sample[3]]
    rest = median(sample[4] for sample in drafted) - median(sample[4] for sample in plain)
    return LatencyProfile(
        "measured while decoding",
        target_ms,
        {1: median(passes)} if passes else {},
        step_ms=max(rest, 0.0),
        source="measured",
        modelled=False,
    )
