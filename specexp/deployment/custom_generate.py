"""A tuned composition inside Hugging Face's own ``model.generate``.

From a finished study to generated text::

    import specexp
    from specexp.deployment.custom_generate import custom_generate
    pair = specexp.load_pair("stdlib")
    fast = custom_generate(specexp.load_artifact("artifacts/tree_shape/best"))
    ids = pair.tokenizer("def main(", return_tensors="pt").input_ids
    print(pair.tokenizer.decode(pair.target.generate(ids, custom_generate=fast, max_new_tokens=64)[0]))

``generate`` prepares its generation config, logits processors and stopping criteria as always; the loop is
ours. The output is that of plain ``generate``: the same tokens under greedy decoding, exact samples with
``do_sample=True``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from os import PathLike
from threading import Lock
from typing import Any, Protocol

import torch
from transformers import LogitsProcessorList, PreTrainedModel, StoppingCriteriaList
from transformers.generation import (
    BaseStreamer,
    EosTokenCriteria,
    GenerationConfig,
    GenerationMode,
    MaxLengthCriteria,
)

from specexp.config.artifacts import LoadedArtifact
from specexp.core.context import Context
from specexp.core.decode import Decoder, OutcomeObserver
from specexp.core.language_model import LanguageModel
from specexp.core.noise import gumbel
from specexp.core.outcome import Outcome
from specexp.core.parts import DeterministicVerifier, Parts, Verdict
from specexp.core.runtime import Runtime
from specexp.core.tree import TokenTree


class CustomGenerate(Protocol):
    """What ``model.generate(custom_generate=...)`` calls."""

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
        """Continue ``input_ids`` ``[1, p]``; returns ``[1, p + new]``."""
        ...


def custom_generate(
    artifact_or_parts: LoadedArtifact | Iterable[Any],
    seed: int | None = None,
    draft: PreTrainedModel | None = None,
) -> CustomGenerate:
    """The callable for ``model.generate(input_ids, custom_generate=...)``.

    A ``schedule`` takes several rows: a batch, padded on the left, or ``num_return_sequences``, decoded together by its
    execution strategy; every row then has copies of the processors for itself. Its callable has a ``close()``, and is a
    context manager, for the drafting processes it keeps; they end with the program at the latest.

    It respects the whole generation config (``max_new_tokens``, ``max_length``, ``eos_token_id``,
    ``do_sample``, ``temperature``, ``top_k``, ``top_p``, penalties, ``max_time``, given processors and
    stopping criteria; ``stop_strings`` as a ``StopStringCriteria``, for ``generate`` keeps the tokenizer from
    callables). The verifier of the artifact is replaced by what the generation config asks for. One KV cache
    serves all calls with one model, which take turns if they come from several threads. The output ends at the
    model's context, which plain ``generate`` oversteps with a warning.

    ``generate`` keeps ``streamer`` from callables too, so that it gets the prompt alone: give
    ``model.generate(..., token_streamer=TextStreamer(tokenizer))`` instead.

    Args:
        artifact_or_parts: an artifact, or drafter, builder and, optionally, verifier and controller.
        seed: for ``do_sample=True``; ``model.generate(..., seed=7)`` overrides it. Without one each call
            draws its seed from torch's generator, so ``torch.manual_seed`` repeats a run as it does for plain
            ``generate``.
        draft: the draft model, for a drafter that needs one.

    Raises:
        ValueError: a path is given, or the drafter needs a draft model and there is none.
        ValueError: when called, what cannot be done here: batches without a schedule, beams, contrastive search and
            other ways to generate, ``return_dict_in_generate``, padded or embedded prompts, positions or inputs of
            another kind, a filled cache, or a model the artifact does not belong to; one sentence each.

    Example:
        >>> model.generate(ids, custom_generate=custom_generate(artifact))  # doctest: +SKIP
    """
    artifact = artifact_or_parts if isinstance(artifact_or_parts, LoadedArtifact) else None
    if artifact is not None and artifact.execution_spec is not None:
        return _group_generation(artifact, seed, draft)
    if isinstance(artifact_or_parts, (str, PathLike)):
        raise ValueError(
            f"custom_generate of specexp: {str(artifact_or_parts)!r} is a path; pass specexp.load_artifact of it"
        )
    parts = Parts(*artifact_or_parts)
    if parts.drafter is not None:
        parts.drafter.use_draft_model(draft)
    default_seed = seed
    served: LanguageModel | None = None
    wrapping = Lock()  # of several threads' first calls one wraps the model

    def generate(
        model: PreTrainedModel,
        input_ids: torch.Tensor,  # [1, p]
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        seed: int | None = None,
        token_streamer: BaseStreamer | None = None,
        **model_kwargs: Any,
    ) -> torch.Tensor:
        nonlocal served
        refuse(input_ids, generation_config, model_kwargs)
        with wrapping:
            if served is None or not serves(served, model):
                if artifact is not None:
                    artifact.check(model)
                served = LanguageModel(model)
            target = served
        seed = drawn_seed(seed, default_seed, generation_config)
        verifier = ProcessedSampling(
            logits_processor,
            sample=bool(generation_config.do_sample),
            temperature=generation_config.temperature or 1.0,
        )
        decoder = Decoder(target, *parts._replace(verifier=verifier))
        if token_streamer is not None:
            token_streamer.put(input_ids.cpu())
        try:
            new_tokens = decoder.generate(
                input_ids,
                max_new_tokens=generation_config.max_length - input_ids.shape[1],
                eos_token_id=eos_ids(generation_config),
                seed=seed,
                observers=_observers(stopping_criteria, input_ids, token_streamer),
            ).token_ids
        except _Stopped as stopped:
            new_tokens = stopped.new_tokens
        if token_streamer is not None:
            token_streamer.end()
        return torch.cat(
            (input_ids, torch.tensor([new_tokens], dtype=torch.long, device=input_ids.device)), dim=1
        )

    return generate


class ProcessedSampling(DeterministicVerifier):
    """Greedy or keyed sampling of scores that any of Hugging Face's logits processors have changed.

    Every token of the output passes the processors once, in order, with the tokens before it, just as in
    plain ``generate``: so penalties on repetition and processors with a memory work. With temperature, top-k
    and top-p alone it is :class:`~specexp.verifiers.KeyedSampling`.

    Args:
        processors: applied in their order.
        sample: add the keyed noise; otherwise the highest score wins.
        temperature: among the processors, so that a coupled drafter can follow.
        before: padding before the prompt, which plain ``generate`` shows the processors too.
        row: which row of a batch it is; some processors hold something for each, so they are shown a whole batch.
        rows: of the batch.
    """

    def __init__(
        self,
        processors: LogitsProcessorList,
        *,
        sample: bool,
        temperature: float = 1.0,
        before: Sequence[int] = (),
        row: int = 0,
        rows: int = 1,
    ) -> None:
        self.processors = processors
        self.sample = sample
        self.temperature = temperature
        self.before = list(before)
        self.row = row
        self.rows = rows

    @property
    def noise_temperature(self) -> float:
        """The sampling temperature; 0 without sampling."""
        return self.temperature if self.sample else 0.0

    def target_token(self, context: Context, logits: torch.Tensor, position: int) -> int:
        """Of the position after the context's last token alone: processors may look at every token before.

        Raises:
            ValueError: of a later position.
        """
        if position != len(context):
            raise ValueError(
                f"position was {position}; processors know the tokens before {len(context)} alone"
            )
        return self._token(context, self._ids(context, logits), logits, position)

    def verify(self, context: Context, tree: TokenTree, logits: torch.Tensor) -> Verdict:
        """Walk down the tree along the tokens that plain decoding would choose."""
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
            if self.processors:
                ids = torch.cat((ids, ids.new_tensor([[token]])), dim=1)

    def _ids(self, context: Context, logits: torch.Tensor) -> torch.Tensor:
        """``[1, t]`` what the processors see; nothing where there are none."""
        known = [*self.before, *context.token_ids.tolist()] if self.processors else []
        return torch.tensor([known], device=logits.device)

    def _token(self, context: Context, ids: torch.Tensor, logits: torch.Tensor, position: int) -> int:
        shown = ids.repeat(self.rows, 1), logits.float().repeat(self.rows, 1)
        scores = self.processors(*shown)[self.row]  # [V]
        if self.sample:
            noise = gumbel(context.target_noise_key, position, scores.shape[0])
            return int((scores.cpu() + torch.from_numpy(noise)).argmax())
        return int(scores.argmax())


class _Stopped(Exception):  # noqa: N818 - a message to the caller, no error
    """A stopping criterion ended the output after these tokens."""

    def __init__(self, new_tokens: list[int]) -> None:
        super().__init__()
        self.new_tokens = new_tokens


def _observers(
    criteria: StoppingCriteriaList, input_ids: torch.Tensor, streamer: BaseStreamer | None
) -> list[OutcomeObserver]:
    """What shows the streamer each token and then asks the criteria; length and EOS are the decoder's own business."""
    others = StoppingCriteriaList(
        criterion
        for criterion in criteria
        if not isinstance(criterion, (MaxLengthCriteria, EosTokenCriteria))
    )

    def ask(outcome: Outcome) -> None:
        new_tokens = outcome.context.new_token_ids
        before = len(new_tokens) - len(outcome.new_token_ids)
        ids = torch.cat((input_ids, input_ids.new_tensor([new_tokens])), dim=1)
        for count in range(before + 1, len(new_tokens) + 1):
            if streamer is not None:
                streamer.put(torch.tensor(new_tokens[count - 1 : count]))
            if others and bool(others(ids[:, : input_ids.shape[1] + count], None).all()):
                raise _Stopped(new_tokens[:count])

    return [ask] if others or streamer is not None else []


def _group_generation(
    artifact: LoadedArtifact, seed: int | None, draft: PreTrainedModel | None
) -> CustomGenerate:
    from specexp.deployment.group_generation import GroupGeneration

    return GroupGeneration(artifact, seed, draft)


def drawn_seed(given: int | None, default: int | None, config: GenerationConfig) -> int:
    """The seed of a call: the one given, the default, or one that torch's generator draws where anything is sampled."""
    for seed in (given, default):
        if seed is not None:
            return seed
    return int(torch.randint(2**62, ()).item()) if config.do_sample else 0


def serves(served: Runtime, model: PreTrainedModel) -> bool:
    """Whether a wrapped model is this one, where and as it is now."""
    return served.model is model and served.device == model.device and served.dtype == model.dtype


def eos_ids(config: GenerationConfig) -> list[int]:
    """Tokens that end an output."""
    eos = config.eos_token_id
    return [] if eos is None else [int(token) for token in torch.as_tensor(eos).flatten()]


_MODES = (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE, GenerationMode.ASSISTED_GENERATION)
_ANSWERED = ("attention_mask", "inputs_embeds", "past_key_values", "position_ids")
_WITHOUT_EFFECT = ("use_cache", "logits_to_keep", "output_attentions", "output_hidden_states", "return_dict")


def refuse(
    input_ids: torch.Tensor,
    config: GenerationConfig,
    model_kwargs: dict[str, Any],
    padding: Sequence[int] = (0,),
) -> None:
    """Refuse a request that the loop cannot answer.

    Args:
        input_ids: ``[1, p]``; of a batch that can be answered, the first row.
        config: of the call.
        model_kwargs: what else the model would be given.
        padding: masked tokens before the prompt of every row.

    Raises:
        ValueError: one sentence that says what to do instead.
    """
    batch = input_ids.shape[0]
    cache, positions = model_kwargs.get("past_key_values"), model_kwargs.get("position_ids")
    others = [
        name
        for name, value in model_kwargs.items()
        if value is not None and name not in (*_ANSWERED, *_WITHOUT_EFFECT)
    ]
    mode, problem = config.get_generation_mode(), None
    if config.num_beams is not None and config.num_beams > 1:
        problem = f"num_beams={config.num_beams} is not supported: use num_beams=1"
    elif mode not in _MODES:
        problem = f"{mode.value.replace('_', ' ')} is not supported: use greedy search or sampling"
    elif batch != 1:
        problem = f"a batch of {batch} is not supported: give one prompt and num_return_sequences=1"
    elif config.return_dict_in_generate:
        problem = "return_dict_in_generate=True is not supported: the token ids alone are returned"
    elif input_ids.shape[1] == 0 or model_kwargs.get("inputs_embeds") is not None:
        problem = "a prompt of embeddings is not supported: give input_ids with at least one token"
    elif model_kwargs.get("attention_mask") is not None:
        problem = "a prompt with masked (padding) tokens is not supported: give it unpadded"
    elif cache is not None and cache.get_seq_length() > 0:
        problem = "past_key_values that already hold tokens are not supported: leave them out"
    elif positions is not None and not _counted(positions, padding):
        problem = "position_ids that do not count from 0 are not supported: leave them out"
    elif others:
        problem = f"{others[0]} is not supported: the model is given input_ids alone"
    if problem is not None:
        raise ValueError(f"custom_generate of specexp: {problem}")


def _counted(positions: torch.Tensor, padding: Sequence[int]) -> bool:
    """Whether positions ``[..., b or 1, p]`` count every row's tokens from 0."""
    counted = torch.arange(positions.shape[-1], device=positions.device)
    rows = positions.expand(*positions.shape[:-2], len(padding), -1)
    return all(
        bool((rows[..., number, pad:] == counted[: counted.numel() - pad]).all())
        for number, pad in enumerate(padding)
    )
