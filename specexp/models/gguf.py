"""Reads GGUF files: decides whether llama.cpp runs them, unpacks them for PyTorch, and builds their tokenizers."""

from __future__ import annotations

import glob
import re
import sys
from collections.abc import Collection, Mapping
from contextlib import suppress
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specexp.base.kernels import cache_folder, working_folder
from specexp.base.messages import counted, first_line
from specexp.base.probe import death_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

WHOLE = "tokenizer.huggingface.json"
"""The metadata key under which a GGUF file stores the full text of its ``tokenizer.json``."""
_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
PATTERNS = {
    "qwen2": rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}|{_REST}",
    "llama-bpe": rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}{{1,3}}|{_REST}",
}
"""Regular expressions that split text before byte pairs are merged, keyed by llama.cpp's pre-tokenizer names."""
_LISTS = ("tokenizer.ggml.tokens", "tokenizer.ggml.merges")
_SAMPLE, _SAMPLES = 4096, 1024  # bytes per sample and samples per file
_SIZES = ("context_length", "embedding_length", "block_count")
_WIDTH = "attention.key_length"
_UNREAD = {
    "gemma2": {name: name for name in ("attn_logit_softcapping", "final_logit_softcapping")},
    "phi3": {"attention.sliding_window": "sliding_window"},
}
"""Metadata that transformers does not read, with fields of the configuration, keyed by architecture."""
_WITHOUT_OWN_SCALE = {"gemma2": 46, "gemma3": 62}
"""Layers of the model whose scale of queries is not that of its heads, keyed by architecture."""
_SHARD = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf", re.IGNORECASE)
TOKEN_KINDS = {"normal": 1, "control": 3, "own": 4, "unused": 5}
"""Token types of the GGUF standard. ``own`` is its user-defined type."""
_ROLES = {"bos": "bos", "eos": "eos", "pad": "padding"}
"""Maps the names of special tokens in transformers to those in GGUF files."""


GGUF_ENDS = tuple(f"tokenizer.ggml.{name}_token_id" for name in ("eos", "eot", "eom"))
"""The metadata keys of the tokens that end a text, a turn, or a message before a tool's."""


def is_gguf(source: str) -> bool:
    """Return whether a source names a GGUF file."""
    return source.lower().endswith(".gguf")


def runs_in_llama_cpp(source: str, mode: str) -> bool:
    """Return whether llama.cpp runs a source: only GGUF files in mode ``auto``, if llama.cpp works here."""
    return is_gguf(source) and mode == "auto" and not why_no_llama_cpp()


def why_no_llama_cpp() -> str:
    """Return why llama.cpp cannot run files on this machine; empty if it can. The first call may take seconds."""
    if find_spec("llama_cpp") is None:
        return "llama-cpp-python is not installed"
    with suppress(PackageNotFoundError):
        code = "from specexp.models.llama_probe import main; main()"
        return death_of("llama.cpp", version("llama-cpp-python"), code)
    return ""


def gguf_metadata(source: str) -> tuple[dict[str, Any], Collection[str]]:
    """Return a GGUF file's metadata, including its lists, and the names of its tensors.

    Raises:
        ValueError: the file is damaged or not a GGUF file.
    """
    from transformers.integrations.gguf import read_gguf_metadata

    try:
        metadata, tensors = read_gguf_metadata(source, _LISTS)
    except OSError as error:
        raise ValueError(f"{source} cannot be read: {error.strerror}") from error
    except Exception as error:  # numpy, struct and transformers raise their own types
        raise ValueError(f"{source} is not a whole GGUF file: {first_line(error)}") from error
    return metadata, tensors


def unpacked(file: Path) -> Path:
    """Return the folder in specexp's cache that holds a GGUF file's model in float32, writing it if it is missing.

    The configuration records the file's type, such as ``Q4_1``, as ``weights_from``.

    Raises:
        ValueError: transformers cannot load the file, or the folder cannot be written.
    """
    # "whole": folders without this word were written when missing tensors were not refused
    folder = cache_folder("models") / f"{file.stem}-whole-{sampled_hash(file)[:16]}"
    if folder.is_dir():
        return folder
    import torch
    from gguf import LlamaFileType
    from transformers import AutoModelForCausalLM, GgufConfig

    metadata, tensors = gguf_metadata(str(file))
    architecture = metadata["general.architecture"]
    scaling = metadata.get(f"{architecture}.rope.scaling.type", "none")
    if (count := metadata.get("split.count", 1)) > 1:
        number = f"shard {metadata.get('split.no', 0) + 1} of {count}"
        raise ValueError(f"it is {number}: merge the shards with llama-gguf-split --merge, and name the merged file")
    if lacking := [f"{architecture}.{name}" for name in _SIZES if f"{architecture}.{name}" not in metadata]:
        raise ValueError(f"it is not a whole model, since its metadata has no {lacking[0]}: name the model's own file")
    rotated, width = (metadata.get(f"{architecture}.{name}") for name in ("rope.dimension_count", _WIDTH))
    if architecture == "phi3" and rotated != (width or rotated):  # transformers would rotate whole heads
        raise ValueError(f"it rotates {rotated} of {width} numbers of a head, which transformers does not read")
    if scaling != "none" or "rope_freqs.weight" in tensors:  # transformers would ignore the scaling
        raise ValueError("its rotary positions are scaled, so only llama.cpp runs it: set pair.mode to auto")
    print(f"unpacking {file.name} for PyTorch, once", file=sys.stderr, flush=True)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with working_folder(folder.parent) as temporary:
            made = temporary / "model"
            model, report = AutoModelForCausalLM.from_pretrained(
                file.parent,
                gguf_file=file.name,
                output_loading_info=True,
                dtype=torch.float32,
                quantization_config=GgufConfig(dequantize=True),
                local_files_only=True,
            )
            check_tensors(type(model).__name__, report)
            _check_used(file, architecture, model)
            ends = [metadata[key] for key in GGUF_ENDS if key in metadata]
            model.generation_config.eos_token_id = ends or None
            _complete(model.config, architecture, metadata)
            if (kind := metadata.get("general.file_type")) is not None:
                model.config.weights_from = LlamaFileType(kind).name.partition("_")[2]  # from MOSTLY_Q4_1
            model.save_pretrained(made)
            gguf_tokenizer(str(file)).save_pretrained(made)
            with suppress(OSError):  # another process was faster
                made.rename(folder)
    except Exception as error:  # the libraries raise bare ``Exception``
        misfit = "ignore_mismatched_sizes" in str(error)  # a transformers argument that no user can set
        why = f"its tensors do not have the shapes of a {architecture} model" if misfit else first_line(error)
        why = "it is cut off; copy it again" if why.startswith("cannot reshape array") else why
        raise ValueError(f"it cannot be unpacked for PyTorch into {folder}: {why}") from error
    return folder


def _complete(config: Any, architecture: str, metadata: Mapping[str, Any]) -> None:
    """Set the fields of a configuration that transformers does not read from a GGUF file's metadata."""
    for key, field in _UNREAD.get(architecture, {}).items():
        setattr(config, field, metadata.get(f"{architecture}.{key}"))
    if architecture in _WITHOUT_OWN_SCALE:  # as in llama.cpp, which finds the largest model by its layers
        heads = config.hidden_size // config.num_attention_heads
        largest = config.num_hidden_layers == _WITHOUT_OWN_SCALE[architecture]
        config.query_pre_attn_scalar = heads if largest else config.head_dim


def check_tensors(kind: str, report: Mapping[str, Any]) -> None:
    """Raise ``ValueError`` unless a model's files have exactly its tensors, given transformers' loading info.

    transformers only warns about such files: it initializes missing tensors at random, and drops the others.
    """
    made_up = {*report["missing_keys"], *(name for name, *_ in report["mismatched_keys"])}
    if made_up:
        verb = "are" if len(made_up) > 1 else "is"
        raise ValueError(f"{counted(len(made_up), 'tensor')} {verb} missing or misshapen, such as {min(made_up)!r}")
    # files of older versions store rotary frequencies, which are computed
    unused = [name for name in report["unexpected_keys"] if not name.endswith("inv_freq")]
    if unused:
        raise ValueError(
            f"its files have {counted(len(unused), 'tensor')} that a {kind} does not use, such as {min(unused)!r}"
        )


def _check_used(file: Path, architecture: str, model: PreTrainedModel) -> None:
    """Raise ``ValueError`` if a model has fewer numbers than its GGUF file: transformers drops unknown tensors."""
    from gguf import MODEL_ARCH_NAMES, GGUFReader, get_tensor_name_map

    sizes = {one.name: int(one.n_elements) for one in GGUFReader(file).tensors}
    weights = model.state_dict(keep_vars=True)  # in which tied weights are the same object
    left = sum(sizes.values()) - sum(one.numel() for one in {id(one): one for one in weights.values()}.values())
    if left > 0:
        kind = next(kind for kind, name in MODEL_ARCH_NAMES.items() if name == architecture)
        names = get_tensor_name_map(kind, model.config.get_text_config().num_hidden_layers)
        unused = sorted(sizes.keys() - {names.get_name(name, (".weight", ".bias")) for name in weights})
        example = f", such as those of {unused[0]!r}" if unused else ""
        raise ValueError(
            f"it has {left} numbers that a {type(model).__name__} does not use{example}: only llama.cpp runs it"
        )


def is_unpacked(source: str) -> bool:
    """Return whether a source is a folder that :func:`unpacked` wrote."""
    return Path(source).parent == cache_folder("models")


def shards(file: Path) -> list[Path]:
    """Return all files of a GGUF model, which are several if the name ends with a shard, as in ``-00001-of-00003``."""
    named = _SHARD.fullmatch(file.name)
    if named is None:
        return [file]
    return sorted(file.parent.glob(f"{glob.escape(named[1])}-?????-of-{named[3]}{file.suffix}"))


def sampled_hash(file: Path) -> str:
    """Return the SHA-256 of 1,024 evenly spaced samples of each of a model's files, which identifies its weights."""
    digest = sha256()
    for shard in shards(file):
        size = shard.stat().st_size
        with shard.open("rb") as opened:
            for place in range(_SAMPLES):
                opened.seek(max(size - _SAMPLE, 0) * place // (_SAMPLES - 1))
                digest.update(opened.read(_SAMPLE))
    return digest.hexdigest()


def gguf_tokenizer(source: str) -> PreTrainedTokenizerBase:
    """Return a GGUF file's tokenizer as a Hugging Face tokenizer. Raises ``ValueError`` if it cannot be built."""
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    metadata, _ = gguf_metadata(source)
    whole = metadata.get(WHOLE)
    kind, name = (metadata.get(f"tokenizer.ggml.{key}") for key in ("model", "pre"))
    converted: PreTrainedTokenizerBase
    if whole is None and (kind == "llama" or name == "smollm"):
        converted = PreTrainedTokenizerFast.from_pretrained(
            Path(source).parent, gguf_file=Path(source).name, local_files_only=True
        )
        return converted
    if whole is None and (kind != "gpt2" or name not in (*PATTERNS, "gpt-2")):
        raise ValueError(
            f"{source}: its tokenizer must have model 'llama', or model 'gpt2' and pre-tokenizer "
            f"{', '.join((*PATTERNS, 'gpt-2', 'smollm'))}, got {kind!r} and {name!r}: name the Hugging Face model "
            "that the file was converted from"
        )
    try:
        core = _from_lists(metadata) if whole is None else Tokenizer.from_str(whole)
    except Exception as error:  # tokenizers raises bare ``Exception``
        raise ValueError(f"{source}: the tokenizer cannot be read: {first_line(error)}") from error
    numbers = {role: metadata.get(f"tokenizer.ggml.{key}_token_id") for role, key in _ROLES.items()}
    roles = {f"{role}_token": core.id_to_token(number) for role, number in numbers.items() if number is not None}
    converted = PreTrainedTokenizerFast(
        tokenizer_object=core,
        model_max_length=metadata.get(f"{metadata['general.architecture']}.context_length"),
        chat_template=metadata.get("tokenizer.chat_template"),
        **roles,
    )
    return converted


def _from_lists(metadata: dict[str, Any]) -> Any:
    """Return a byte-level BPE tokenizer built from llama.cpp's lists of tokens and merges."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors

    name = metadata["tokenizer.ggml.pre"]
    tokens, kinds, merges = (metadata[f"tokenizer.ggml.{key}"] for key in ("tokens", "token_type", "merges"))
    own = [
        (number, kind == TOKEN_KINDS["control"])
        for number, kind in enumerate(kinds)
        if kind in (TOKEN_KINDS["control"], TOKEN_KINDS["own"])
    ]
    core = Tokenizer(
        models.BPE(
            vocab={token: number for number, token in enumerate(tokens)},
            merges=[tuple(merge.split(" ", 1)) for merge in merges],
            ignore_merges=name == "llama-bpe",  # as in Llama 3: a word in the vocabulary stays one token
        )
    )
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=name == "gpt-2")
    cut = [] if name == "gpt-2" else [pre_tokenizers.Split(Regex(PATTERNS[name]), "isolated")]
    core.pre_tokenizer = pre_tokenizers.Sequence([*cut, byte_level])
    core.decoder = decoders.ByteLevel()
    core.add_tokens([AddedToken(tokens[number], special=special, normalized=False) for number, special in own])
    bos = metadata.get("tokenizer.ggml.bos_token_id")
    if bos is not None and metadata.get("tokenizer.ggml.add_bos_token"):
        first = tokens[bos]
        core.post_processor = processors.TemplateProcessing(
            single=f"{first} $A", pair=f"{first} $A $B", special_tokens=[(first, bos)]
        )
    return core
