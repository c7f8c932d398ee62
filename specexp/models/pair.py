"""Load a target and its draft: the embedded pair by its name, or any two models by hub id or folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from os import environ, fspath
from typing import TYPE_CHECKING, Any

from specexp.core.messages import did_you_mean, first_line, type_and_line
from specexp.core.runtime import Runtime
from specexp.models.gguf import gguf_model, gguf_tokenizer, is_gguf
from specexp.models.packed import is_packed, load_packed
from specexp.models.runtime import AUTO, check_mode, modes, runtime_of, set_mode
from specexp.models.sources import PairError, check_reachable, checked_sources, sources_of

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

_TENSOR_PARALLEL = "tensor-parallel"
_DEVICE_MAPS = ("auto", "balanced", "balanced_low_0", "sequential", _TENSOR_PARALLEL)
_DTYPES = ("bfloat16", "float16", "float32")


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
        """Return a runtime of the target with an empty cache; raises ``ValueError`` if it cannot run in this mode."""
        return runtime_of(self.target, self.mode)

    def draft_runtime(self) -> Runtime | None:
        """Return a runtime of the draft, which every drafter copies; None without a draft."""
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
    weights: bool = True,
) -> ModelPair:
    """Load a model pair.

    Args:
        target: ``"stdlib"`` for the embedded pair, or the target's hub id, folder or GGUF file. llama.cpp runs GGUF
            files (extra ``llama-cpp``).
        draft: the draft's hub id, folder or GGUF file. If None, the embedded pair has its own draft and other targets
            have none. Both must have one tokenizer. If their vocabularies are padded to different lengths, as
            Qwen2.5's are, the draft gets the target's length, unless it is a GGUF file.
        target_dtype: ``bfloat16``, ``float16`` or ``float32``. For a GGUF file only the cache has this precision.
        draft_dtype: as ``target_dtype``.
        device: a torch device for both.
        device_map: placement of the target's modules as transformers takes it, ``auto`` or a mapping of modules to
            devices, ``cpu`` or ``disk``. Modules on the CPU or the disk are moved for each pass. Needs accelerate
            (extra ``offload``).
        offload_folder: folder for modules mapped to ``disk`` that cannot be read from the model's own files.
        attn_implementation: as in ``PreTrainedModel.from_pretrained``. llama.cpp uses flash attention unless this is
            ``eager`` or the precision is float32.
        mode: ``eager`` runs the models' own code, ``compiled`` passes compiled for this CPU (Llama family),
            ``graphed`` passes of static shapes that CUDA graphs replay. ``auto`` uses the mode of an artifact's study,
            or else the fastest that works. GGUF files have only one mode.
        weights: if False, make the models on the meta device from their configurations, for a dry run. GGUF files are
            mapped all the same.

    Raises:
        PairError: a model cannot be loaded or run so, or the draft has another vocabulary than the target.

    Example:
        >>> load_pair("stdlib").target.config.vocab_size  # doctest: +SKIP
        4096
    """
    sources = checked_sources(fspath(target), None if draft is None else fspath(draft))
    with _blamed("mode"):
        check_mode(mode, device=device)
    dtypes = _dtype("target_dtype", target_dtype), _dtype("draft_dtype", draft_dtype)
    import torch

    with _blamed("device", f"device {device!r} cannot be used here"):
        torch.zeros(1, device=device).item()  # a meta tensor has no value
    files = [
        _Files(role, source, dtype, device, attn_implementation)
        for role, source, dtype in zip(("target", "draft"), sources, dtypes, strict=True)
        if source is not None
    ]
    text = files[0].config.get_text_config()
    placed = _placement(files[0].source, device_map, offload_folder, mode)
    _check_tokens(*files)
    models = [one.outline() for one in files]
    with _blamed("mode"):
        check_mode(mode, models, device)
    if weights:
        models = [files[0].load(**placed), *(one.load() for one in files[1:])]
    else:
        mode = "eager"  # compiled passes need values
    for model in models[1:]:
        _pad(model, text.vocab_size)
    for model in models:
        set_mode(model, mode)
    return ModelPair(
        models[0], models[1] if len(models) > 1 else None, files[0].tokenizer, fspath(target), mode
    )


def load_tokenizer(target: str) -> PreTrainedTokenizerBase:
    """Load only the tokenizer of a target of :func:`load_pair`; raises :class:`PairError` if it cannot be loaded."""
    return _Files("target", sources_of(target)[0]).tokenizer


@contextmanager
def _blamed(argument: str, subject: str = "") -> Iterator[None]:
    """Turn an error of any library into one sentence about an argument of :func:`load_pair`."""
    try:
        yield
    except PairError:
        raise
    except Exception as error:  # transformers, tokenizers, safetensors and torch raise bare ones of any file
        why = type_and_line(error) if isinstance(error, KeyError) else first_line(error)
        raise PairError(argument, f"{subject}: {why}" if subject else why) from error


class _Files:
    """The files of a target or a draft; ``role`` is the argument that errors name."""

    def __init__(
        self,
        role: str,
        source: str,
        dtype: torch.dtype | None = None,
        device: str = "cpu",
        attn_implementation: str = "sdpa",
    ) -> None:
        self.role, self.source, self.name = role, source, f"{role} {source!r}"
        self._dtype, self._device, self._attention = dtype, device, attn_implementation
        self._options = {"trust_remote_code": False, "local_files_only": check_reachable(role, source)}

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        from transformers import AutoTokenizer

        with _blamed(self.role, f"the tokenizer of {self.name} cannot be loaded"):
            if is_gguf(self.source):
                return gguf_tokenizer(self.source)
            tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(self.source, **self._options)
            return tokenizer

    @cached_property
    def config(self) -> PreTrainedConfig:
        """The configuration of a model that takes tree passes."""
        if is_gguf(self.source):
            return self._mapped.config
        from transformers import AutoConfig

        from specexp.core.cache import check_layers, context_limit

        with _blamed(self.role, f"{self.name} cannot be used"):
            config: PreTrainedConfig = AutoConfig.from_pretrained(self.source, **self._options)
            check_layers(config)
            context_limit(config)
        return config

    def outline(self) -> PreTrainedModel:
        """Return the model without its weights, on the meta device; a GGUF file is mapped."""
        if is_gguf(self.source):
            return self._mapped
        import torch
        from transformers import AutoModelForCausalLM

        with _blamed(self.role, f"{self.name} cannot be loaded"), torch.device("meta"):
            model: PreTrainedModel = AutoModelForCausalLM.from_config(
                self.config,
                dtype=self._dtype,
                attn_implementation=self._attention,
                trust_remote_code=False,
            )
        return model.eval()

    def load(self, **placed: Any) -> PreTrainedModel:
        """Return the model in evaluation mode, on its device or spread by the arguments ``placed``."""
        if is_gguf(self.source):
            return self._mapped
        from transformers import AutoModelForCausalLM

        with _blamed(self.role, f"{self.name} cannot be loaded"):
            if is_packed(self.source):
                return load_packed(self.source, self._dtype, self._attention).to(self._device)
            loaded: Any
            loaded, report = AutoModelForCausalLM.from_pretrained(
                self.source,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # named below
                dtype=self._dtype,
                attn_implementation=self._attention,
                use_safetensors=True,
                **self._options,
                **placed,
            )
            # transformers only warns, and makes them up
            made_up = {*report["missing_keys"], *(name for name, *_ in report["mismatched_keys"])}
            if made_up:
                raise ValueError(f"{len(made_up)} tensors do not fit its config.json, as {min(made_up)!r}")
            model: PreTrainedModel = (loaded if placed else loaded.to(self._device)).eval()
        return model

    @cached_property
    def _mapped(self) -> Any:
        with _blamed(self.role, f"{self.name} cannot be loaded"):
            dtype = str(self._dtype).removeprefix("torch.")
            return gguf_model(self.source, dtype, self._device, self._attention)


def _placement(
    target: str, device_map: str | Mapping[str, str | int] | None, offload_folder: str | None, mode: str
) -> dict[str, Any]:
    """Return the arguments of ``from_pretrained`` that spread a target over devices; none without a device map."""
    key, why = "device_map", ""
    if device_map is None:
        key = "offload_folder"
        why = "" if offload_folder is None else "is given without a device_map, which alone fills it"
    elif isinstance(device_map, str) and device_map not in _DEVICE_MAPS:
        hint = did_you_mean(device_map, _DEVICE_MAPS)
        why = f"is {device_map!r}{hint}; or a mapping of modules to devices is expected"
    elif is_gguf(target):
        why = f"must be left out for the GGUF file {target!r}, which llama.cpp places itself"
    elif mode != AUTO and not modes()[mode].takes_device_map:
        allowed = " and ".join((*(name for name, kind in modes().items() if kind.takes_device_map), AUTO))
        key, why = "mode", f"is {mode!r}, and a device_map spreads the target: allowed are {allowed}"
    elif is_packed(target):
        why = "must be left out for an embedded model; python -m specexp.export writes an ordinary one (--to hf)"
    elif device_map != _TENSOR_PARALLEL:
        why = "" if find_spec("accelerate") else 'needs accelerate: pip install -e ".[offload]"'
    elif int(environ.get("WORLD_SIZE", "1")) < 2:  # processes that torchrun started
        why = (
            f"is {device_map!r}, which splits the target over the processes of torchrun, and this is one alone: "
            "start several with torchrun --nproc-per-node N"
        )
    if why:
        raise PairError(key, f"{key} {why}")
    if device_map is None:
        return {}
    if device_map != _TENSOR_PARALLEL:
        return {"device_map": device_map, "offload_folder": offload_folder}
    from transformers.distributed import DistributedConfig

    return {"distributed_config": DistributedConfig(tp_size=int(environ["WORLD_SIZE"]))}


def _dtype(key: str, name: str) -> torch.dtype:
    import torch

    if name not in _DTYPES:
        raise PairError(key, f"{key} is {name!r}; allowed are {', '.join(_DTYPES)}")
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def _check_tokens(target: _Files, draft: _Files | None = None) -> None:
    """Raise unless the models have a logit for each token, and the draft has the target's tokenizer."""
    vocabulary, width = target.tokenizer.get_vocab(), target.config.get_text_config().vocab_size
    tokens = max(vocabulary.values(), default=-1) + 1
    if tokens > width:
        raise PairError(
            "target",
            f"{target.name} gives {width} logits, and its tokenizer has {tokens} tokens: take the tokenizer that "
            "belongs to it, or resize the model's embeddings and save it again",
        )
    if draft is None:
        return
    given, drafted = draft.tokenizer.get_vocab(), draft.config.get_text_config().vocab_size
    if given != vocabulary:
        different = len(set(vocabulary.items()) ^ set(given.items()))
        raise PairError(
            "draft",
            f"{draft.name} has another vocabulary ({len(given)} tokens) than {target.name} ({len(vocabulary)} tokens; "
            f"{different} entries differ); a draft must have the target's tokenizer",
        )
    if (drafted < tokens or is_gguf(draft.source)) and drafted != width:
        raise PairError(
            "draft",
            f"{draft.name} gives {drafted} logits, but {target.name} gives {width}; where they differ, both need one "
            f"for each of the tokenizer's {tokens} tokens, and the draft cannot be a GGUF file",
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
