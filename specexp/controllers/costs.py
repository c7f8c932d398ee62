"""Costs of steps in units of a step of plain decoding: from a latency profile, a ratio, or measured once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from specexp.core.latency import LatencyProfile
from specexp.core.outcome import Outcome

Sample = tuple[int, float, float, int, float]
"""Tokens and milliseconds of a target pass, milliseconds and number of draft passes, milliseconds of the rest."""


class Costs:
    """Costs of steps, fixed for a run, so that decisions which weigh them are repeatable.

    Without a ratio or a profile they are measured: in the first ``calibrate`` steps with a draft to make, full drafts
    alternate with steps of plain decoding. The medians of their seconds then become a profile that never changes.

    Args:
        ratio: cost of a draft pass in plain steps; a target pass then costs 1 however many tokens it feeds.
        calibrate: steps to measure.
    """

    def __init__(self, ratio: float | None, calibrate: int) -> None:
        self.ratio = ratio
        self.calibrate = calibrate
        self.profile: LatencyProfile | None = None
        self._given: LatencyProfile | None = None
        self._samples: list[Sample] = []
        self._target: dict[int, float] = {}
        self._draft: dict[int, float] = {}

    @property
    def known(self) -> bool:
        """Whether costs are known; False while they are measured."""
        return self.ratio is not None or self.profile is not None

    @property
    def wants_plain(self) -> bool:
        """Whether the next step should be a plain one, to be measured."""
        return not self.known and len(self._samples) % 2 == 1

    def use_latency(self, profile: LatencyProfile | None) -> None:
        """Take a run's profile, unless a ratio was given."""
        if profile is not None and self.ratio is None:
            self._given = profile
            self._fix(profile)

    def reset(self) -> None:
        """Forget measured costs."""
        self._samples = []
        self._target, self._draft = {}, {}
        self.profile = self._given

    def step(self, tokens: int, pass_tokens: Sequence[int], new_tokens: float = 1) -> float:
        """Return the cost of a step that feeds ``tokens`` to the target, the root among them."""
        if tokens <= 1 and not pass_tokens:
            return 1.0
        return self.target(tokens) + self.draft(pass_tokens) + self._token() * (new_tokens - 1)

    def target(self, tokens: int) -> float:
        """Return the cost of a step with a draft and one new token, without its draft passes."""
        if self.ratio is not None:
            return 1.0
        cost = self._target.get(tokens)
        if cost is None:
            profile = self._profile()
            seconds = profile.target_seconds(tokens) + profile.beside_seconds(tokens, draft_passes=1)
            cost = self._target[tokens] = seconds / profile.step_seconds(1)
        return cost

    def _token(self) -> float:
        if self.ratio is not None:
            return 0.0
        profile = self._profile()
        return profile.token_ms / 1e3 / profile.step_seconds(1)

    def draft(self, pass_tokens: Sequence[int]) -> float:
        """Return the cost of draft passes."""
        if self.ratio is not None:
            return self.ratio * len(pass_tokens)
        return sum(map(self._pass, pass_tokens))

    def _pass(self, tokens: int) -> float:
        cost = self._draft.get(tokens)
        if cost is None:
            profile = self._profile()
            cost = profile.draft_seconds(tokens) / profile.step_seconds(1) if profile.draft_ms else 0.0
            self._draft[tokens] = cost
        return cost

    def observe(self, outcome: Outcome) -> None:
        """Measure a step while costs are unknown."""
        seconds = outcome.seconds
        if self.known or not seconds.get("target"):
            return
        drafted = outcome.tree.num_nodes > 0
        if drafted == self.wants_plain:
            return  # the last step of an output drafts nothing without being asked to
        rest = sum(spent for phase, spent in seconds.items() if phase not in ("target", "draft"))
        self._samples.append(
            (
                outcome.tree.num_nodes + 1,
                1e3 * seconds["target"],
                1e3 * seconds.get("draft", 0.0),
                outcome.draft_passes,
                1e3 * rest,
            )
        )
        if len(self._samples) >= self.calibrate:
            self._fix(_measured(self._samples))

    def state_dict(self) -> dict[str, Any]:
        """Return the profile and the samples as plain values."""
        return {
            "profile": None if self.profile is None else self.profile.to_dict(),
            "samples": [list(sample) for sample in self._samples],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore costs; a ratio or profile of this run has priority."""
        self._samples = [
            (int(tokens), float(target), float(draft), int(passes), float(rest))
            for tokens, target, draft, passes, rest in state["samples"]
        ]
        if state["profile"] is not None and self.ratio is None and self._given is None:
            self._fix(LatencyProfile.from_dict(state["profile"], modelled=False))

    def _fix(self, profile: LatencyProfile) -> None:
        self.profile = profile
        self._target, self._draft = {}, {}

    def _profile(self) -> LatencyProfile:
        if self.profile is None:
            raise RuntimeError("costs are not measured yet")
        return self.profile


def _measured(samples: Sequence[Sample]) -> LatencyProfile:
    plain = [sample for sample in samples if sample[0] == 1]
    drafted = sorted(sample for sample in samples if sample[0] > 1)
    target_ms = {1: max(median(sample[1] for sample in plain), 1e-6)}
    middle = len(drafted) // 2  # a line through the medians of small and large trees
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
