"""A tuned composition inside Hugging Face's own ``model.generate``.

From a finished study to generated text::

    import specexp
    from specexp.deploy.hugging_face.custom_generate import custom_generate
    pair = specexp.load_pair("stdlib")
    fast = custom_generate(specexp.load_artifact("artifacts/tree_shape/best"))
    ids = pair.tokenizer("def main():\\n", return_tensors="pt").input_ids
    print(pair.tokenizer.decode(pair.target.generate(ids, custom_generate=fast, max_new_tokens=64)[0]))

``generate`` prepares its generation config, logits processors and stopping criteria as always; the loop is
ours. The output is that of plain ``generate``: the same tokens under greedy decoding, exact samples with
``do_sample=True``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from os import PathLike
from threading import Lock
from typing import Any, ClassVar

import torch
from transformers import LogitsProcessorList, PreTrainedModel, StoppingCriteriaList
from transformers.generation import BaseStreamer, EosTokenCriteria, GenerationConfig, MaxLengthCriteria
from typing_extensions import override

from specexp.config.artifacts import LoadedArtifact
from specexp.core.loop import Decoder
from specexp.core.outcome import Outcome
from specexp.core.parts import Parts, check_composition
from specexp.core.runtime import Runtime
from specexp.deploy.hugging_face.processed_sampling import ProcessedSampling, RowSampling
from specexp.deploy.hugging_face.request import check_request, eos_ids, hidden_arguments, left_padding, serves
from specexp.models.runtime import runtime_of
from specexp.scheduling import Executor, Job


@dataclass(frozen=True)
class _Call:
    """A call of ``generate``, checked; ``input_ids`` ``[b, p]``, ``padding`` masked tokens before each row."""

    model: PreTrainedModel
    input_ids: torch.Tensor
    processors: LogitsProcessorList
    criteria: StoppingCriteriaList
    config: GenerationConfig
    streamer: BaseStreamer | None
    seed: int
    padding: Sequence[int]

    @property
    def max_new_tokens(self) -> int:
        return int(self.config.max_length) - int(self.input_ids.shape[1])

    @property
    def sample(self) -> bool:
        return bool(self.config.do_sample)

    @property
    def temperature(self) -> float:
        return self.config.temperature or 1.0

    def stop(self, row: int) -> Callable[[Sequence[int]], bool] | None:
        """Whether a row ends with its new tokens by the criteria, but those of length and EOS, which are the loop's."""
        others = StoppingCriteriaList(
            one for one in self.criteria if not isinstance(one, (MaxLengthCriteria, EosTokenCriteria))
        )
        rows = self.input_ids.shape[0]

        def stop(new_tokens: Sequence[int]) -> bool:
            ids = torch.cat((self.input_ids[row], self.input_ids.new_tensor(list(new_tokens))))
            return bool(others(ids.repeat(rows, 1), None)[row])  # criteria may index the batch

        return stop if others else None


class CustomGenerate(ABC):
    """The callable for ``model.generate(custom_generate=...)``. Calls from several threads take turns."""

    takes_batches: ClassVar[bool] = False

    def __init__(self, seed: int | None) -> None:
        self.seed = seed
        self._lock = Lock()

    def __call__(
        self,
        model: PreTrainedModel,
        input_ids: torch.Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        seed: int | None = None,
        **model_kwargs: Any,
    ) -> torch.Tensor:
        """Continue every row of ``input_ids`` ``[b, p]``; returns ``[b, p + new]``, padded on the right."""
        hidden, config = hidden_arguments(), generation_config
        rows, padding = input_ids, [0]
        if self.takes_batches:
            rows, padding = input_ids[:1], left_padding(input_ids, model_kwargs.pop("attention_mask", None))
        check_request(rows, config, model_kwargs, hidden, padding, streams=not self.takes_batches)
        seed = self.seed if seed is None else seed
        if seed is None:  # torch.manual_seed then repeats a run, as it does for plain generate
            seed = int(torch.randint(2**62, ()).item()) if config.do_sample else 0
        streamer = hidden.get("streamer")  # generate has shown it the prompt
        call = _Call(model, input_ids, logits_processor, stopping_criteria, config, streamer, seed, padding)
        with self._lock:
            new = self._continue(call)
        longest = max(map(len, new))
        if any(len(row) < longest for row in new):
            new = [[*row, *[_pad_token(config)] * (longest - len(row))] for row in new]
        return torch.cat((input_ids, input_ids.new_tensor(new)), dim=1)

    @abstractmethod
    def _continue(self, call: _Call) -> list[list[int]]:
        """Return the new tokens of each row."""


def custom_generate(
    artifact_or_parts: LoadedArtifact | Iterable[Any],
    seed: int | None = None,
    draft: PreTrainedModel | None = None,
) -> CustomGenerate:
    """Return the callable for ``model.generate(input_ids, custom_generate=...)``.

    It follows the generation config, which replaces the artifact's verifier, and given processors and stopping
    criteria. ``stop_strings`` work as a ``StopStringCriteria``, since ``generate`` passes callables no tokenizer.
    Target and draft run as in the artifact's study (:meth:`~specexp.config.artifacts.LoadedArtifact.runtime`), and one
    KV cache serves all calls with one model. The output ends at the end of the model's context.

    An artifact with a ``schedule`` also takes several rows: a batch, padded on the left, or ``num_return_sequences``.
    Its callable keeps processes until its ``close()``, or until the end of a ``with`` statement or the program.

    Args:
        artifact_or_parts: an artifact, or drafter, builder and, optionally, verifier and controller.
        seed: for ``do_sample=True``; ``model.generate(..., seed=7)`` overrides it. By default each call draws its seed
            from torch's generator.
        draft: the draft model, for a drafter that needs one.

    Raises:
        ValueError: a path is given, or the drafter needs a draft model and there is none. Calls raise it for
            unsupported arguments, which :mod:`~specexp.deploy.hugging_face.request` lists.

    Example:
        >>> model.generate(ids, custom_generate=custom_generate(artifact))  # doctest: +SKIP
    """
    artifact = artifact_or_parts if isinstance(artifact_or_parts, LoadedArtifact) else None
    if artifact is not None and artifact.execution_spec is not None:
        return _ScheduledGeneration(artifact, seed, draft)
    if isinstance(artifact_or_parts, (str, PathLike)):
        raise ValueError(
            f"custom_generate of specexp: {str(artifact_or_parts)!r} is a path; pass specexp.load_artifact of it"
        )
    return _SingleGeneration(artifact, Parts(*artifact_or_parts), seed, draft)


class _SingleGeneration(CustomGenerate):
    """One prompt, by one decoder."""

    def __init__(
        self, artifact: LoadedArtifact | None, parts: Parts, seed: int | None, draft: PreTrainedModel | None
    ) -> None:
        super().__init__(seed)
        check_composition(*parts)
        if parts.drafter is not None:
            wrap = runtime_of if artifact is None else artifact.draft_runtime
            parts.drafter.use_draft_model(None if draft is None else wrap(draft))
        self._artifact = artifact
        self._parts = parts
        self._target: Runtime | None = None

    @override
    def _continue(self, call: _Call) -> list[list[int]]:
        if self._target is None or not serves(self._target, call.model):
            if self._artifact is None:
                self._target = runtime_of(call.model)
            else:
                self._artifact.check(call.model)
                self._target = self._artifact.runtime(call.model)
        verifier = ProcessedSampling(call.processors, sample=call.sample, temperature=call.temperature)
        stop = call.stop(0)

        def observe(outcome: Outcome) -> None:
            tokens = outcome.context.new_token_ids
            for count in range(len(tokens) - len(outcome.new_token_ids) + 1, len(tokens) + 1):
                if call.streamer is not None:
                    call.streamer.put(torch.tensor(tokens[count - 1 : count]))
                if stop is not None and stop(tokens[:count]):
                    raise _Stopped(tokens[:count])

        decoder = Decoder(self._target, *self._parts._replace(verifier=verifier))
        try:
            tokens = decoder.generate(
                call.input_ids,
                max_new_tokens=call.max_new_tokens,
                eos_token_id=eos_ids(call.config),
                seed=call.seed,
                observers=[] if stop is None and call.streamer is None else [observe],
            ).token_ids
        except _Stopped as stopped:
            tokens = stopped.new_tokens
        if call.streamer is not None:
            call.streamer.end()
        return [tokens]


class _Stopped(Exception):  # noqa: N818 - control flow, not an error
    """A stopping criterion ended the output after these tokens."""

    def __init__(self, new_tokens: list[int]) -> None:
        super().__init__()
        self.new_tokens = new_tokens


class _ScheduledGeneration(CustomGenerate):
    """The rows of a batch as sequences of one run of an execution strategy, whose processes are kept."""

    takes_batches = True

    def __init__(self, artifact: LoadedArtifact, seed: int | None, draft: PreTrainedModel | None) -> None:
        super().__init__(seed)
        self._artifact = artifact
        self._draft = draft
        self._verifier = RowSampling()
        self._executor: Executor | None = None

    @override
    def _continue(self, call: _Call) -> list[list[int]]:
        rows = list(zip(call.input_ids.tolist(), call.padding, strict=True))
        self._verifier.set_up(
            call.processors, call.sample, call.temperature, [row[:padding] for row, padding in rows]
        )
        jobs = [
            Job(tuple(row[padding:]), number, call.max_new_tokens, call.stop(number))
            for number, (row, padding) in enumerate(rows)
        ]
        try:
            executor = self._open(call.model)
            run = executor.run(jobs, seed=call.seed, eos_token_ids=eos_ids(call.config))
        except BaseException:
            self.close()  # its processes may have stopped anywhere
            raise
        return [result.token_ids for result in run.results]

    def close(self) -> None:
        """End its processes; the next call starts them again."""
        if self._executor is not None:
            self._executor.close()
            self._executor = None

    def __enter__(self) -> _ScheduledGeneration:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self, model: PreTrainedModel) -> Executor:
        if self._executor is None or not serves(self._executor.model, model):
            self.close()
            self._artifact.check(model)
            parts = self._artifact.new_parts(self._draft)._replace(verifier=self._verifier)
            self._executor = self._artifact.execution.open(self._artifact.runtime(model), parts)
        return self._executor


def _pad_token(config: GenerationConfig) -> int:
    tokens = eos_ids(config) if config.pad_token_id is None else [int(config.pad_token_id)]
    if not tokens:
        raise ValueError(
            "custom_generate of specexp: the rows end after different lengths and there is no pad_token_id: set it"
        )
    return tokens[0]
