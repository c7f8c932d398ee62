"""What generating from one prompt gave, and what it took."""

from __future__ import annotations

from dataclasses import dataclass

from specexp.core.sequence import Counts, FinishReason


@dataclass(frozen=True)
class GenerationResult:
    """What one call of :meth:`Decoder.generate` gave.

    Attributes:
        token_ids: the new tokens; EOS, where it came, is the last.
        finish_reason: ``eos``, ``length`` (``max_new_tokens``) or ``context`` (the model's limit).
        counts: steps, drafts, passes, seconds by phase.
        prefill_seconds: time before the first step.
        decode_seconds: time of all steps: the sum of the phases.
    """

    token_ids: list[int]
    finish_reason: FinishReason
    counts: Counts
    prefill_seconds: float

    @property
    def decode_seconds(self) -> float:
        """Time of all steps, prefill apart."""
        return sum(self.counts.seconds.values())

    @property
    def tokens_per_step(self) -> float:
        """New tokens per target pass; accepted drafts per step plus one, but for a cut last step."""
        return len(self.token_ids) / self.counts.steps

    @property
    def steps(self) -> int:
        """Target passes, the prefill not counted."""
        return self.counts.steps

    @property
    def accepted_drafts(self) -> int:
        """Drafted tokens that became output."""
        return self.counts.accepted_drafts

    @property
    def draft_passes(self) -> int:
        """Forward passes of a draft model."""
        return self.counts.draft_passes

    @property
    def drafted_nodes(self) -> int:
        """Nodes fed to the target."""
        return self.counts.drafted_nodes

    @property
    def useful_tokens(self) -> int | None:
        """Position-wise matches, also beyond the first mismatch; None unless asked for."""
        return self.counts.useful_tokens

    @property
    def seconds(self) -> dict[str, float]:
        """Time by phase, and ``prefill``."""
        return {"prefill": self.prefill_seconds, **self.counts.seconds}
