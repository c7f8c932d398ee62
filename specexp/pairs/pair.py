"""Load a target and its draft: the embedded pair by its name, or any two models by hub id or folder."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specexp.core.messages import first_line
from specexp.pairs.hub import why_unreachable
from specexp.pairs.runtime import check_mode, runtime_of

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from specexp.core.runtime import Runtime

PAIRS = Path(__file__).parent
_DTYPES = ("bfloat16", "float16", "float32")
_HUB_ID = re.compile(r"[\w-][\w.-]*(/[\w.-]+)?")


class PairError(ValueError):
    """A pair that cannot be loaded.

    Args:
        argument: the argument of :func:`load_pair` whose value is to blame.
        sentence: what is wrong with it.
    """

    def __init__(self, argument: str, sentence: str) -> None:
        super().__init__(sentence)
        self.argument = argument


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
    mode: str = "eager"

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
    attn_implementation: str = "sdpa",
    mode: str = "eager",
) -> ModelPair:
    """Load a model pair.

    Args:
        target: ``"stdlib"`` for the embedded pair, otherwise the target's hub id or folder.
        draft: the draft's hub id or folder. Without one the embedded pair has its own draft, other targets have none.
            Where both have the same tokenizer and vocabularies padded to different lengths, as Qwen2.5's are, the
            draft gets the target's.
        target_dtype: the target's precision, ``bfloat16``, ``float16`` or ``float32``.
        draft_dtype: the draft's precision, one of the same.
        device: a torch device, which holds both.
        attn_implementation: the attention that ``transformers.PreTrainedModel.from_pretrained`` is asked for.
        mode: how both are run: ``eager``, their own code as it is.

    Raises:
        PairError: a model cannot be loaded, a dtype or mode is unknown, the device cannot be used, or the draft has
            another vocabulary than the target.

    Example:
        >>> load_pair("stdlib").target.config.vocab_size  # doctest: +SKIP
        4096
    """
    target_source, draft_source = sources_of(target, draft)
    _check_source("target", target_source)
    if draft_source is not None:
        _check_source("draft", draft_source)
    target_type, draft_type = _dtype("target_dtype", target_dtype), _dtype("draft_dtype", draft_dtype)
    _check_device(device)
    try:
        check_mode(mode)
    except ValueError as error:
        raise PairError("mode", str(error)) from error
    sources = [source for source in (target_source, draft_source) if source is not None]
    offline = "" if all(Path(source).is_dir() for source in sources) else why_unreachable()
    tokenizer = _tokenizer("target", target_source, offline)
    target_model = _model("target", target_source, target_type, device, attn_implementation, offline)
    draft_model = None
    if draft_source is not None:
        _check_vocabulary(tokenizer, target_source, _tokenizer("draft", draft_source, offline), draft_source)
        draft_model = _model("draft", draft_source, draft_type, device, attn_implementation, offline)
        widths = [model.config.get_text_config().vocab_size for model in (target_model, draft_model)]
        if min(widths) < len(tokenizer) and widths[0] != widths[1]:
            raise PairError(
                "draft",
                f"draft {draft_source!r} gives {widths[1]} logits, but target {target_source!r} gives "
                f"{widths[0]}; where they differ, both need one for each of the tokenizer's {len(tokenizer)} tokens",
            )
        _pad(draft_model, widths[0])
    return ModelPair(target_model, draft_model, tokenizer, target, mode)


def load_tokenizer(target: str) -> PreTrainedTokenizerBase:
    """Load a target's tokenizer alone.

    Args:
        target: a target as :func:`load_pair` takes it.

    Raises:
        PairError: it cannot be loaded.
    """
    source = sources_of(target)[0]
    return _tokenizer("target", source, "" if Path(source).is_dir() else why_unreachable())


def sources_of(target: str, draft: str | None = None) -> tuple[str, str | None]:
    """Hub ids or folders of target and draft, the embedded pair's by its name; None where there is no draft.

    Args:
        target: a target as :func:`load_pair` takes it.
        draft: a draft as :func:`load_pair` takes it.

    Example:
        >>> sources_of("my/target")
        ('my/target', None)
    """
    embedded = PAIRS / target
    if re.fullmatch(r"\w+", target) is None or not (embedded / "target").is_dir():
        return target, draft
    return str(embedded / "target"), str(embedded / "draft") if draft is None else draft


def _check_source(role: str, source: str) -> None:
    """Refuse what is neither a folder with a model nor looks like a hub id."""
    if Path(source).is_dir():
        if not (Path(source) / "config.json").is_file():
            raise PairError(
                role,
                f"{role} {source!r} is a folder without config.json; a saved Hugging Face model is expected",
            )
    elif not _HUB_ID.fullmatch(source):
        raise PairError(
            role,
            f"{role} {source!r} is no existing folder; expected 'stdlib', a folder or a hub id (owner/name)",
        )


def _dtype(key: str, name: str) -> torch.dtype:
    import torch

    if name not in _DTYPES:
        raise PairError(key, f"{key} is {name!r}; allowed are {', '.join(_DTYPES)}")
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def _check_device(device: str) -> None:
    import torch

    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:  # torch without CUDA asserts
        raise PairError("device", f"device {device!r} cannot be used here: {first_line(error)}") from error


def _not_here(role: str, source: str, offline: str) -> PairError:
    from huggingface_hub import constants

    return PairError(
        role,
        f"{role} {source!r} is no local folder and is not whole in the cache ({constants.HF_HUB_CACHE}), and the hub "
        f"cannot be asked for it ({offline}): name a local folder or 'stdlib', or load it once with a network",
    )


def _tokenizer(role: str, source: str, offline: str) -> PreTrainedTokenizerBase:
    from transformers import AutoTokenizer

    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            source, trust_remote_code=False, local_files_only=bool(offline)
        )
    except (OSError, ValueError, KeyError) as error:
        if offline and not Path(source).is_dir():
            raise _not_here(role, source, offline) from error
        raise PairError(
            role, f"{role} {source!r} has no tokenizer that could be loaded: {first_line(error)}"
        ) from error
    return tokenizer


def _model(
    role: str, source: str, dtype: torch.dtype, device: str, attn_implementation: str, offline: str
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
        )
    except (OSError, ValueError, KeyError, ImportError, RuntimeError, SafetensorError) as error:
        if offline and isinstance(error, OSError) and not Path(source).is_dir():
            raise _not_here(role, source, offline) from error
        if (
            'attn_implementation="eager"' in str(error) and attn_implementation != "eager"
        ):  # as transformers advises
            raise PairError(
                "attn_implementation",
                f"{role} {source!r} does not support attn_implementation {attn_implementation!r}; set it to 'eager'",
            ) from error
        raise PairError(
            role, f"{role} {source!r} could not be loaded as a causal model: {first_line(error)}"
        ) from error
    # transformers only warns, and makes them up
    made_up = sorted({*report["missing_keys"], *(name for name, *_ in report["mismatched_keys"])})
    if made_up:
        raise PairError(
            role,
            f"{role} {source!r} has no weights that fit {len(made_up)} tensors of the model of its config.json, as "
            f"{made_up[0]!r}",
        )
    model: PreTrainedModel = loaded.to(device).eval()
    return model


def _check_vocabulary(
    tokenizer: PreTrainedTokenizerBase,
    source: str,
    draft_tokenizer: PreTrainedTokenizerBase,
    draft_source: str,
) -> None:
    wanted, given = tokenizer.get_vocab(), draft_tokenizer.get_vocab()
    if wanted != given:
        different = len(set(wanted.items()) ^ set(given.items()))
        raise PairError(
            "draft",
            f"draft {draft_source!r} has another vocabulary ({len(given)} tokens) than target {source!r} "
            f"({len(wanted)} tokens; {different} entries differ); a draft must have the target's tokenizer",
        )


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
