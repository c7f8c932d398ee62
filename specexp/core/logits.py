"""Logits nobody can sample from are named, with the place, before they do harm."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from specexp.core.context import Context


class LogitsError(ValueError):
    """A model gave NaN or infinite logits."""


def check_logits(logits: torch.Tensor, role: str, context: Context) -> None:
    """Refuse NaN, ``+inf`` and rows without any possible token; ``-inf`` alone marks an impossible token.

    Args:
        logits: ``[n, V]``.
        role: ``"target"`` or ``"draft"``.
        context: the sequence, for the sentence.

    Raises:
        LogitsError: one sentence with model, step and prompt.
    """
    best = logits.amax(dim=-1)  # NaN wins every comparison
    if bool(torch.isfinite(best).all()):
        return
    worst = best[~torch.isfinite(best)][0].item()
    found = "NaN" if worst != worst else ("infinite" if worst > 0 else "only -inf")
    raise LogitsError(
        f"the {role} model gave {found} logits in step {context.steps + 1} of prompt {context.sequence!r} "
        f"(after {len(context)} tokens): its weights, dtype or attention are at fault, and nothing can be sampled"
    )
