"""From logits to what is sampled from, for targets and drafts alike: temperature, top-k and top-p by ``transformers``'
own processors, in their order; logits that nobody can sample from are named before they do harm.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray
    from transformers import LogitsProcessor

    from specexp.core.context import Context


class Processors:
    """From logits to the scores that are sampled from.

    Args:
        temperature: 0 keeps only the most probable token (among equals the lowest id).
        top_k: keep only so many of the most probable tokens.
        top_p: keep only the most probable tokens that hold this much probability together.
    """

    def __init__(
        self, temperature: float = 1.0, top_k: int | None = None, top_p: float | None = None
    ) -> None:
        self.temperature = temperature
        self.top_k = top_k
        self.top_p = top_p

    @property
    def settings(self) -> dict[str, float | int | None]:
        """Temperature, top-k and top-p, by name."""
        return {"temperature": float(self.temperature), "top_k": self.top_k, "top_p": self.top_p}

    @cached_property
    def _processors(self) -> list[LogitsProcessor]:
        # imported here: a configuration is checked without the seconds this takes
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
        """Float32 scores (float64 stays), log-probabilities up to a constant a row; removed tokens ``-inf``.

        Args:
            logits: ``[n, V]`` of any float dtype.
        """
        import torch

        scores = logits if logits.dtype == torch.float64 else logits.float()
        if self.temperature == 0:
            best = scores.argmax(dim=-1, keepdim=True)
            return torch.full_like(scores, -torch.inf).scatter_(-1, best, 0.0)
        for process in self._processors:
            scores = process(None, scores)  # none of the three looks at the input ids
        return scores

    def probabilities(self, logits: torch.Tensor) -> NDArray[np.float64]:
        """``[V]`` probabilities that sum to one, from ``[V]`` logits."""
        scores = self.scores(logits[None])[0].double()
        return np.asarray(scores.softmax(dim=-1).numpy(force=True))


def highest(scores: torch.Tensor) -> int:
    """The token of the highest of ``[V]`` scores, among equals the lowest id."""
    if not on_host(scores):
        return int(scores.argmax())
    return int(scores.float().numpy(force=True).argmax())  # in a fifth of the time of torch's


def highest_of(scores: torch.Tensor) -> list[int]:
    """Of ``[m, V]`` scores on the host the token of each row, as :func:`highest`."""
    found: list[int] = scores.float().numpy(force=True).argmax(axis=1).tolist()
    return found


def on_host(tensor: torch.Tensor) -> bool:
    """Whether it lies where Python is, so that a number of it is read without waiting for a device."""
    return tensor.device.type == "cpu"


def to_host(*tensors: torch.Tensor) -> list[NDArray[Any]]:
    """Arrays of tensors whose numbers have 4 or 8 bytes, in one copy: the host waits once for all of them."""
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
    """A model gave NaN or infinite logits."""


def check_logits(logits: torch.Tensor, role: str, context: Context) -> None:
    """Refuse NaN, ``+inf`` and rows without any possible token; ``-inf`` alone marks an impossible token.

    Args:
        logits: ``[n, V]``.

    Raises:
        LogitsError: one sentence with model, step and prompt.
    """
    check_best(logits.amax(dim=-1).float().numpy(force=True), role, context)  # NaN wins every comparison


def check_best(best: NDArray[Any], role: str, context: Context) -> None:
    """Refuse the answers whose highest logits ``[n]`` these are.

    Raises:
        LogitsError: as :func:`check_logits`.
    """
    finite = np.isfinite(best)
    if finite.all():
        return
    worst = best[~finite][0]
    found = "NaN" if worst != worst else ("infinite" if worst > 0 else "only -inf")
    raise LogitsError(
        f"the {role} model gave {found} logits in step {context.steps + 1} of prompt {context.sequence!r} "
        f"(after {len(context)} tokens): its weights, dtype or attention are at fault, and nothing can be sampled"
    )
