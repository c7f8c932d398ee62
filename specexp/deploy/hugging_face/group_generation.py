"""Several prompts, or continuations of one, inside Hugging Face's own ``model.generate``, by an execution strategy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from threading import Lock
from typing import TYPE_CHECKING, Any

import torch
from transformers.generation import EosTokenCriteria, MaxLengthCriteria, StoppingCriteriaList

from specexp.core.context import Context, PerSequence
from specexp.deploy.hugging_face.processed_sampling import ProcessedSampling
from specexp.deploy.hugging_face.request import drawn_seed, eos_ids, kept_back, refuse, serves
from specexp.scheduling import Job

if TYPE_CHECKING:
    from transformers import LogitsProcessorList, PreTrainedModel
    from transformers.generation import GenerationConfig

    from specexp.config.artifacts import LoadedArtifact
    from specexp.core.dialogue import Verdict
    from specexp.scheduling import Executor


class GroupGeneration:
    """The callable for ``model.generate(custom_generate=...)`` with a ``schedule``: every row is a sequence of one run.

    The rows of a batch may be padded on the left. Processes of the strategy are kept from call to call, until
    :meth:`close` or the end of a ``with`` statement. For the arguments see
    :func:`~specexp.deploy.hugging_face.custom_generate.custom_generate`.
    """

    def __init__(
        self, artifact: LoadedArtifact, seed: int | None = None, draft: PreTrainedModel | None = None
    ) -> None:
        self.artifact = artifact
        self.seed = seed
        self.draft = draft
        self._verifier = _RowSampling()
        self._executor: Executor | None = None
        self._lock = Lock()  # calls from several threads take turns

    def __call__(
        self,
        model: PreTrainedModel,
        input_ids: torch.Tensor,  # [b, p]
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        seed: int | None = None,
        **model_kwargs: Any,
    ) -> torch.Tensor:
        """Continue every row of ``input_ids`` ``[b, p]``; returns ``[b, p + new]``, padded on the right."""
        with self._lock:
            padding = _padding(input_ids, model_kwargs.get("attention_mask"))
            kept = kept_back()
            if kept.get("streamer") is not None:
                raise ValueError(
                    "custom_generate of specexp: streamer is not supported for a schedule, whose rows end in any "
                    "order: leave it out, or give custom_generate the parts alone"
                )
            refuse(input_ids[:1], generation_config, {**model_kwargs, "attention_mask": None}, kept, padding)
            rows = input_ids.tolist()
            self._verifier.ask(
                logits_processor,
                generation_config,
                [row[:pad] for row, pad in zip(rows, padding, strict=True)],
            )
            jobs = [
                Job(
                    tuple(row[pad:]),
                    number,
                    generation_config.max_length - len(row),
                    _stop(stopping_criteria, input_ids, number),
                )
                for number, (row, pad) in enumerate(zip(rows, padding, strict=True))
            ]
            try:
                run = self._opened(model).run(
                    jobs,
                    seed=drawn_seed(seed, self.seed, generation_config),
                    eos_token_ids=eos_ids(generation_config),
                )
            except BaseException:
                self.close()  # the next call starts anew
                raise
            answers = [result.token_ids for result in run.results]
            longest = max(map(len, answers))
            pad_token = (
                _pad_token(generation_config) if any(len(answer) < longest for answer in answers) else 0
            )
            new = [answer + [pad_token] * (longest - len(answer)) for answer in answers]
            return torch.cat((input_ids, input_ids.new_tensor(new)), dim=1)

    def close(self) -> None:
        """Stop what was started; the next call starts it again."""
        if self._executor is not None:
            self._executor.close()
            self._executor = None

    def __enter__(self) -> GroupGeneration:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _opened(self, model: PreTrainedModel) -> Executor:
        if self._executor is None or not serves(self._executor.model, model):
            self.close()
            self.artifact.check(model)
            parts = self.artifact.new_parts(self.draft)._replace(verifier=self._verifier)
            self._executor = self.artifact.execution.open(self.artifact.runtime(model), parts)
        return self._executor


class _RowSampling(ProcessedSampling):
    """What a generation config asks for, row by row: each has processors of its own, since some have a memory."""

    def __init__(self) -> None:
        from transformers import LogitsProcessorList

        super().__init__(LogitsProcessorList(), sample=False)

    def ask(
        self, processors: LogitsProcessorList, config: GenerationConfig, padding: Sequence[Sequence[int]]
    ) -> None:
        """What the next run is to do; ``padding`` is what stands before each row's prompt."""
        self.processors = processors
        self.sample = bool(config.do_sample)
        self.temperature = config.temperature or 1.0
        self._padding = padding
        self._rows: PerSequence[ProcessedSampling] = PerSequence()

    def verify(self, context: Context, tree: Any, logits: torch.Tensor) -> Verdict:
        """By the row's own processors."""
        if context not in self._rows:
            row = int(context.sequence)
            self._rows[context] = ProcessedSampling(
                deepcopy(self.processors),
                sample=self.sample,
                temperature=self.temperature,
                before=self._padding[row],
                row=row,
                rows=len(self._padding),
            )
        return self._rows[context].verify(context, tree, logits)


def _padding(input_ids: torch.Tensor, mask: torch.Tensor | None) -> list[int]:
    """Masked tokens before the prompt of every row."""
    if mask is None:
        return [0] * input_ids.shape[0]
    seen = mask.long()  # [b, p]
    padding: list[int] = (seen.shape[1] - seen.sum(1)).tolist()
    if not torch.equal(seen, seen.sort(dim=1).values) or seen.shape[1] in padding:
        raise ValueError(
            "custom_generate of specexp: the prompts hold masked tokens elsewhere than on their left: pad them there"
        )
    return padding


def _stop(
    criteria: StoppingCriteriaList, input_ids: torch.Tensor, number: int
) -> Callable[[Sequence[int]], bool] | None:
    """Whether the criteria, but those of length and EOS, end a row after these new tokens."""
    others = StoppingCriteriaList(
        one for one in criteria if not isinstance(one, (MaxLengthCriteria, EosTokenCriteria))
    )
    if not others:
        return None
    rows = input_ids.shape[0]

    def stop(new: Sequence[int]) -> bool:
        row = torch.cat((input_ids[number], input_ids.new_tensor(list(new))))
        return bool(others(row.repeat(rows, 1), None)[number])

    return stop


def _pad_token(config: GenerationConfig) -> int:
    if config.pad_token_id is not None:
        return int(config.pad_token_id)
    eos = eos_ids(config)
    if not eos:
        raise ValueError(
            "custom_generate of specexp: the rows end after different lengths and there is no pad_token_id: set it"
        )
    return eos[0]
