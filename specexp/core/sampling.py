"""Converts target and draft logits to scores for sampling, applying temperature, top-k and top-p."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isfinite
from typing import TYPE_CHECKING, Any

import numpy as np

from specexp.core.constraint import Constraint, path_tokens, tokens_in
from specexp.core.tree import TokenTree

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray
    from transformers import LogitsProcessor

    from specexp.core.context import Context


@dataclass(frozen=True)
class Processors:
    """Converts logits to scores for sampling.

    Args:
        temperature: 0 keeps only the argmax (ties go to the lowest id).
        top_k: keep only this many of the most probable tokens.
        top_p: keep only the smallest set of the most probable tokens that reaches this total probability.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None

    @property
    def settings(self) -> dict[str, float | int | None]:
        """Temperature, top-k and top-p, keyed by name."""
        return {"temperature": float(self.temperature), "top_k": self.top_k, "top_p": self.top_p}

    @cached_property
    def warpers(self) -> list[LogitsProcessor]:
        """The processors of ``transformers`` for temperature, top-k and top-p, in this order."""
        # imported here, because the import takes seconds and checking a configuration does not need it
        from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

        processors: list[LogitsProcessor] = []
        if self.temperature not in (0.0, 1.0):
            processors.append(TemperatureLogitsWarper(float(self.temperature)))
        if self.top_k is not None:
            processors.append(TopKLogitsWarper(self.top_k))
        if self.top_p is not None and self.top_p < 1:
            processors.append(TopPLogitsWarper(self.top_p))
        return processors

    def scores(self, logits: torch.Tensor) -> torch.Tensor:
        """Return ``[n, V]`` log-probabilities, up to a constant per row; excluded tokens get ``-inf``.

        The scores are float32, or float64 if the logits are.
        """
        import torch

        scores = logits if logits.dtype == torch.float64 else logits.float()
        if self.temperature == 0:
            best = scores.argmax(dim=-1, keepdim=True)
            return torch.full_like(scores, -torch.inf).scatter_(-1, best, 0.0)
        for process in self.warpers:
            scores = process(None, scores)  # none of the three uses the input ids
        return scores

    def probabilities(self, logits: torch.Tensor) -> NDArray[np.float64]:
        """Return ``[V]`` probabilities from ``[V]`` logits."""
        scores = self.scores(logits[None])[0].double()
        return np.asarray(scores.softmax(dim=-1).numpy(force=True))


def highest(scores: torch.Tensor) -> int:
    """Return the argmax of ``[V]`` scores; ties go to the lowest id."""
    if not on_host(scores):
        return int(scores.argmax())
    return int(scores.float().numpy(force=True).argmax())  # numpy's argmax is five times faster than torch's


def allowed_after(
    constraint: Constraint | None, tree: TokenTree, tokens: Sequence[int], logits: torch.Tensor, row: int
) -> int:
    """Return the allowed token with the highest logit after a row of a tree.

    Args:
        tokens: the token with the highest logit after each row, allowed or not.
        logits: ``[n + 1, V]``. Rows with an allowed token are not read.
    """
    if constraint is None or constraint.allowed(path := path_tokens(tree, row), tokens[row : row + 1]):
        return tokens[row]
    allowed = tokens_in(constraint.mask(path))
    # no token counts after a row that is not allowed, or ends the output
    return int(allowed[highest(logits[row, allowed])]) if allowed.size else tokens[row]


def on_host(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is in host memory, where it can be read without waiting for a device."""
    return tensor.device.type == "cpu"


def to_host(*tensors: torch.Tensor) -> list[NDArray[Any]]:
    """Copy tensors of 4- or 8-byte numbers to host arrays in one transfer, so that the host waits only once."""
    import torch

    if on_host(tensors[0]):
        return [tensor.numpy(force=True) for tensor in tensors]
    packed = torch.cat([tensor.contiguous().view(torch.uint8).flatten() for tensor in tensors])
    bytes_there, arrays, start = packed.numpy(force=True), [], 0
    for tensor in tensors:
        end = start + tensor.nbytes
        kind = np.dtype(str(tensor.dtype).removeprefix("torch."))
        arrays.append(bytes_there[start:end].copy().view(kind).reshape(tuple(tensor.shape)))
        start = end
    return arrays


class LogitsError(ValueError):
    """Raised if a model produces NaN or infinite logits."""


def check_logits(logits: torch.Tensor, role: str, context: Context) -> None:
    """Raise :class:`LogitsError` if ``[n, V]`` logits contain NaN, ``+inf`` or a row of only ``-inf``."""
    # the maximum of a row with NaN is NaN
    check_best(logits.amax(dim=-1).float().numpy(force=True), role, context)


def check_best(best: NDArray[Any], role: str, context: Context) -> None:
    """Perform the same check as :func:`check_logits`, given only the highest logit of each row, ``[n]``."""
    if all(map(isfinite, best.tolist())):  # numpy's reductions cost more for so few rows
        return
    worst = best[~np.isfinite(best)][0]
    found = "NaN" if worst != worst else ("infinite" if worst > 0 else "only -inf")
    raise LogitsError(
        f"the {role} model gave {found} logits in step {context.steps + 1} of prompt {context.sequence!r} "
        f"(after {len(context)} tokens): check its weights, dtype and attention implementation"
    )
