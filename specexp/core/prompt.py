"""Prompts and their ends as token ids, from the forms that callers pass."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from operator import index

import numpy as np
import torch


def token_list(input_ids: Sequence[int] | torch.Tensor) -> list[int]:
    """Return the token ids of a prompt ``[p]`` or ``[1, p]``; raises ``ValueError`` for anything else."""
    if isinstance(input_ids, Mapping):
        raise ValueError("the prompt is a tokenizer's whole answer: pass its input_ids")
    if isinstance(input_ids, str):
        raise ValueError("the prompt is text: pass a tokenizer's input_ids of it")
    try:
        tokens = np.asarray(input_ids.cpu() if isinstance(input_ids, torch.Tensor) else input_ids)
    except ValueError:  # lists of different lengths
        tokens = np.empty((len(input_ids), 0))
    if tokens.ndim == 2 and tokens.shape[0] != 1:
        raise ValueError(f"input_ids has a batch of {tokens.shape[0]}; one prompt a call is decoded")
    if tokens.ndim not in (1, 2) or (tokens.size and not np.issubdtype(tokens.dtype, np.integer)):
        given = f"{tokens.dtype} {list(tokens.shape)}"
        if tokens.ndim == 0 or tokens.dtype.kind not in "biuf":
            given = f"{input_ids!r:.60}"
        raise ValueError(f"input_ids is {given}; token ids [p] or [1, p] are expected")
    return [int(token) for token in tokens.flatten()]


def eos_set(eos_token_id: int | Collection[int] | None, vocab_size: int) -> frozenset[int]:
    """Return the EOS tokens; raises ``ValueError`` if one is not in the vocabulary."""
    if eos_token_id is None:
        return frozenset()
    if isinstance(eos_token_id, (torch.Tensor, np.ndarray)):
        eos_token_id = eos_token_id.flatten().tolist()
    given = eos_token_id if isinstance(eos_token_id, Collection) else [eos_token_id]
    try:
        if any(isinstance(token, bool) for token in given):
            raise TypeError("a truth is no token")
        found = frozenset(map(index, given))
    except TypeError as error:
        raise ValueError(f"eos_token_id is {eos_token_id!r}; a token id or several are expected") from error
    if unknown := sorted(found - set(range(vocab_size))):
        raise ValueError(
            f"eos_token_id is {unknown[0]}; the target's vocabulary has ids 0 to {vocab_size - 1}"
        )
    return found
