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

from collections.abc import Iterable
from os import PathLike
from threading import Lock
from typing import Any, Protocol

import torch
from transformers import LogitsProcessorList, PreTrainedModel, StoppingCriteriaList
from transformers.generation import BaseStreamer, EosTokenCriteria, GenerationConfig, MaxLengthCriteria

from specexp.config.artifacts import LoadedArtifact
from specexp.core.loop import Decoder, OutcomeObserver
from specexp.core.outcome import Outcome
from specexp.core.parts import Parts, check_composition
from specexp.core.runtime import Runtime
from specexp.deploy.hugging_face.group_generation import GroupGeneration
from specexp.deploy.hugging_face.processed_sampling import ProcessedSampling
from specexp.deploy.hugging_face.request import drawn_seed, eos_ids, kept_back, refuse, serves
from specexp.models.runtime import runtime_of


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

    Target and draft run as the artifact's study ran them, see :meth:`~specexp.config.artifacts.LoadedArtifact.runtime`;
    with parts alone, in the mode that they were loaded in.

    It respects the whole generation config (``max_new_tokens``, ``max_length``, ``eos_token_id``,
    ``do_sample``, ``temperature``, ``top_k``, ``top_p``, penalties, ``max_time``, given processors and
    stopping criteria; ``stop_strings`` as a ``StopStringCriteria``, for ``generate`` keeps the tokenizer from
    callables); a field that plain ``generate`` would follow and nothing here does is refused in a sentence. The
    verifier of the artifact is replaced by what the generation config asks for. One KV cache serves all calls
    with one model, which take turns if they come from several threads. The output ends at the model's context,
    which plain ``generate`` oversteps with a warning.

    ``streamer`` is shown every token, and an ``assistant_model`` refused, though ``generate`` keeps both from
    callables: they are read off the frame that calls. A ``tokenizer`` it drops before that.

    Args:
        artifact_or_parts: an artifact, or drafter, builder and, optionally, verifier and controller.
        seed: for ``do_sample=True``; ``model.generate(..., seed=7)`` overrides it. Without one each call
            draws its seed from torch's generator, so ``torch.manual_seed`` repeats a run as it does for plain
            ``generate``.
        draft: the draft model, for a drafter that needs one.

    Raises:
        ValueError: a path is given, or the drafter needs a draft model and there is none.
        ValueError: when called, what cannot be done here: batches without a schedule, beams, contrastive search and
            other ways to generate, another cache, ``return_dict_in_generate``, padded or embedded prompts, positions or
            inputs of another kind, a filled cache, or a model the artifact does not belong to; one sentence each.
            :mod:`~specexp.deploy.hugging_face.request` lists the fields.

    Example:
        >>> model.generate(ids, custom_generate=custom_generate(artifact))  # doctest: +SKIP
    """
    artifact = artifact_or_parts if isinstance(artifact_or_parts, LoadedArtifact) else None
    if artifact is not None and artifact.execution_spec is not None:
        return GroupGeneration(artifact, seed, draft)
    if isinstance(artifact_or_parts, (str, PathLike)):
        raise ValueError(
            f"custom_generate of specexp: {str(artifact_or_parts)!r} is a path; pass specexp.load_artifact of it"
        )
    if not isinstance(artifact_or_parts, Iterable):
        raise ValueError(
            f"custom_generate of specexp: a {type(artifact_or_parts).__name__} is given; pass what "
            "specexp.load_artifact gave, or drafter and builder"
        )
    parts = Parts(*artifact_or_parts)
    check_composition(*parts)
    if parts.drafter is not None:
        wrapped = runtime_of if artifact is None else artifact.draft_runtime
        parts.drafter.use_draft_model(None if draft is None else wrapped(draft))
    default_seed = seed
    served: Runtime | None = None
    wrapping = Lock()  # of several threads' first calls one wraps the model

    def generate(
        model: PreTrainedModel,
        input_ids: torch.Tensor,  # [1, p]
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        seed: int | None = None,
        **model_kwargs: Any,
    ) -> torch.Tensor:
        nonlocal served
        kept = kept_back()
        streamer: BaseStreamer | None = kept.get("streamer")  # generate has shown it the prompt
        refuse(input_ids, generation_config, model_kwargs, kept)
        with wrapping:
            if served is None or not serves(served, model):
                if artifact is None:
                    served = runtime_of(model)
                else:
                    artifact.check(model)
                    served = artifact.runtime(model)
            target = served
        seed = drawn_seed(seed, default_seed, generation_config)
        verifier = ProcessedSampling(
            logits_processor,
            sample=bool(generation_config.do_sample),
            temperature=generation_config.temperature or 1.0,
        )
        decoder = Decoder(target, *parts._replace(verifier=verifier))
        try:
            new_tokens = decoder.generate(
                input_ids,
                max_new_tokens=generation_config.max_length - input_ids.shape[1],
                eos_token_id=eos_ids(generation_config),
                seed=seed,
                observers=_observers(stopping_criteria, input_ids, streamer),
            ).token_ids
        except _Stopped as stopped:
            new_tokens = stopped.new_tokens
        if streamer is not None:
            streamer.end()
        return torch.cat(
            (input_ids, torch.tensor([new_tokens], dtype=torch.long, device=input_ids.device)), dim=1
        )

    return generate


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
