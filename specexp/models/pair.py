"""Loads a target and a draft: the embedded pair by name, or any two models by hub id or folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from os import environ, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specexp.base.cores import usable_cores
from specexp.base.messages import did_you_mean, first_line, restated, type_and_line
from specexp.core.packed import has_embeddings, is_packed, load_packed
from specexp.core.runtime import RowOrder, Runtime
from specexp.models.gguf import check_tensors, gguf_tokenizer, is_gguf, is_unpacked, why_no_llama_cpp
from specexp.models.modes import AUTO, MODES
from specexp.models.runtime import check_mode, runtime_of, tell_fallback, tell_once
from specexp.models.sources import PairError, check_reachable, checked_sources, other_tokens, sources_of

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

_TENSOR_PARALLEL = "tensor-parallel"
_DEVICE_MAPS = ("auto", "balanced", "balanced_low_0", "sequential", _TENSOR_PARALLEL)
_DTYPES = ("bfloat16", "float16", "float32")
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "vocab.txt")


@dataclass(frozen=True)
class ModelPair:
    """A target, an optional draft and the tokenizer that they share. Both models are in evaluation mode."""

    target: PreTrainedModel
    draft: PreTrainedModel | None
    tokenizer: PreTrainedTokenizerBase
    name: str
    mode: str = "auto"  # of both models, as in load_pair

    def target_runtime(self) -> Runtime:
        """Return a runtime for the target, with an empty cache. Raises ``ValueError`` if it cannot run in ``mode``."""
        return runtime_of(self.target, self.mode)

    def draft_runtime(self) -> Runtime | None:
        """Return a runtime for the draft, which each drafter copies, or None if there is no draft."""
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
    row_order: RowOrder = "built",
    mode: str = "auto",
    weights: bool = True,
) -> ModelPair:
    """Load a model pair.

    Args:
        target: ``"stdlib"`` for the embedded pair, ``"smollm2"`` for SmolLM2-135M-Instruct with Q4_1 weights
            (fetched on first use, 93 MB), ``"smollm2.gguf"`` for its file, which llama.cpp runs, or the target's hub
            id, folder or GGUF file.
        draft: the draft's hub id, folder or GGUF file, or ``"smollm2"`` for a four-layer model trained for that target,
            which uses its embeddings. If None, an embedded target has its own draft and other targets have none. Both
            models must have the same tokenizer. If their vocabularies are padded to different lengths, as in Qwen2.5,
            the draft's is resized to the target's. A GGUF draft cannot be resized.
        target_dtype: ``bfloat16``, ``float16`` or ``float32``. In llama.cpp, only the cache has this precision.
        draft_dtype: dtype of the draft, with the same choices as for ``target_dtype``.
        device: the torch device for both models.
        device_map: placement of the target's modules, in the format of transformers: ``auto``, or a mapping of modules
            to devices, ``cpu`` or ``disk``. Modules on the CPU or the disk are moved to the device for each pass.
        offload_folder: folder for modules mapped to ``disk`` that cannot be read from the model's own files.
        attn_implementation: as in ``PreTrainedModel.from_pretrained``; ``sdpa`` becomes ``eager`` for a model that has
            no ``sdpa``, such as Gemma 2 and gpt-oss. llama.cpp uses flash attention unless this is
            ``eager`` or the precision is float32.
        row_order: order of a tree's rows in the target's pass, in modes ``eager`` and ``graphed``. ``depth-first`` and
            ``heavy-path`` (DySpec, appendix C) leave fewer blocks for FlexAttention. The output does not change.
        mode: ``eager`` runs the models' own code. ``compiled`` runs passes compiled for this CPU, for some families.
            ``packed`` does the same, but reads the 4-bit and 8-bit blocks of the target's GGUF file instead of bfloat16
            weights: less memory, same logits. ``graphed`` replays passes as CUDA graphs. ``auto`` uses the mode
            of an artifact's study, or the fastest mode that works. In ``auto``, llama.cpp runs GGUF files if it is
            installed (extra ``llama-cpp``); otherwise they are unpacked once, in float32.
        weights: if False, create the models on the meta device from their configurations, for a dry run. llama.cpp maps
            its files into memory in either case.

    Raises:
        PairError: a model cannot be loaded or cannot run with these arguments, or the vocabularies differ.

    Example:
        >>> load_pair("stdlib").target.config.vocab_size  # doctest: +SKIP
        4096
    """
    with _blamed("mode"):
        check_mode(mode, device=device)
    sources = checked_sources(fspath(target), None if draft is None else fspath(draft), mode)
    origins = sources_of(fspath(target), None if draft is None else fspath(draft))
    dtypes = _dtype("target_dtype", target_dtype), _dtype("draft_dtype", draft_dtype)
    check_device(device)
    import torch

    from specexp.core.language_model import set_runtime

    torch.set_num_threads(min(torch.get_num_threads(), usable_cores().number))  # torch ignores a quota
    if sources[0] == sources[1]:
        tell_once("the draft is the target itself, so drafting a token takes as long as decoding it")
    for name, source in zip((target, draft), sources, strict=True):
        if source is not None and is_gguf(source):
            tell_once(f"llama.cpp runs {source}; with pair.mode eager or compiled, specexp's own passes run it")
        elif name is not None and is_gguf(fspath(name)):
            why = why_no_llama_cpp() if mode == AUTO else ""
            tell_once(f"{why}, so specexp's own passes run {name}" if why else f"specexp's own passes run {name}")
    files = [
        _Files(role, source, dtype, device, attn_implementation, origin)
        for role, source, dtype, origin in zip(("target", "draft"), sources, dtypes, origins, strict=True)
        if source is not None
    ]
    text = files[0].config.get_text_config()
    placed = _placement(files[0].source, device_map, offload_folder, mode)
    _check_tokens(*files)
    models = [one.outline() for one in files]
    with _blamed("mode"):
        check_mode(mode, models, device)
    if weights:
        loaded = files[0].load(**placed)
        models = [loaded, *(one.load(loaded) for one in files[1:])]
    else:
        if mode == AUTO:
            tell_fallback(models, device)
        mode = "eager"  # compiled passes need values
        for one in files:
            one.check_tensors()
    for model in models[1:]:
        _pad(model, text.vocab_size)
    if row_order != "built":
        models[0].config.row_order = row_order
    for model in models:
        if not isinstance(model, Runtime):  # a runtime keeps its own mode
            set_runtime(model, mode, runtime_of)
    return ModelPair(models[0], models[1] if len(models) > 1 else None, files[0].tokenizer, fspath(target), mode)


def load_tokenizer(target: str) -> PreTrainedTokenizerBase:
    """Load only the tokenizer of a target that :func:`load_pair` accepts. Raises :class:`PairError` on failure.

    A GGUF file is not unpacked.
    """
    return _Files("target", checked_sources(target, unpacks=False)[0]).tokenizer


def check_device(device: str) -> None:
    """Raise :class:`PairError` if PyTorch cannot use a device here."""
    no_cuda = ValueError("PyTorch finds no CUDA device: name cpu, or install a PyTorch for your GPU")
    with _blamed("device", f"device {device!r} cannot be used here"):
        if device.startswith("cuda") and version("torch").endswith("+cpu"):
            raise no_cuda  # before torch is imported, which takes seconds
        import torch

        with restated(RuntimeError, lambda error: ValueError("name cpu, cuda, cuda:N, mps or xpu")):
            torch.device(device)
        if device.startswith("cuda") and not torch.cuda.is_available():
            raise no_cuda
        try:
            torch.zeros(1, device=device).item()  # fails on the meta device, because its tensors have no values
        except NotImplementedError as error:  # its message lists all backends
            raise ValueError("this PyTorch has no operators for it: name cpu, or install one that has") from error


@contextmanager
def _blamed(argument: str, subject: str = "") -> Iterator[None]:
    """Re-raise an error from any library as a :class:`PairError` that names an argument of :func:`load_pair`."""
    try:
        yield
    except PairError:
        raise
    except Exception as error:  # the libraries raise bare ``Exception`` for damaged files
        why = type_and_line(error) if isinstance(error, KeyError) else first_line(error)
        raise PairError(argument, f"{subject}: {why}" if subject else why) from error


@dataclass
class _Files:
    """The files of a target or a draft. Errors name ``role``, the argument of :func:`load_pair`."""

    role: str
    source: str
    dtype: torch.dtype | None = None
    device: str = "cpu"
    attention: str = "sdpa"
    origin: str | None = None

    def __post_init__(self) -> None:
        self.name = f"{self.role} {self.source!r}"
        self._unpacked_from = Path(self.origin) if self.origin is not None and is_unpacked(self.source) else None
        offline = check_reachable(self.role, self.source)
        self._options = {"trust_remote_code": False, "local_files_only": offline}

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        from transformers import AutoTokenizer, PreTrainedTokenizerFast

        with _blamed(self.role, f"the tokenizer of {self.name} cannot be loaded"):
            if is_gguf(self.source):
                return gguf_tokenizer(self.source)
            # AutoTokenizer chooses the class by the model's type, which may not suit a GGUF file's tokenizer
            kind: Any = PreTrainedTokenizerFast if is_unpacked(self.source) else AutoTokenizer
            folder = Path(self.source)
            if folder.is_dir() and not any((folder / name).is_file() for name in _TOKENIZER_FILES):
                raise PairError(self.role, f"{self.name} has no tokenizer.json")
            tokenizer: PreTrainedTokenizerBase = kind.from_pretrained(self.source, **self._options)
            return tokenizer

    @cached_property
    def config(self) -> PreTrainedConfig:
        """The model's configuration. Raises :class:`PairError` if the model cannot take tree passes."""
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
        """Return the model on the meta device, without weights. A GGUF file is memory-mapped with its weights."""
        if is_gguf(self.source):
            return self._mapped
        import torch
        from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoModelForCausalLM

        from specexp.core.language_model import check_causal

        with _blamed(self.role, f"{self.name} cannot be loaded"), torch.device("meta"):
            kind = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(self.config), None)
            if self.attention == "sdpa" and kind is not None and not kind._supports_sdpa:
                name = self.config.get_text_config().model_type
                tell_once(f"{self.name} runs with attn_implementation eager, as the {name} model needs")
                self.attention = "eager"  # it has soft caps or attention sinks, for example
            model: PreTrainedModel = AutoModelForCausalLM.from_config(
                self.config,
                dtype=self.dtype,
                attn_implementation=self.attention,
                trust_remote_code=False,
            )
            check_causal(model)
        model.gguf_file = self._unpacked_from
        return model.eval()

    def load(self, target: PreTrainedModel | None = None, **placed: Any) -> PreTrainedModel:
        """Return the model in evaluation mode on its device. The arguments ``placed`` spread it over several devices.

        A packed draft without embeddings gets those of ``target``.
        """
        if is_gguf(self.source):
            return self._mapped
        with _blamed(self.role, f"{self.name} cannot be loaded"):
            if is_packed(self.source):
                return load_packed(self.source, self.dtype, self.attention, target).to(self.device)
            loaded = self._read(**placed)
            model: PreTrainedModel = (loaded if placed else loaded.to(self.device)).eval()
            model.gguf_file = self._unpacked_from
        return model

    def check_tensors(self) -> None:
        """Raise :class:`PairError` unless a local folder's files have the model's tensors. No weights are read."""
        if not Path(self.source).is_dir() or is_packed(self.source):
            return
        from transformers.utils import logging

        shown = logging.is_progress_bar_enabled()
        logging.disable_progress_bar()  # nothing is loaded
        try:
            with _blamed(self.role, f"{self.name} cannot be loaded"):
                self._read(device_map="meta")
        finally:
            if shown:
                logging.enable_progress_bar()

    def _read(self, **placed: Any) -> Any:
        from transformers import AutoModelForCausalLM

        loaded, report = AutoModelForCausalLM.from_pretrained(
            self.source,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # the error below names them
            dtype=self.dtype,
            attn_implementation=self.attention,
            use_safetensors=True,
            **self._options,
            **placed,
        )
        check_tensors(type(loaded).__name__, report)
        return loaded

    @cached_property
    def _mapped(self) -> Any:
        from specexp.models.llama_cpp import LlamaCppModel
        from specexp.models.llama_file import LlamaFile

        with _blamed(self.role, f"{self.name} cannot be loaded"):
            cache: Any = str(self.dtype).removeprefix("torch.")
            exact = self.attention == "eager" or cache == "float32"  # flash attention rounds to float16
            return LlamaCppModel(LlamaFile(self.source, cache, flash_attention=not exact, device=self.device))


def _placement(
    target: str, device_map: str | Mapping[str, str | int] | None, offload_folder: str | None, mode: str
) -> dict[str, Any]:
    """Return ``from_pretrained`` arguments that spread a target over devices, or none without a device map."""
    key, why = "device_map", ""
    if device_map is None:
        key = "offload_folder"
        why = "" if offload_folder is None else "must be left out without a device_map"
    elif isinstance(device_map, str) and device_map not in _DEVICE_MAPS:
        hint = did_you_mean(device_map, _DEVICE_MAPS)
        why = f"must be a placement or a mapping of modules to devices, got {device_map!r}{hint}"
    elif is_gguf(target):
        why = f"must be left out for the GGUF file {target!r}, because llama.cpp places its layers itself"
    elif mode != AUTO and not MODES[mode].takes_device_map:
        allowed = " or ".join((*(name for name, one in MODES.items() if one.takes_device_map), AUTO))
        key, why = "mode", f"must be {allowed} if a device_map spreads the target, got {mode!r}"
    elif is_packed(target):
        why = "must be left out for an embedded model: export it first with python -m specexp.export --to hf"
    elif device_map == _TENSOR_PARALLEL and int(environ.get("WORLD_SIZE", "1")) < 2:  # set by torchrun
        why = f"is {device_map!r}, which needs at least two processes: start them with torchrun --nproc-per-node N"
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
        raise PairError(key, f"{key} must be one of {', '.join(_DTYPES)}, got {name!r}")
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def _check_tokens(target: _Files, draft: _Files | None = None) -> None:
    """Raise unless each model has a logit for every token, and the draft has the target's tokenizer."""
    vocabulary = target.tokenizer.get_vocab()
    width = target.config.get_text_config().vocab_size
    tokens = max(vocabulary.values(), default=-1) + 1
    if tokens > width:
        raise PairError(
            "target",
            f"{target.name} gives {width} logits, but its tokenizer has {tokens} tokens: use the model's own "
            "tokenizer, or resize the model's embeddings and save it again",
        )
    if draft is None:
        return
    if is_packed(draft.source) and not has_embeddings(draft.source):
        _check_borrowed(target, draft)
        return
    given = draft.tokenizer.get_vocab()
    drafted = draft.config.get_text_config().vocab_size
    if given != vocabulary:
        raise other_tokens(draft.name, given, target.name, vocabulary)
    if (drafted < tokens or is_gguf(draft.source)) and drafted != width:
        raise PairError(
            "draft",
            f"{draft.name} gives {drafted} logits, but {target.name} gives {width}; a different number is supported "
            f"only if the draft is not a GGUF file and has a logit for each of the {tokens} tokens",
        )


def _check_borrowed(target: _Files, draft: _Files) -> None:
    """Raise unless a draft that lacks embeddings and a tokenizer can use the target's."""
    configs = [one.config.get_text_config() for one in (draft, target)]
    sizes = [f"{one.vocab_size} tokens and a width of {one.hidden_size}" for one in configs]
    why = ""
    if is_gguf(target.source):
        why = f"uses the embeddings of {target.name}, which llama.cpp runs: set pair.mode to eager or compiled"
    elif sizes[0] != sizes[1]:
        why = f"uses the embeddings of a target with {sizes[0]}, but {target.name} has {sizes[1]}"
    if why:
        raise PairError("draft", f"{draft.name} {why}")


def _pad(model: PreTrainedModel, width: int) -> None:
    """Resize a model to ``width`` logits. New logits, which have no token, get the mean weights of the old ones."""
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
