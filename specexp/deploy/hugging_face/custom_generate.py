"""Decodes with a tuned artifact inside Hugging Face's ``model.generate``.

From a finished study to generated text::

    import specexp
    from specexp.deploy.hugging_face.custom_generate import custom_generate
    pair = specexp.load_pair("stdlib")
    fast = custom_generate(specexp.load_artifact("artifacts/tree_shape/best"))
    ids = pair.tokenizer("def main():\\n", return_tensors="pt").input_ids
    print(pair.tokenizer.decode(pair.target.generate(ids, custom_generate=fast, max_new_tokens=64)[0]))

``generate`` prepares its generation config, logits processors and stopping criteria as usual, and then calls our
decoding loop. Greedy decoding returns the same tokens as plain ``generate``, and ``do_sample=True`` samples from the
same distribution.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from os import PathLike
from threading import Lock
from typing import Any

import torch
from transformers import LogitsProcessorList, PreTrainedModel, StoppingCriteriaList
from transformers.generation import (
    BaseStreamer,
    EosTokenCriteria,
    GenerationConfig,
    GenerationMixin,
    MaxLengthCriteria,
)

from specexp.config.artifacts import LoadedArtifact
from specexp.constraints.grammar import constraint_of
from specexp.core.outcome import Outcome
from specexp.core.parts import Parts, check_composition
from specexp.deploy.hugging_face.request import eos_ids, hidden_arguments, left_padding, problems_of, serves
from specexp.deploy.processed_sampling import ProcessedSampling
from specexp.models.runtime import runtime_of
from specexp.scheduling import Executor, Job, SerialSpeculative

# a private method, which another version may lack
_EXTRACT = getattr(getattr(GenerationMixin, "_extract_generation_mode_kwargs", None), "__code__", None)


class CustomGenerate(AbstractContextManager["CustomGenerate"]):
    """The callable for ``model.generate(custom_generate=...)``. Calls from different threads run one after another.

    If the artifact has an execution strategy, a call decodes a batch of rows, and the strategy's processes keep
    running until :meth:`close`. Otherwise, a call decodes a single row.
    """

    def __init__(self, artifact: LoadedArtifact | None, parts: Parts, draft: PreTrainedModel | None) -> None:
        self._scheduled = artifact is not None and artifact.execution_spec is not None
        if not self._scheduled:
            check_composition(*parts)
            if parts.drafter is not None:
                wrap = runtime_of if artifact is None else artifact.draft_runtime
                parts.drafter.use_draft_model(None if draft is None else wrap(draft))
        self._artifact = artifact
        self._parts = parts
        self._draft = draft
        self._verifier = ProcessedSampling()
        self._executor: Executor | None = None
        self._lock = Lock()

    def __call__(
        self,
        model: PreTrainedModel,
        input_ids: torch.Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        seed: int | None = None,
        tokenizer: Any = None,
        structured_outputs: Mapping[str, Any] | None = None,
        **model_kwargs: Any,
    ) -> torch.Tensor:
        """Continue each row of ``input_ids`` ``[b, p]``; return ``[b, p + new]``, padded on the right.

        ``generate`` itself uses the ``tokenizer``, for ``stop_strings`` and ``token_healing``. ``structured_outputs``
        is the form of the output (see :func:`~specexp.constraints.grammar.constraint_of`), such as
        ``{"json": schema}``, and needs the ``tokenizer``.
        """
        hidden, config = hidden_arguments(), generation_config
        mask = model_kwargs.pop("attention_mask", None) if self._scheduled else None
        padding = left_padding(input_ids, mask)
        checked = input_ids[:1] if self._scheduled else input_ids
        for problem in problems_of(checked, config, model_kwargs, hidden, padding, not self._scheduled):
            raise ValueError(f"custom_generate of specexp: {problem}")
        if seed is None:  # drawn from torch's generator, so that torch.manual_seed makes a run reproducible
            seed = int(torch.randint(2**62, ()).item()) if config.do_sample else 0
        rows = list(zip(input_ids.tolist(), padding, strict=True))
        limit = int(config.max_length) - input_ids.shape[1]
        constraint = None
        if structured_outputs is not None:
            if tokenizer is None or self._scheduled:
                why = "an artifact without a schedule" if self._scheduled else "tokenizer=..."
                raise ValueError(f"custom_generate of specexp: structured_outputs needs {why}")
            size = int(model.config.get_text_config().vocab_size)
            constraint = constraint_of(structured_outputs, tokenizer, size, frozenset(eos_ids(config)))
        stops = [_stop(stopping_criteria, input_ids, number) for number in range(len(rows))]
        jobs = [
            Job(tuple(row[masked:]), number, limit, stop, constraint=constraint)
            for number, ((row, masked), stop) in enumerate(zip(rows, stops, strict=True))
        ]
        with self._lock:
            temperature = (config.temperature or 1.0) if config.do_sample else 0.0
            self._verifier.set_up(logits_processor, temperature, [row[:masked] for row, masked in rows])
            new = self._run(model, jobs, seed, eos_ids(config), hidden["streamer"])
        longest = max(map(len, new))
        if any(len(row) < longest for row in new):
            new = [[*row, *[_pad_token(config)] * (longest - len(row))] for row in new]
        return torch.cat((input_ids, input_ids.new_tensor(new)), dim=1)

    @property
    def __signature__(self) -> inspect.Signature:
        """The signature of a call. When ``generate`` reads it, it has just dropped the tokenizer, which is put back."""
        frame = inspect.currentframe()
        while frame is not None and frame.f_code is not _EXTRACT:
            frame = frame.f_back
        dropped = {} if frame is None else frame.f_locals.get("generation_mode_kwargs", {})
        if frame is not None and (tokenizer := dropped.get("tokenizer")) is not None:
            frame.f_locals["kwargs"]["tokenizer"] = tokenizer
        return inspect.signature(self.__call__)

    def _run(
        self,
        model: PreTrainedModel,
        jobs: Sequence[Job],
        seed: int,
        eos: Sequence[int],
        streamer: BaseStreamer | None,
    ) -> list[list[int]]:
        def put(outcome: Outcome) -> None:
            assert streamer is not None
            for token in outcome.new_token_ids:  # streamers expect single tokens, as from plain generate
                streamer.put(torch.tensor([token]))

        try:
            executor = self._opened(model)
            with executor.model.exclusively():  # another callable may use the same model in another thread
                observers = [] if streamer is None else [put]
                run = executor.run(jobs, seed=seed, eos_token_ids=eos, observers=observers)
        except BaseException:
            self.close()  # the state of the processes is unknown after an error
            raise
        if streamer is not None:  # generate itself streams the prompt
            streamer.end()
        return [result.token_ids for result in run.results]

    def _opened(self, model: PreTrainedModel) -> Executor:
        """Return the executor for a model. It is kept between calls, with its KV cache and processes."""
        if self._executor is None or not serves(self._executor.model, model):
            self.close()
            artifact, parts = self._artifact, self._parts
            if artifact is not None:
                artifact.check(model)
            if artifact is not None and self._scheduled:
                parts = artifact.new_parts(self._draft)
            strategy = artifact.execution if artifact is not None and self._scheduled else SerialSpeculative()
            target = runtime_of(model) if artifact is None else artifact.runtime(model)
            self._executor = strategy.open(target, parts._replace(verifier=self._verifier))
        return self._executor

    def close(self) -> None:
        """Stop the processes of the execution strategy. The next call starts them again."""
        if self._executor is not None:
            self._executor.close()
            self._executor = None

    def __exit__(self, *_: object) -> None:
        self.close()


def custom_generate(
    artifact_or_parts: LoadedArtifact | Iterable[Any], draft: PreTrainedModel | None = None
) -> CustomGenerate:
    """Return the callable for ``model.generate(input_ids, custom_generate=...)``.

    The artifact's verifier is ignored: sampling and stopping follow the generation config and the given logits
    processors and stopping criteria. Target and draft run as in the artifact's study
    (:meth:`~specexp.config.artifacts.LoadedArtifact.runtime`), and all calls with one model share a KV cache. The
    output ends when the model's context is full. With ``do_sample=True``, a call without a seed
    (``model.generate(..., seed=7)``) draws one from torch's generator.

    An artifact with a ``schedule`` also accepts several rows: a left-padded batch, or ``num_return_sequences``.
    The callable then keeps processes until it is closed (by ``close()`` or a ``with`` statement) or the program ends.

    Args:
        artifact_or_parts: an artifact, or a drafter and a builder, optionally followed by a verifier and a controller.
        draft: the draft model, if the drafter needs one.

    Raises:
        ValueError: a path is given, or the drafter needs a draft model and none is given. Calling the result raises
            it for unsupported arguments (see :mod:`~specexp.deploy.hugging_face.request`).

    Example:
        >>> model.generate(ids, custom_generate=custom_generate(artifact))  # doctest: +SKIP
    """
    artifact = artifact_or_parts if isinstance(artifact_or_parts, LoadedArtifact) else None
    if isinstance(artifact_or_parts, (str, PathLike)):
        raise ValueError(
            "custom_generate of specexp: the artifact must be loaded, got the path "
            f"{str(artifact_or_parts)!r}; pass specexp.load_artifact(path)"
        )
    return CustomGenerate(artifact, Parts(*artifact_or_parts), draft)


def _stop(criteria: StoppingCriteriaList, input_ids: torch.Tensor, row: int) -> Callable[[Sequence[int]], bool] | None:
    """Return a function that checks a row's new tokens against all criteria but length and EOS (the loop's task)."""
    others = StoppingCriteriaList(one for one in criteria if not isinstance(one, (MaxLengthCriteria, EosTokenCriteria)))

    def stop(new_tokens: Sequence[int]) -> bool:
        ids = torch.cat((input_ids[row], input_ids.new_tensor(list(new_tokens))))
        return bool(others(ids.repeat(input_ids.shape[0], 1), None)[row])  # criteria may index the batch

    return stop if others else None


def _pad_token(config: GenerationConfig) -> int:
    tokens = eos_ids(config) if config.pad_token_id is None else [int(config.pad_token_id)]
    if not tokens:
        raise ValueError("custom_generate of specexp: pad_token_id must be set, since the rows have different lengths")
    return tokens[0]
