"""Reduced heads: a draft's output layer covers only some of the target's tokens, as in EAGLE-3 (``d2t``)."""

from __future__ import annotations

import json
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from specexp.core.tree import NO_CANDIDATE

if TYPE_CHECKING:
    import torch

# models with reduced heads, keyed by the original model
_REDUCED: WeakKeyDictionary[Any, dict[Any, Any]] = WeakKeyDictionary()
VocabularyFile = Annotated[str, Field(min_length=1)]
VocabularySize = Annotated[int, Field(ge=1)]


@dataclass(frozen=True, eq=False)
class DraftVocabulary:
    """The tokens that a reduced head can draft: ``[Vd]`` ascending ids out of the target's ``size`` tokens."""

    kept: torch.Tensor
    size: int

    @classmethod
    def of(cls, runtime: Any) -> DraftVocabulary | None:
        """Return the ``draft_vocabulary`` in a draft's configuration, or None if the draft has no reduced head."""
        import torch

        ids = getattr(getattr(runtime.model, "config", None), "draft_vocabulary", None)
        return None if ids is None or runtime.draft_source else cls(torch.tensor(ids), runtime.vocab_size)

    @classmethod
    def read(cls, file: str | None, most: int | None, size: int) -> DraftVocabulary | None:
        """Read the first ``most`` ids of a JSON list, most frequent first. Without a file, use the ids below ``most``.

        The ids of a BPE tokenizer follow the order of its merges, so the lowest are roughly the most frequent.

        Raises:
            ValueError: the file does not contain a list of distinct ids below ``size``, or ``most`` is larger.
        """
        import torch

        if most is not None and most > size:
            raise ValueError(f"vocabulary_size must be at most {size}, the model's number of tokens, got {most}")
        if file is None:
            return None if most is None else cls(torch.arange(most), size)
        try:
            ids = json.loads(Path(file).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ValueError(f"{file}: a draft vocabulary must be a JSON list of token ids: {error}") from error
        if (
            not isinstance(ids, list)
            or not ids
            or any(type(one) is not int or not 0 <= one < size for one in ids)
            or len(set(ids)) != len(ids)
        ):
            raise ValueError(f"{file}: a draft vocabulary must be a list of different token ids from 0 to {size - 1}")
        return cls(torch.tensor(sorted(ids[:most])), size)

    def ids(self, found: NDArray[np.int64]) -> NDArray[np.int64]:
        """Convert indices of kept tokens to the target's ids. ``NO_CANDIDATE`` is unchanged."""
        return np.where(found == NO_CANDIDATE, NO_CANDIDATE, self.kept.numpy(force=True)[found])

    def spread(self, q: torch.Tensor) -> torch.Tensor:
        """Expand the kept tokens' probabilities ``[f, Vd]`` to the whole vocabulary, ``[f, V]``."""
        return q.new_zeros((q.shape[0], self.size)).index_copy_(1, self.kept.to(q.device), q)

    def layer(self, output: Any) -> torch.nn.Linear:
        """Return a copy of an output layer with only the kept tokens' rows."""
        import torch

        kept = self.kept.to(output.weight.device)
        made = torch.nn.Linear(output.weight.shape[1], kept.numel(), output.bias is not None, device="meta")
        made.weight = torch.nn.Parameter(output.weight.detach()[kept], requires_grad=False)
        if output.bias is not None:
            made.bias = torch.nn.Parameter(output.bias.detach()[kept], requires_grad=False)
        return made

    def runtime(self, runtime: Any) -> Any:
        """Return a runtime with only the kept tokens' output rows, which shares all other weights with ``runtime``.

        All runtimes of a model use the same reduced model, so that they share its packed weights.
        """
        model = runtime.model
        if runtime.draft_source is not None or not hasattr(model, "get_output_embeddings"):
            raise ValueError(f"{type(runtime).__name__} runs no reduced head: set pair.mode to eager or compiled")
        output = model.get_output_embeddings()
        known = _REDUCED.setdefault(model, {})
        key = self.kept.numpy().tobytes(), output.weight.data_ptr()
        if key not in known:
            made = known[key] = copy(model)  # a shallow copy: the changes below must not affect the model
            made._modules = dict(model._modules)
            made.config = copy(model.config)
            made.config.vocab_size = self.kept.numel()
            made.config.tie_word_embeddings = False
            name = next(name for name, one in made._modules.items() if one is output)
            made._modules[name] = self.layer(output)
            made.draft_vocabulary = self  # for the ModelSource
        return type(runtime)(known[key])
