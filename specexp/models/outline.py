"""A pair as its files describe it: everything about it that can be checked before its weights are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from specexp.core.messages import first_line
from specexp.models.gguf import gguf_model, gguf_tokenizer, is_gguf, is_local
from specexp.models.hub import why_unreachable
from specexp.models.runtime import check_mode
from specexp.models.sources import PairError, check_source, not_here, sources_of, weights_of

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

_COUNTS = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings")
"""What a model has one of at least."""
_DTYPES = ("bfloat16", "float16", "float32")


@dataclass(frozen=True)
class Outline:
    """A pair without its weights.

    Attributes:
        sources: hub ids or folders of target and draft; None where there is no draft.
        dtypes: their precisions.
        offline: why the hub cannot be asked; empty where it can, or need not be.
        tokenizer: the target's.
        target: the target on torch's meta device, where tensors have shapes and no values; a GGUF file is loaded,
            which maps it.
        draft: the draft there; None where there is none.
    """

    sources: tuple[str, str | None]
    dtypes: tuple[torch.dtype, torch.dtype]
    offline: str
    tokenizer: PreTrainedTokenizerBase
    target: PreTrainedModel
    draft: PreTrainedModel | None


def outline(
    target: str,
    draft: str | None,
    target_dtype: str,
    draft_dtype: str,
    device: str,
    attn_implementation: str,
    mode: str,
) -> Outline:
    """Look at a pair's files; the arguments are :func:`~specexp.models.pair.load_pair`'s.

    Raises:
        PairError: a file is missing or cut short, a model is none that takes tree passes, the vocabularies differ, or a
            dtype, mode or device cannot be used.
    """
    sources = target_source, draft_source = sources_of(target, draft)
    check_source("target", target_source)
    if draft_source is not None:
        check_source("draft", draft_source)
    _check_mode(mode)
    dtypes = _dtype("target_dtype", target_dtype), _dtype("draft_dtype", draft_dtype)
    _check_device(device)
    offline = "" if all(source is None or is_local(source) for source in sources) else why_unreachable()
    target_model = _opened("target", target_source, dtypes[0], device, attn_implementation, offline)
    tokenizer = tokenizer_of("target", target_source, offline)
    width = target_model.config.get_text_config().vocab_size
    if _tokens(tokenizer) > width:
        raise PairError(
            "target",
            f"target {target_source!r} gives {width} logits, and its tokenizer has {_tokens(tokenizer)} tokens: take "
            "the tokenizer that belongs to it, or resize the model's embeddings and save it again",
        )
    _check_eos(target_source, target_model, width)
    draft_model = None
    if draft_source is not None:
        draft_model = _opened("draft", draft_source, dtypes[1], device, attn_implementation, offline)
        _check_vocabulary(
            tokenizer, target_source, tokenizer_of("draft", draft_source, offline), draft_source
        )
        drafted = draft_model.config.get_text_config().vocab_size
        if (drafted < _tokens(tokenizer) or is_gguf(draft_source)) and drafted != width:
            raise PairError(
                "draft",
                f"draft {draft_source!r} gives {drafted} logits, but target {target_source!r} gives {width}; where "
                f"they differ, both need one for each of the tokenizer's {_tokens(tokenizer)} tokens, and the draft "
                "cannot be a GGUF file",
            )
    models = [model for model in (target_model, draft_model) if model is not None]
    _check_mode(mode, models, device)
    return Outline(sources, dtypes, offline, tokenizer, target_model, draft_model)


def _check_eos(source: str, model: PreTrainedModel, width: int) -> None:
    """Refuse ends of an output that no token has: they would never come."""
    from transformers import GenerationConfig

    config = getattr(model, "generation_config", None)  # which a GGUF file's has not
    if (Path(source) / "generation_config.json").is_file():
        try:
            config = GenerationConfig.from_pretrained(source)
        except Exception as error:  # of any value that it should not have
            raise PairError(
                "target", f"target {source!r}: its generation_config.json cannot be read: {first_line(error)}"
            ) from error
    given = getattr(config, "eos_token_id", None)
    for token in given if isinstance(given, list) else [] if given is None else [given]:
        if not isinstance(token, int) or not 0 <= token < width:
            raise PairError(
                "target",
                f"target {source!r}: its configuration says eos_token_id: {token!r}; ids 0 to {width - 1} are there",
            )


def _check_mode(mode: str, models: Sequence[PreTrainedModel] = (), device: str = "cpu") -> None:
    try:
        check_mode(mode, models, device)
    except ValueError as error:
        raise PairError("mode", str(error)) from error


def tokenizer_of(role: str, source: str, offline: str) -> PreTrainedTokenizerBase:
    """The tokenizer of a hub id or folder.

    Args:
        role: ``target`` or ``draft``, for errors.
        source: hub id or folder.
        offline: why the hub cannot be asked; empty where it can, or need not be.

    Raises:
        PairError: it cannot be loaded.
    """
    from transformers import AutoTokenizer

    if is_gguf(source):
        try:
            return gguf_tokenizer(source)
        except ValueError as error:
            raise PairError(role, f"{role} {error}") from error
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            source, trust_remote_code=False, local_files_only=bool(offline)
        )
    except Exception as error:  # of the tokenizers library, which raises bare ones of any file
        if offline and not Path(source).is_dir():
            raise not_here(role, source, offline) from error
        why = first_line(error)
        if isinstance(error, KeyError):
            why = f"its files hold no {why}"
        elif why.endswith(":"):  # a list follows that no first line holds
            why = "its files are not whole"
        raise PairError(role, f"{role} {source!r} has no tokenizer that could be loaded: {why}") from error
    return tokenizer


def refusal(role: str, source: str, attn_implementation: str, error: Exception) -> PairError:
    """Why a model cannot be made, of what transformers raised."""
    if (
        'attn_implementation="eager"' in str(error) and attn_implementation != "eager"
    ):  # as transformers advises
        return PairError(
            role,
            f"{role} {source!r} does not support attn_implementation {attn_implementation!r}; set attn_implementation "
            "to 'eager'",
        )
    why = first_line(error)
    if isinstance(error, KeyError):  # of a table of names
        why = f"its config.json says {why}, which transformers does not know"
    return PairError(role, f"{role} {source!r} could not be loaded as a causal model: {why}")


def _opened(
    role: str, source: str, dtype: torch.dtype, device: str, attn_implementation: str, offline: str
) -> PreTrainedModel:
    """A GGUF file at work; of any other model its shapes."""
    if not is_gguf(source):
        return _shapes(role, source, attn_implementation, offline)
    try:
        return gguf_model(source, str(dtype).removeprefix("torch."), device, attn_implementation)
    except ValueError as error:
        raise PairError(role, f"{role} {error}") from error


def _shapes(role: str, source: str, attn_implementation: str, offline: str) -> PreTrainedModel:
    """A model on the meta device, whose files hold the tensors that its configuration asks for.

    What its attention is comes first: a model that can never be used is not to be loaded in another way.
    """
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    from specexp.core.masks import check_layers, context_limit

    config = _config(role, source, offline)
    text = config.get_text_config()
    for name in _COUNTS:
        count = getattr(text, name, None)
        if count is not None and count < 1:
            raise PairError(
                role, f"{role} {source!r}: its config.json says {name}: {count}; 1 or more are needed"
            )
    try:
        check_layers(config)
        if config.model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:  # from_config refuses the others
            context_limit(config)
    except ValueError as error:
        raise PairError(role, f"{role} {source!r} cannot be used: {first_line(error)}") from error
    try:
        with torch.device("meta"):
            model: PreTrainedModel = AutoModelForCausalLM.from_config(
                config, attn_implementation=attn_implementation, trust_remote_code=False
            )
    except Exception as error:  # of any model's code, about values that its configuration should not have
        raise refusal(role, source, attn_implementation, error) from error
    if getattr(config, "quantization_config", None) is not None:
        _check_quantisation(role, source, config)
    elif Path(source).is_dir():
        _check_weights(role, source, model)
    return model.eval()


def _check_quantisation(role: str, source: str, config: PreTrainedConfig) -> None:
    """Refuse packed weights that nothing on this machine unpacks."""
    from transformers.quantizers import AutoHfQuantizer

    try:
        AutoHfQuantizer.from_config(config.quantization_config, pre_quantized=True).validate_environment(
            device_map=None
        )
    except Exception as error:  # of any method, each with packages and devices of its own
        raise PairError(
            role,
            f"{role} {source!r} has quantised weights that cannot be read here: {first_line(error)}; install what is "
            "missing, or take the model's weights in bfloat16, float16 or float32",
        ) from error


def _config(role: str, source: str, offline: str) -> PreTrainedConfig:
    from transformers import AutoConfig

    try:
        config: PreTrainedConfig = AutoConfig.from_pretrained(
            source, trust_remote_code=False, local_files_only=bool(offline)
        )
    except Exception as error:  # of the hub's client, and of checks of any model's values
        if offline and not Path(source).is_dir():
            raise not_here(role, source, offline) from error
        why = first_line(error)
        if "trust_remote_code" in str(error) or "custom code" in str(error):
            why = "it is run by code of its own, and only models that transformers itself knows are allowed"
        raise PairError(role, f"{role} {source!r} could not be loaded as a causal model: {why}") from error
    return config


def _check_weights(role: str, source: str, model: PreTrainedModel) -> None:
    """Refuse files whose tensors are another model's; where some have other names, which transformers knows to read,
    what is missing cannot be told.
    """
    held, wanted = weights_of(role, source), model.state_dict(keep_vars=True)
    other = {
        name for name, shape in held.items() if name in wanted and list(wanted[name].shape) != list(shape)
    }
    if held.keys() <= wanted.keys():
        there = {id(wanted[name]) for name in held}  # of tied tensors one is there
        other |= {name for name, tensor in wanted.items() if id(tensor) not in there}
    if other:
        raise unfit(role, source, other)


def unfit(role: str, source: str, tensors: set[str]) -> PairError:
    """What transformers would make up, and only warn of."""
    return PairError(
        role,
        f"{role} {source!r} has no weights that fit {len(tensors)} tensors of the model of its config.json, as "
        f"{min(tensors)!r}",
    )


def _dtype(key: str, name: str) -> torch.dtype:
    import torch

    if name not in _DTYPES:
        raise PairError(key, f"{key} is {name!r}; allowed are {', '.join(_DTYPES)}")
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def _check_device(device: str) -> None:
    import torch

    if str(device) == "meta":
        raise PairError(
            "device", "device 'meta' holds no numbers, so that nothing can be decoded: name cpu or cuda"
        )
    try:
        if torch.device(device).type == "cpu" and torch.device(device).index:
            raise RuntimeError("there is one cpu, without a number")
        torch.empty(0, device=device)
    except TypeError as error:
        raise PairError("device", f"device is {device!r}; a name such as cpu or cuda is expected") from error
    except (RuntimeError, AssertionError, NotImplementedError) as error:  # torch without CUDA asserts
        raise PairError("device", f"device {device!r} cannot be used here: {first_line(error)}") from error


def _tokens(tokenizer: PreTrainedTokenizerBase) -> int:
    """How many logits a tokenizer's tokens need."""
    return int(max(tokenizer.get_vocab().values(), default=-1)) + 1


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
