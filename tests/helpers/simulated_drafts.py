"""Speculation without a model: calibrated confidences at a paper's acceptance, and passes at its costs.

``PYTHONPATH=tests python -m helpers.simulated_drafts`` prints the table of ``docs/reproduction.md``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from helpers.published import published_arm
from specexp.controllers import QLearning
from specexp.core.context import Context
from specexp.core.dialogue import DraftState
from specexp.core.latency import LatencyProfile
from specexp.core.outcome import Outcome
from specexp.core.tree import TokenTree, TreeShape

PAPER = LatencyProfile("paper", {1: 152.0, 64: 155.0}, {1: 21.0, 64: 21.4}, step_ms=2.2)
"""Table 9 of Post-use & Pre-cut, as in ``configs/latency/post_use_pre_cut.yaml``."""
LENGTHS = (3, 6, 9, 12, 18, 24)
MOST = 24
SPREADS = {"wide": (1.3, 0.2), "middle": (2.6, 0.4), "narrow": (6.5, 1.0)}
"""Beta distributions of a draft's confidences, all with a mean of 0.867, at which 5.3 of 12 drafts are accepted."""
_OUTPUT = 400  # steps of one output


class Run(NamedTuple):
    """The result of a simulation: speed over plain decoding and drafts a step, of the steps that are measured."""

    speedup: float
    drafts: float


@dataclass(frozen=True)
class Drafts:
    """The drafts of many steps. A draft with confidence c matches the target with probability c."""

    confidences: NDArray[np.float64]  # [steps, MOST]
    accepted: NDArray[np.int64]  # [steps] drafts before the first mismatch, of MOST

    @classmethod
    def of(cls, steps: int, spread: str = "middle", seed: int = 0) -> Drafts:
        """Draw the drafts of some steps."""
        random = np.random.default_rng(seed)
        confidences = np.maximum(random.beta(*SPREADS[spread], size=(steps, MOST)), 1e-6)
        matches = random.random((steps, MOST)) < confidences
        return cls(confidences, np.where(matches.all(axis=1), MOST, matches.argmin(axis=1)))

    def fixed(self, length: int) -> Run:
        """Return the result of drafts of a fixed length."""
        tokens = np.minimum(self.accepted, length).mean() + 1
        return Run(tokens * seconds(0) / seconds(length), length)

    def controlled(self, controller: QLearning) -> Run:
        """Let a controller learn from all steps, and return the result of the second half of them."""
        controller.use_latency(PAPER)
        tokens = spent = drafts = 0.0
        for number, accepted in enumerate(self.accepted):
            if number % _OUTPUT == 0:
                context = Context([1, 2])
            length, new = _step(controller, context, np.log(self.confidences[number]), int(accepted))
            if number >= len(self.accepted) // 2:
                tokens, spent, drafts = tokens + new, spent + seconds(length), drafts + length
        return Run(tokens * seconds(0) / spent, drafts / (len(self.accepted) - len(self.accepted) // 2))


def seconds(length: int) -> float:
    """Return the seconds of a step with a draft of some length."""
    others = PAPER.beside_seconds(length + 1, draft_passes=length) if length else 0.0
    return PAPER.target_seconds(length + 1) + length * PAPER.draft_seconds(1) + others


def published_reward(length: int) -> float:
    """Return the reward of section 5.2 if a whole draft is accepted: tokens over cost in draft passes, less 1."""
    return length / (seconds(length) / PAPER.draft_seconds(1)) - 1


def controllers() -> dict[str, QLearning]:
    """Return the paper's controller with each of its rewards, and ours."""
    return {
        "as published": QLearning(**published_arm("ours_published").controller.init_args),
        "reward of algorithm 1": QLearning(**published_arm("algorithm_1").controller.init_args),
        "ours": QLearning(alpha=0.02),
    }


def _step(controller: QLearning, context: Context, log_probs: NDArray[np.float64], accepted: int) -> tuple[int, int]:
    """Draft a chain as the decoder does, and let the controller observe it; return its length and the new tokens."""
    sums = np.concatenate([[0.0], np.cumsum(log_probs)])
    length = 0
    if controller.plan(context).max_depth != 0:
        while length < MOST and controller.keep_drafting(
            context, DraftState(length, length, (1,) * length, sums[length], log_probs[length - 1] if length else 0.0)
        ):
            length += 1
    accepted = min(accepted, length)
    shape = TreeShape(range(-1, length), [-1] + [0] * length)
    tokens = np.array([context.root, *range(3, 3 + length)])
    tree = TokenTree(shape, tokens, np.concatenate([[0.0], log_probs[:length]]).astype(np.float32))
    best = np.ones((length + 1, 1), dtype=np.int64)  # 1 is the target's token after the accepted drafts
    best[:accepted, 0] = range(3, 3 + accepted)
    new = (*range(3, 3 + accepted), 1)
    context.append(new)
    context.steps += 1
    top = best, np.zeros(best.shape, dtype=np.float32)
    rows = tuple(range(1, accepted + 1))
    controller.observe(Outcome(context, tree, torch.zeros(0, 0), rows, new, (1,) * length, {}, top=top))
    return length, accepted + 1


def main(steps: int = 6000) -> None:
    """Print the speeds of fixed lengths and of the controllers."""
    for spread in SPREADS:
        drafts = Drafts.of(steps, spread)
        print(f"{spread}: {np.minimum(drafts.accepted, 12).mean():.2f} of 12 accepted")
        print("  fixed", *(f"{length}: {drafts.fixed(length).speedup:.2f}x" for length in LENGTHS))
        for name, controller in controllers().items():
            found = drafts.controlled(controller)
            print(f"  {name}: {found.speedup:.2f}x, {found.drafts:.1f} drafts a step", flush=True)


if __name__ == "__main__":
    main()
