"""Greedy loops of engines, which decode beyond EOS, and further passes that only the contest times."""

from __future__ import annotations

import ctypes
from abc import abstractmethod
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import TYPE_CHECKING, Any
from weakref import finalize

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from specexp.engines.openvino import write_openvino
from specexp.models.llama_file import LlamaCppError, LlamaFile, complaint, library
from specexp.profile.measure import SKIPPED, TimedDecoding
from specexp.profile.passes import TimedPass

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from specexp.data import Prompt


class TimedLoop(TimedDecoding):
    """An engine's own decoding loop.

    Attributes:
        name: Name and version of the engine.
        answers: Seconds of each measured step, in a list for each prompt.
    """

    answers: list[list[float]]

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    @abstractmethod
    def continuation(self, token_ids: Sequence[int], new_tokens: int) -> tuple[list[int], list[float]]:
        """Return the new tokens, and the seconds of each but the first, which belongs to the prefill."""

    @override
    def decode(self, prompt: Prompt, max_new_tokens: int) -> None:
        _, seconds = self.continuation(prompt.token_ids, max_new_tokens)
        self.answers.append(seconds[SKIPPED:])


class LlamaCppLoop(TimedLoop):
    """llama.cpp with its own sampler and one sequence, in the settings of our runtime for the same file.

    Args:
        model: The loaded file.
        context: Size of the context in tokens.

    Raises:
        LlamaCppError: llama.cpp cannot make the context.
    """

    def __init__(self, model: LlamaFile, context: int) -> None:
        super().__init__(f"llama.cpp's loop (llama-cpp-python {version('llama-cpp-python')})")
        self.length = 0
        self._model = model  # must live as long as the context
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
    def continuation(self, token_ids: Sequence[int], new_tokens: int) -> tuple[list[int], list[float]]:
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
        """Drop all tokens beyond the first ``length``."""
        self._functions.llama_memory_seq_rm(self._memory, 0, length, -1)
        self.length = length

    def feed(self, token_ids: Sequence[int]) -> None:
        """Append tokens in one pass, which computes logits for the last one."""
        tokens = np.array(token_ids, dtype=np.int32)
        address = tokens.ctypes.data_as(ctypes.POINTER(self._functions.llama_token))
        self._decode(self._functions.llama_batch_get_one(address, tokens.size))
        self.length += tokens.size

    def pass_seconds(self, token_ids: Sequence[int]) -> float:
        """Return the seconds of a pass over a chain of tokens with all logits. The tokens are dropped afterwards."""
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


class OpenVinoLoop(TimedLoop):
    """OpenVINO GenAI on the CPU with its default settings.

    Args:
        model: A decoder with full attention. Its weights are copied.
        threads: Number of CPU threads.

    Raises:
        ImportError: OpenVINO GenAI is not installed.
        RuntimeError: OpenVINO GenAI cannot run the model.
    """

    def __init__(self, model: PreTrainedModel, threads: int) -> None:
        import openvino_genai

        super().__init__(f"OpenVINO GenAI {version('openvino-genai')}")
        with TemporaryDirectory(prefix="specexp-") as folder:
            write_openvino(model, Path(folder))
            self._pipeline: Any = openvino_genai.LLMPipeline(folder, "CPU", INFERENCE_NUM_THREADS=threads)
        self._settings = openvino_genai.GenerationConfig()
        self._settings.ignore_eos, self._settings.do_sample = True, False

    @override
    def continuation(self, token_ids: Sequence[int], new_tokens: int) -> tuple[list[int], list[float]]:
        from openvino import Tensor

        self._settings.max_new_tokens = new_tokens
        found = self._pipeline.generate(Tensor(np.array([token_ids], dtype=np.int64)), self._settings)
        stamps = np.array(found.perf_metrics.raw_metrics.m_new_token_times)  # milliseconds
        return list(found.tokens[0]), (np.diff(stamps) / 1e3).tolist()


class LlamaDecode(TimedPass):
    """Times ``llama_decode`` over a chain with the logits of all rows, in a context of its own."""

    def __init__(self, loop: LlamaCppLoop, vocab_size: int, token_ids: NDArray[np.int64]) -> None:
        super().__init__(token_ids, vocab_size)
        self._loop = loop

    @override
    def prepare(self, prefix: int) -> None:
        self._loop.truncate(min(prefix, self._loop.length))
        if self._loop.length < prefix:
            self._loop.feed(self.token_ids[self._loop.length : prefix].tolist())

    @override
    def seconds(self, tokens: int) -> float:
        return self._loop.pass_seconds(self.tree(tokens).tokens.tolist())
