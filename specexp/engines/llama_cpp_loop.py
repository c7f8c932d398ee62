"""llama.cpp as its own simple example runs it: one sequence, its own sampler, nothing of ours around it."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from importlib.metadata import version
from time import perf_counter
from typing import Any
from weakref import finalize

import numpy as np
from typing_extensions import override

from specexp.engines.plain_loop import PlainLoop
from specexp.models.llama_file import LlamaFile
from specexp.models.llama_library import LlamaCppError, complaint, library


class LlamaCppLoop(PlainLoop):
    """A context of one sequence, with the settings that the runtime runs the same file by.

    Args:
        model: the file, loaded.
        context: tokens it has room for.

    Raises:
        LlamaCppError: llama.cpp cannot make the context.
    """

    def __init__(self, model: LlamaFile, context: int) -> None:
        self.name = f"llama.cpp's loop (llama-cpp-python {version('llama-cpp-python')})"
        self.length = 0
        self._model = model  # which lives as long as the context
        functions = self._functions = library()
        given = model.context_settings(n_ctx=context, n_batch=context, n_ubatch=context, n_seq_max=1)
        self._context: Any = functions.llama_init_from_model(model.model, given)
        if not self._context:
            raise LlamaCppError(f"llama.cpp could not make a context of {context} tokens: {complaint()}")
        finalize(self, functions.llama_free, self._context)
        self._memory = functions.llama_get_memory(self._context)
        self._sampler = functions.llama_sampler_init_greedy()
        finalize(self, functions.llama_sampler_free, self._sampler)

    @override
    def decode(self, token_ids: Sequence[int], new_tokens: int) -> tuple[list[int], list[float]]:
        self.truncate(0)
        self.feed(token_ids)
        tokens, seconds = [self._sample()], list[float]()
        for _ in range(new_tokens - 1):
            started = perf_counter()
            self.feed(tokens[-1:])
            tokens.append(self._sample())
            seconds.append(perf_counter() - started)
        return tokens, seconds

    def truncate(self, length: int) -> None:
        """Forget all beyond the first tokens."""
        self._functions.llama_memory_seq_rm(self._memory, 0, length, -1)
        self.length = length

    def feed(self, token_ids: Sequence[int]) -> None:
        """One pass over tokens behind those it knows; the logits are those after the last."""
        tokens = np.array(token_ids, dtype=np.int32)
        address = tokens.ctypes.data_as(ctypes.POINTER(self._functions.llama_token))
        self._decode(self._functions.llama_batch_get_one(address, tokens.size))
        self.length += tokens.size

    def pass_seconds(self, token_ids: Sequence[int]) -> float:
        """Of one pass over tokens behind those it knows, the logits of all of them among it; then it forgets them."""
        size = len(token_ids)
        batch = self._functions.llama_batch_init(size, 0, 1)
        batch.n_tokens = size
        for row, token in enumerate(token_ids):
            batch.token[row], batch.pos[row], batch.logits[row] = int(token), self.length + row, 1
            batch.n_seq_id[row], batch.seq_id[row][0] = 1, 0
        started = perf_counter()
        self._decode(batch)
        self._functions.llama_get_logits(self._context)
        elapsed = perf_counter() - started
        self._functions.llama_batch_free(batch)
        self.truncate(self.length)
        return elapsed

    def _decode(self, batch: Any) -> None:
        if self._functions.llama_decode(self._context, batch):
            raise LlamaCppError(f"llama.cpp could not run a pass of {batch.n_tokens} rows: {complaint()}")

    def _sample(self) -> int:
        return int(self._functions.llama_sampler_sample(self._sampler, self._context, -1))
