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

from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from os import PathLike
from threading import Lock
from typing import Any

import torch
from transformers import LogitsProcessorList, PreTrainedModel, StoppingCriteriaList
from transformers.generation import BaseStreamer, EosTokenCriteria, GenerationConfig, MaxLengthCriteria
from typing_extensions import override

from specexp.config.artifacts import LoadedArtifact
from specexp.core.context import Context, PerSequence
from specexp.core.contracts import DeterministicVerifier
from specexp.core.dialogue import Verdict
from specexp.core.outcome import Outcome
from specexp.core.parts import Parts, check_composition
from specexp.core.tree import TokenTree
from specexp.deploy.hugging_face.request import check_request, eos_ids, hidden_arguments, left_padding, serves
from specexp.models.runtime import runtime_of
from specexp.scheduling import Executor, Job, SerialSpeculative


class CustomGenerate:
    """The callable for ``model.generate(custom_generate=...)``. Calls from several threads take turns.

    The rows of a batch are sequences of one run of the artifact's execution strategy. Its processes are kept until
    :meth:`close`. Without a strategy, and for parts, a call has one row.
    """

    def __init__(
        self, artifact: LoadedArtifact | None, parts: Parts, seed: int | None, draft: PreTrainedModel | None
    ) -> None:
        self.seed = seed
        self._scheduled = artifact is not None and artifact.execution_spec is not None
        if not self._scheduled:
            check_composition(*parts)
            if parts.drafter is not None:
                wrap = runtime_of if artifact is None else artifact.draft_runtime
                parts.drafter.use_draft_model(None if draft is None else wrap(draft))
        self._artifact, self._parts, self._draft = artifact, parts, draft
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
        **model_kwargs: Any,
    ) -> torch.Tensor:
        """Continue every row of ``input_ids`` ``[b, p]``; returns ``[b, p + new]``, padded on the right."""
        hidden, config = hidden_arguments(), generation_config
        mask = model_kwargs.pop("attention_mask", None) if self._scheduled else None
        padding = left_padding(input_ids, mask)
        checked = input_ids[:1] if self._scheduled else input_ids
        check_request(checked, config, model_kwargs, hidden, padding, streams=not self._scheduled)
        seed = self.seed if seed is None else seed
        if seed is None:  # torch.manual_seed then repeats a run, as it does for plain generate
            seed = int(torch.randint(2**62, ()).item()) if config.do_sample else 0
        rows = list(zip(input_ids.tolist(), padding, strict=True))
        limit = int(config.max_length) - input_ids.shape[1]
        jobs = [
            Job(tuple(row[masked:]), number, limit, _stop(stopping_criteria, input_ids, number))
            for number, (row, masked) in enumerate(rows)
        ]
        with self._lock:
            self._verifier.set_up(logits_processor, config, [row[:masked] for row, masked in rows])
            new = self._run(model, jobs, seed, eos_ids(config), hidden["streamer"])
        longest = max(map(len, new))
        if any(len(row) < longest for row in new):
            new = [[*row, *[_pad_token(config)] * (longest - len(row))] for row in new]
        return torch.cat((input_ids, input_ids.new_tensor(new)), dim=1)

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
            for token in outcome.new_token_ids:  # one by one, as plain generate does
                streamer.put(torch.tensor([token]))

        try:
            executor = self._opened(model)
            with executor.model.exclusively():  # another callable may have the same model
                observers = [] if streamer is None else [put]
                run = executor.run(jobs, seed=seed, eos_token_ids=eos, observers=observers)
        except BaseException:
            self.close()  # its processes may have stopped anywhere
            raise
        if streamer is not None:  # generate has already put the prompt
            streamer.end()
        return [result.token_ids for result in run.results]

    def _opened(self, model: PreTrainedModel) -> Executor:
        """Return the executor for a model, kept from call to call with its KV cache and processes."""
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
        """End the processes of a schedule; the next call starts them again."""
        if self._executor is not None:
            self._executor.close()
            self._executor = None

    def __enter__(self) -> CustomGenerate:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


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
    if isinstance(artifact_or_parts, (str, PathLike)):
        raise ValueError(
            f"custom_generate of specexp: {str(artifact_or_parts)!r} is a path; pass specexp.load_artifact of it"
        )
    return CustomGenerate(artifact, Parts(*artifact_or_parts), seed, draft)


class ProcessedSampling(DeterministicVerifier):
    """Greedy or keyed sampling of scores that Hugging Face's logits processors have changed.

    Every token of the output passes the processors once, in order, with the tokens before it, as in plain ``generate``:
    so penalties on repetition and processors with a memory work. With temperature, top-k and top-p alone it is
    :class:`~specexp.verifiers.KeyedSampling`.
    """

    noise_temperature = 0.0

    def set_up(
        self, processors: LogitsProcessorList, config: GenerationConfig, padding: Sequence[Sequence[int]]
    ) -> None:
        """Prepare for the next batch; ``padding`` holds the masked tokens before each row's prompt."""
        self._sample = bool(config.do_sample)
        self.noise_temperature = (
            (config.temperature or 1.0) if self._sample else 0.0
        )  # coupled drafters follow it
        self._processors = processors
        self._padding = padding
        self._by_row: PerSequence[LogitsProcessorList] = PerSequence()

    @override
    def target_token(self, context: Context, logits: torch.Tensor, position: int) -> int:
        if position != len(context):
            raise ValueError(
                f"position must be {len(context)}, since processors need every token before it, got {position}"
            )
        return self._token(context, self._ids(context, logits), logits, position)

    @override
    def verify(self, context: Context, tree: TokenTree, logits: torch.Tensor) -> Verdict:
        ids = self._ids(context, logits)
        accepted: list[int] = []
        row = 0
        while True:
            token = self._token(context, ids, logits[row], len(context) + len(accepted))
            child = tree.child_with_token(row, token)
            if child is None:
                return Verdict(tuple(accepted), token)
            accepted.append(child)
            row = child
            if self._processors:
                ids = torch.cat((ids, ids.new_tensor([[token]])), dim=1)

    def _ids(self, context: Context, logits: torch.Tensor) -> torch.Tensor:
        """``[1, t]`` tokens for the processors, with padding as in plain ``generate``; ``[1, 0]`` without any."""
        padding = self._padding[int(context.sequence)]
        known = [*padding, *context.token_ids.tolist()] if self._processors else []
        return torch.tensor([known], device=logits.device)

    def _token(self, context: Context, ids: torch.Tensor, logits: torch.Tensor, position: int) -> int:
        rows, number = len(self._padding), int(context.sequence)
        if context not in self._by_row:  # some have a memory, so every row of a batch has its own
            self._by_row[context] = deepcopy(self._processors) if rows > 1 else self._processors
        # some have an entry for each row of the batch
        scores = self._by_row[context](ids.repeat(rows, 1), logits.float().repeat(rows, 1))[number]  # [V]
        if self._sample:
            scores = scores + context.target_noise(position, 1, scores.shape[0], scores.device)[0]
        return int(scores.argmax())


def _stop(
    criteria: StoppingCriteriaList, input_ids: torch.Tensor, row: int
) -> Callable[[Sequence[int]], bool] | None:
    """Return whether a row ends with its new tokens, by all criteria but length and EOS, which are the loop's."""
    others = StoppingCriteriaList(
        one for one in criteria if not isinstance(one, (MaxLengthCriteria, EosTokenCriteria))
    )

    def stop(new_tokens: Sequence[int]) -> bool:
        ids = torch.cat((input_ids[row], input_ids.new_tensor(list(new_tokens))))
        return bool(others(ids.repeat(input_ids.shape[0], 1), None)[row])  # criteria may index the batch

    return stop if others else None


def _pad_token(config: GenerationConfig) -> int:
    tokens = eos_ids(config) if config.pad_token_id is None else [int(config.pad_token_id)]
    if not tokens:
        raise ValueError(
            "custom_generate of specexp: the rows end after different lengths and there is no pad_token_id: set it"
        )
    return tokens[0]
