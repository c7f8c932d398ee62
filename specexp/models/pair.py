"""Load a target and its draft: the embedded pair by its name, or any two models by hub id or folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specexp.core.runtime import Runtime
from specexp.models.gguf import is_gguf, is_local
from specexp.models.hub import why_unreachable
from specexp.models.outline import outline, refusal, tokenizer_of, unfit
from specexp.models.runtime import runtime_of, set_mode
from specexp.models.sources import PairError, not_here, sources_of
from specexp.models.spread import check_spread, loading

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True)
class ModelPair:
    """A target, its draft if there is one, and the tokenizer they share; both models in evaluation mode.

    Attributes:
        mode: how both are run, as :func:`load_pair` takes it.
    """

    target: PreTrainedModel
    draft: PreTrainedModel | None
    tokenizer: PreTrainedTokenizerBase
    name: str
    mode: str = "auto"

    def target_runtime(self) -> Runtime:
        """The target at work, with an empty cache of its own.

        Raises:
            ValueError: it cannot be run in this mode.
        """
        return runtime_of(self.target, self.mode)

    def draft_runtime(self) -> Runtime | None:
        """The draft at work, of which every drafter takes a copy; None where there is no draft.

        Raises:
            ValueError: it cannot be run in this mode.
        """
        return None if self.draft is None else runtime_of(self.draft, self.mode)


def load_pair(
    target: str,
    draft: str | None = None,
    *,
    target_dtype: str = "bfloat16",
    draft_dtype: str = "float32",
    device: str = "cpu",
    device_map: str | Mapping[str, str | int] | None = None,
    offload_folder: str | None = None,
    attn_implementation: str = "sdpa",
    mode: str = "auto",
) -> ModelPair:
    """Load a model pair.

    Args:
        target: ``"stdlib"`` for the embedded pair, otherwise the target's hub id, folder or GGUF file, which llama.cpp
            runs (extra ``llama-cpp``).
        draft: the draft's hub id, folder or GGUF file. Without one the embedded pair has its own draft, other targets
            have none. Where both have the same tokenizer and vocabularies padded to different lengths, as Qwen2.5's
            are, the draft gets the target's, unless it is a GGUF file.
        target_dtype: the target's precision, ``bfloat16``, ``float16`` or ``float32``; that of the keys and values
            it keeps where it is a GGUF file, whose weights are as they were written.
        draft_dtype: the draft's precision, one of the same.
        device: a torch device, which holds both.
        device_map: where the target's modules stand instead, for one that no device alone holds: ``auto`` and the like,
            or a mapping of modules to devices, ``cpu`` or ``disk``, as transformers takes it. What waits on the CPU or
            the disk is moved for each pass. The draft stands on ``device``. Needs accelerate (extra ``offload``).
        offload_folder: where what is mapped to ``disk`` is written if it cannot be read from the model's own files.
        attn_implementation: the attention that ``transformers.PreTrainedModel.from_pretrained`` is asked for;
            llama.cpp takes it in one step unless it is ``eager``, or the precision float32.
        mode: how both are run, also where ``pair.target`` itself is given to a decoder: ``eager`` by their own code,
            ``compiled`` by passes compiled for this machine (models of the Llama family on a CPU), ``auto`` as an
            artifact's study ran the target, and else compiled where that can be; llama.cpp knows one alone.

    Raises:
        PairError: a model cannot be loaded, a dtype or mode is unknown, the device cannot be used, or the draft has
            another vocabulary than the target.

    Example:
        >>> load_pair("stdlib").target.config.vocab_size  # doctest: +SKIP
        4096
    """
    target, draft = _text("target", target), None if draft is None else _text("draft", draft)
    check_spread(target, device_map, offload_folder, mode)
    known = outline(target, draft, target_dtype, draft_dtype, device, attn_implementation, mode)
    (source, draft_source), (dtype, draft_type) = known.sources, known.dtypes
    target_model = known.target
    if not is_gguf(source):
        text = known.target.config.get_text_config()
        heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
        placed = loading(device_map, offload_folder, heads)
        target_model = _model("target", source, dtype, device, attn_implementation, known.offline, **placed)
    draft_model = known.draft
    if draft_source is not None and not is_gguf(draft_source):
        draft_model = _model("draft", draft_source, draft_type, device, attn_implementation, known.offline)
        _pad(draft_model, target_model.config.get_text_config().vocab_size)
    for model in (target_model, draft_model):
        if model is not None:
            set_mode(model, mode)
    return ModelPair(target_model, draft_model, known.tokenizer, target, mode)


def outline_pair(
    target: str,
    draft: str | None = None,
    *,
    target_dtype: str = "bfloat16",
    draft_dtype: str = "float32",
    device: str = "cpu",
    device_map: str | Mapping[str, str | int] | None = None,
    offload_folder: str | None = None,
    attn_implementation: str = "sdpa",
    mode: str = "auto",
) -> ModelPair:
    """A pair as :func:`load_pair` would load it, without its weights: its models stand on torch's meta device.

    Raises:
        PairError: as :func:`load_pair`, for whatever is known before the weights are read.
    """
    check_spread(target, device_map, offload_folder, mode)
    known = outline(target, draft, target_dtype, draft_dtype, device, attn_implementation, mode)
    if known.draft is not None and not isinstance(known.draft, Runtime):
        known.draft.config.get_text_config().vocab_size = known.target.config.get_text_config().vocab_size
    return ModelPair(
        known.target, known.draft, known.tokenizer, target, "eager"
    )  # no weights, so no compiled passes


def load_tokenizer(target: str) -> PreTrainedTokenizerBase:
    """Load a target's tokenizer alone.

    Args:
        target: a target as :func:`load_pair` takes it.

    Raises:
        PairError: it cannot be loaded.
    """
    source = sources_of(target)[0]
    return tokenizer_of("target", source, "" if is_local(source) else why_unreachable())


def _text(role: str, given: object) -> str:
    """A name or a path as text."""
    if not isinstance(given, (str, PathLike)):
        shown = " ".join(f"{given!r:.60}".split())  # a model prints itself over many lines
        raise PairError(role, f"{role} is {shown}; 'stdlib', a folder, a GGUF file or a hub id is expected")
    return str(given)


def _model(
    role: str,
    source: str,
    dtype: torch.dtype,
    device: str,
    attn_implementation: str,
    offline: str,
    **placed: Any,
) -> PreTrainedModel:
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM

    try:
        loaded: Any
        loaded, report = AutoModelForCausalLM.from_pretrained(
            source,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # named below
            dtype=dtype,
            attn_implementation=attn_implementation,
            trust_remote_code=False,
            use_safetensors=True,
            local_files_only=bool(offline),
            **placed,
        )
    except (OSError, ValueError, KeyError, ImportError, RuntimeError, SafetensorError) as error:
        if offline and isinstance(error, OSError) and not Path(source).is_dir():
            raise not_here(role, source, offline) from error
        raise refusal(role, source, attn_implementation, error) from error
    # transformers only warns, and makes them up
    made_up = {*report["missing_keys"], *(name for name, *_ in report["mismatched_keys"])}
    if made_up:
        raise unfit(role, source, made_up)
    if not placed:
        loaded = loaded.to(device)
    model: PreTrainedModel = loaded.eval()
    return model


def _pad(model: PreTrainedModel, width: int) -> None:
    """Give a model so many logits; those of new tokens, which no tokenizer has, are the mean of the others."""
    import torch

    known = model.config.get_text_config().vocab_size
    if known == width:
        return
    model.resize_token_embeddings(width, mean_resizing=False)
    head = model.get_output_embeddings()
    with torch.no_grad():
        for parameter in (head.weight, getattr(head, "bias", None)):
            if parameter is not None and known < width:
                parameter[known:] = parameter[:known].mean(dim=0)
