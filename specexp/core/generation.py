"""What decoding a sequence gave, and what it took."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

FinishReason = Literal["", "eos", "stop", "length", "context"]
"""Why an output ended: a token, a :data:`Stop`, ``max_new_tokens`` or the model's limit; empty while it goes on."""
PHASES = ("draft", "build", "target", "verify", "commit", "update")
"""Where the time of a step goes: the drafter's answers, the builder and controller, the target pass, acceptance,
keeping the accepted rows, and learning. They add up to the step."""


@dataclass
class GenerationResult:
    """What decoding one sequence gave, and what it took; every metric of the papers derives from these.

    Attributes:
        token_ids: the new tokens, once the output has ended; EOS, where it came, is the last.
        finish_reason: why the output ended.
        seed: what its randomness was keyed by: the same seed, sequence and prompt give the same tokens again.
        steps: target passes, the prefill not counted.
        accepted_drafts: drafted tokens that became output.
        bonus_tokens: tokens the target added itself, at most one a step.
        draft_passes: forward passes of a draft model.
        drafted_nodes: nodes fed to the target, roots not counted.
        drafted_at: steps whose tree reached each depth, from depth 1 on: drafted positions, whatever a tree's width.
        accepted_at: steps whose accepted path reached it and became output.
        useful_tokens: drafted tokens of the first-ranked path that the target answered identically, also beyond the
            first mismatch (Post-use & Pre-cut, eq. 7); None unless asked for.
        prefill_seconds: time before the first step.
        seconds: time of all steps by phase, see :data:`PHASES`.
    """

    token_ids: list[int] = field(default_factory=list)
    finish_reason: FinishReason = ""
    seed: int = 0
    steps: int = 0
    accepted_drafts: int = 0
    bonus_tokens: int = 0
    draft_passes: int = 0
    drafted_nodes: int = 0
    drafted_at: list[int] = field(default_factory=list)
    accepted_at: list[int] = field(default_factory=list)
    useful_tokens: int | None = None
    prefill_seconds: float = 0.0
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))

    @property
    def decode_seconds(self) -> float:
        """Time of all steps, prefill apart."""
        return sum(self.seconds.values())

    @property
    def tokens_per_step(self) -> float:
        """New tokens per target pass; accepted drafts per step plus one, but for a cut last step."""
        return len(self.token_ids) / self.steps
