"""What replay predicted of a candidate, beside what it took live."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from specexp.bench.record import MEASURED
from specexp.replay.play.fidelity import worth

if TYPE_CHECKING:
    from specexp.replay.format.recording import Manifest
    from specexp.sweep.confirm import Confirmed


@dataclass(frozen=True)
class Predicted:
    """What replay says of a candidate, or of plain decoding.

    Attributes:
        tokens_per_step: micro mean.
        tokens_per_second: all tokens / all seconds of the latency profile.
        searched: whether of the search's prompts, because the confirmation's were not recorded.
    """

    tokens_per_step: float
    tokens_per_second: float
    searched: bool

    @staticmethod
    def of_search(metrics: Mapping[str, float]) -> Predicted:
        """From the metrics of a replayed trial."""
        return Predicted(metrics["tokens_per_step"], metrics["modelled_tokens_per_second"], searched=True)


def compared(one: Confirmed) -> str:
    """A sentence: what was predicted of a candidate, what it took, and how far the two lie apart."""
    predicted = one.predicted
    assert predicted is not None
    off = 100 * (predicted.tokens_per_second / one.tokens_per_second - 1)
    where = " on the search's prompts, for these were not recorded" if predicted.searched else ""
    took = "live it reached" if one.over_ar.clock == MEASURED else "its live steps take, by the same profile,"
    return (
        f"Replay predicted {predicted.tokens_per_second:.1f} tokens/s of {one.label}{where}; {took} "
        f"{one.tokens_per_second:.1f} (off by {off:+.1f} %). Tokens per step: {predicted.tokens_per_step:.3f} "
        f"predicted, {one.tokens_per_step:.3f} live."
    )


def graded(one: Confirmed, manifest: Manifest) -> str:
    """A sentence: what the replayed figures of a candidate are worth.

    Args:
        one: the candidate.
        manifest: of the recording.
    """
    return f"Replayed counts of {one.label} are {worth(one.attributes['fidelity'], manifest)}."
