"""A candidate on the prompts of the confirmation, beside replay's prediction of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from specexp.bench.statistics import Speedup


@dataclass(frozen=True)
class Predicted:
    """Replay's figures of a candidate, or of plain decoding.

    Attributes:
        tokens_per_step: All tokens / all steps.
        tokens_per_second: All tokens / all seconds of the latency profile.
        searched: Whether the figures are of the search's prompts, because the confirmation's were not recorded.
        over_ar: Paired speedup over replayed plain decoding; None for plain decoding itself.
    """

    tokens_per_step: float
    tokens_per_second: float
    searched: bool
    over_ar: Speedup | None = None


@dataclass(frozen=True)
class Confirmed:
    """One candidate on the prompts of the confirmation.

    Attributes:
        name: Name of the known configuration, or ``trial 7``.
        trial: Number of the trial it comes from.
        chosen: Names of the parts that were chosen for it, e.g. ``fitted``; of what no fixed tree tells also the
            numbers, e.g. ``threshold=0.03`` or ``n=3``.
        attributes: Its tree, see :class:`~specexp.sweep.candidates.Candidate`.
        searched: Its speedup over plain decoding, as a logarithm, that the search measured.
        tokens_per_step: All tokens / all steps.
        tokens_per_second: All tokens / all decode seconds.
        over_ar: Paired speedup over plain decoding in the same loop.
        over_eager: Paired speedup over Hugging Face's plain ``generate``; None where it was not run.
        choice: Its choice of the key whose choices are compared; None where the confirmation compares none.
        predicted: Replay's prediction; None if nothing was replayed, or the confirmation is replayed too.
    """

    name: str
    trial: int
    chosen: tuple[str, ...]
    attributes: dict[str, Any]
    searched: float | None
    tokens_per_step: float
    tokens_per_second: float
    over_ar: Speedup
    over_eager: Speedup | None
    choice: str | None = None
    predicted: Predicted | None = None

    @property
    def predicted_error(self) -> float | None:
        """Predicted / confirmed speedup over plain decoding, less 1; None if either is missing."""
        predicted = None if self.predicted is None else self.predicted.over_ar
        if predicted is None or predicted.refused is not None or self.over_ar.refused is not None:
            return None
        return predicted.ratio / self.over_ar.ratio - 1

    @property
    def is_chain(self) -> bool:
        """Whether no node has a sibling: ordinary speculative decoding."""
        paths = self.attributes.get("rank_paths")
        return paths is not None and all(rank == 0 for path in paths for rank in path)

    @property
    def label(self) -> str:
        """Name with the parts chosen for it, for a table."""
        return f"{self.name} ({', '.join(self.chosen)})" if self.chosen else self.name
