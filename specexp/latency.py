"""What passes cost on a device: milliseconds by the number of tokens fed, measured there, published or assumed."""

# No `from __future__ import annotations` here: jsonargparse then drops the bounds of the signature.

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

Milliseconds = Annotated[float, Field(ge=0)]


@dataclass(frozen=True)
class LatencyProfile:
    """Milliseconds of a target pass and of a draft pass by the tokens they are fed; between two given numbers of tokens
    on a straight line, beyond the last one on with the last slope (never falling).

    Args:
        name: of the models and the device, in tables.
        target_ms: by tokens fed, 1 among them.
        draft_ms: by tokens fed, 1 among them; empty where there is no draft model.
        step_ms: what a step that drafts costs beside its passes (cache look-up, roll-back, controller).
        source: whether it was measured, published, or assumed.
        modelled: whether the seconds of a run are modelled by it; if not they are measured, and only controllers weigh
            costs by it.

    Raises:
        ValueError: 1 is missing, a number of tokens is below 1, or a target pass takes no time.

    Example:
        >>> LatencyProfile("7B drafts for 70B", {1: 152.0}, {1: 21.0}).step_seconds(5, [1, 1, 1, 1])
        0.236
    """

    name: str
    target_ms: dict[int, Milliseconds]
    draft_ms: dict[int, Milliseconds] = field(default_factory=dict)
    step_ms: Milliseconds = 0.0
    source: Literal["measured", "published", "assumed"] = "assumed"
    modelled: bool = True

    def __post_init__(self) -> None:
        for what in ("target_ms", "draft_ms"):
            given: Mapping[int, float] = getattr(self, what)
            if given and 1 not in given:
                raise ValueError(
                    f"{what} of latency profile {self.name!r} states no milliseconds for 1 token"
                )
            if given and min(given) < 1:
                raise ValueError(
                    f"{what} of latency profile {self.name!r} is stated for {min(given)} tokens; 1 or more are allowed"
                )
        if not self.target_ms or min(self.target_ms.values()) <= 0:
            raise ValueError(f"target_ms of latency profile {self.name!r} must hold milliseconds above 0")

    @property
    def label(self) -> str:
        """What figures modelled by it are called, e.g. ``modelled: 7B drafts for 70B (published)``."""
        return f"modelled: {self.name} ({self.source})"

    @property
    def max_target_tokens(self) -> int:
        """Most tokens of a target pass it states milliseconds for; a profile of one point holds for any number."""
        return max(self.target_ms)

    def exceeded_by(self, tokens: int) -> bool:
        """Whether a target pass feeds more tokens than it states milliseconds for."""
        return len(self.target_ms) > 1 and tokens > self.max_target_tokens

    def target_seconds(self, tokens: int) -> float:
        """Of a target pass over ``tokens`` tokens, the root among them."""
        return _between(self.target_ms, tokens)

    def draft_seconds(self, tokens: int) -> float:
        """Of a draft pass.

        Raises:
            ValueError: the profile states none.
        """
        if not self.draft_ms:
            raise ValueError(f"latency profile {self.name!r} states no draft_ms, but a draft model was run")
        return _between(self.draft_ms, tokens)

    def step_seconds(self, tokens: int, pass_tokens: Sequence[int] = ()) -> float:
        """Of a whole step.

        Args:
            tokens: fed to the target, the root among them.
            pass_tokens: fed in each draft pass.
        """
        drafts = tokens > 1 or len(pass_tokens) > 0
        return (
            self.target_seconds(tokens)
            + sum(map(self.draft_seconds, pass_tokens))
            + (self.step_ms / 1e3 if drafts else 0.0)
        )

    def step_cost(self, tokens: int, pass_tokens: Sequence[int] = ()) -> float:
        """Of a step in units of a step of plain decoding."""
        return self.step_seconds(tokens, pass_tokens) / self.target_seconds(1)

    def to_dict(self) -> dict[str, Any]:
        """As plain values, the keys of the milliseconds as text, for JSON."""
        return {
            "name": self.name,
            "target_ms": {str(tokens): ms for tokens, ms in self.target_ms.items()},
            "draft_ms": {str(tokens): ms for tokens, ms in self.draft_ms.items()},
            "step_ms": self.step_ms,
            "source": self.source,
        }


def _between(milliseconds: Mapping[int, float], tokens: int) -> float:
    places = sorted(milliseconds)
    if tokens > places[-1] and len(places) > 1:
        (before, last) = places[-2:]
        slope = max((milliseconds[last] - milliseconds[before]) / (last - before), 0.0)
        return (milliseconds[last] + slope * (tokens - last)) / 1e3
    return float(np.interp(tokens, places, [milliseconds[place] for place in places])) / 1e3
