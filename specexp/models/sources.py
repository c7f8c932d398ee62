"""Resolves and checks model sources (embedded models, folders, GGUF files and hub ids) without importing torch."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from difflib import get_close_matches
from functools import cache
from pathlib import Path

from specexp.base.messages import counted, did_you_mean, first_line, near_file
from specexp.models.gguf import is_gguf, runs_in_llama_cpp, unpacked
from specexp.models.modes import AUTO, MODES
from specexp.models.smollm2 import SMOLLM2, fetch_smollm2, smollm2_file

PAIRS = Path(__file__).parent
_HUB_ID = re.compile(r"[\w-][\w.-]*(/[\w.-]+)?")
_INDEX = "model.safetensors.index.json"
_PATIENCE_SECONDS = 5.0  # timeout for one hub request; by default, the client retries for most of a minute
NEEDS_BLOCKS = "mode 'packed' needs a GGUF file as the target, such as smollm2, in bfloat16; or name mode compiled"


class PairError(ValueError):
    """Raised if a pair cannot be loaded because of one ``argument`` of :func:`~specexp.models.pair.load_pair`."""

    def __init__(self, argument: str, sentence: str) -> None:
        super().__init__(sentence)
        self.argument = argument


def sources_of(target: str, draft: str | None = None) -> tuple[str, str | None]:
    """Return the hub id, folder or file of the target and of the draft (None without a draft).

    ``stdlib`` names the embedded target or the embedded draft, and ``stdlib-SIZE`` an embedded model of another size in
    either role. An embedded target has a default draft from its own family. As a target, ``smollm2`` names a file in
    the cache; as a draft, an embedded model. ``smollm2.gguf`` names that file in either role.

    Example:
        >>> sources_of("my/target")
        ('my/target', None)
    """
    if draft is None and _embedded("target", target) is not None:
        draft = target.partition("-")[0]
    return _named("target", target), None if draft is None else _named("draft", draft)


def _named(role: str, name: str) -> str:
    return _embedded(role, name) or (str(smollm2_file()) if name in (SMOLLM2, f"{SMOLLM2}.gguf") else name)


def embedded_artifacts(family: str) -> dict[str, Path]:
    """Return the folders of a family's embedded artifacts by name, ``FAMILY:NAME``.

    Example:
        >>> embedded_artifacts("my/head")
        {}
    """
    found = PAIRS.glob(f"{family}/*/artifact.json") if re.fullmatch(r"\w+", family) else ()
    return {f"{family}:{one.parent.name}": one.parent for one in found}


def _embedded(role: str, name: str) -> str | None:
    """Return the folder of the embedded model ``family`` or ``family-size`` in this role, or None if there is none."""
    family, _, size = name.partition("-")
    folder = PAIRS / family / (size or role)
    return str(folder) if re.fullmatch(r"\w+(-\w+)?", name) and (folder / "config.json").is_file() else None


def checked_sources(
    target: str, draft: str | None = None, mode: str = AUTO, unpacks: bool = True
) -> tuple[str, str | None]:
    """Return the checked result of :func:`sources_of`. GGUF files are unpacked unless ``mode`` runs them in llama.cpp.

    Raises:
        PairError: a source is invalid or unreachable.
    """
    if mode not in (known := (AUTO, *MODES)):
        near = did_you_mean(mode, known)
        hint = near if near.startswith("; did") else ""  # the names stand in the sentence already
        raise PairError("mode", f"mode must be one of {', '.join(known)}, got {mode!r}{hint}")
    first, second = sources_of(target, draft)
    first = _checked("target", target, first, mode, unpacks)
    second = second and _checked("draft", draft or "", second, mode, unpacks)
    if second is not None and (given := _vocabulary(second)):
        wanted = _vocabulary(first)
        # a token in only one of them may be a special token of the other, which load_pair reads
        if any(wanted.get(token, number) != number for token, number in given.items()):
            raise other_tokens(f"draft {draft or second!r}", given, f"target {target!r}", wanted)
    return first, second


def _vocabulary(source: str) -> dict[str, int]:
    """Return the ids in a folder's tokenizer.json, without special tokens, read without transformers; {} if unknown."""
    with suppress(OSError, ValueError, LookupError, TypeError):
        ids = json.loads(Path(source, "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]
        return ids if isinstance(ids, dict) else {}  # Unigram models list tokens with scores
    return {}


def other_tokens(draft: str, given: Mapping[str, int], target: str, wanted: Mapping[str, int]) -> PairError:
    """Return the error for a draft with other tokens, given as ids by text, than the target."""
    different = {token for token, _ in set(wanted.items()) ^ set(given.items())}
    first = sorted(different, key=lambda token: (wanted.get(token, 2**31), token))[:3]
    examples = ", ".join(_difference(token, given.get(token), wanted.get(token)) for token in first)
    return PairError(
        "draft",
        f"{draft} must have the tokenizer of {target}, but of their {len(given)} and {len(wanted)} tokens, "
        f"{counted(len(different), 'token')} {'differ' if len(different) > 1 else 'differs'}: {examples}",
    )


def _difference(token: str, drafted: int | None, wanted: int | None) -> str:
    if drafted is None or wanted is None:
        return f"{token!r} ({'draft' if wanted is None else 'target'} only)"
    return f"{token!r} (id {drafted} in the draft, {wanted} in the target)"


def stated_context(source: str) -> int | None:
    """Return the number of positions in a folder's config.json, read without transformers; None if unknown."""
    return _stated(source, "max_position_embeddings")


def stated_layers(source: str) -> int | None:
    """Return the number of layers in a folder's config.json, read without transformers; None if unknown."""
    return _stated(source, "num_hidden_layers")


def _stated(source: str, key: str) -> int | None:
    with suppress(OSError, ValueError, AttributeError):
        settings = json.loads(Path(source, "config.json").read_text(encoding="utf-8"))
        found = settings.get("text_config", settings).get(key)
        return found if isinstance(found, int) else None
    return None


def _checked(role: str, name: str, source: str, mode: str, unpacks: bool) -> str:
    if mode == "packed" and role == "target" and not is_gguf(source):
        raise PairError("mode", NEEDS_BLOCKS)
    try:
        if source == str(smollm2_file()):
            fetch_smollm2()
            unpacks = True  # it is small, and transformers converts its tokenizer anew at every load
        check_source(role, source)
        if is_gguf(source) and unpacks and not runs_in_llama_cpp(name, mode):
            return str(unpacked(Path(source)))
    except PairError:
        raise
    except ValueError as error:
        raise PairError(role, f"{role} {name!r}: {error}") from error
    check_reachable(role, source)
    return source


def check_source(role: str, source: str) -> None:
    """Raise :class:`PairError` unless a source is a saved model's folder, a GGUF file or a possible hub id."""
    path, why = Path(source), ""
    if is_gguf(source):
        if not path.is_file():
            why = "does not exist" + (near_file(path) or ": make it with llama.cpp's convert_hf_to_gguf.py")
        elif os.access(path, os.R_OK):
            with path.open("rb") as file:
                why = "" if file.read(4) == b"GGUF" else "is not a GGUF file: it does not begin with GGUF"
    elif path.is_file():
        why = "must be the folder of a saved model or a .gguf file, but it is another file"
    elif not path.is_dir():
        if Path(f"{source}.json").is_file():  # an alias
            why = "is an artifact: name the model's folder or hub id"
        elif not _HUB_ID.fullmatch(source):
            others = ": name 'stdlib', 'smollm2', a folder, a GGUF file or a hub id (owner/name)"
            why = f"does not exist{near_file(path) or others}"
        elif "/" not in source and get_close_matches(source.partition("-")[0], ["stdlib"], cutoff=0.8):
            why = "must be 'stdlib', 'stdlib-middle' or 'stdlib-small' to name an embedded model"
    elif not (path / "config.json").is_file():
        inside = sorted(path.glob("*.gguf"))
        other = f"name one of its GGUF files, such as {str(inside[0])!r}" if inside else ""
        why = f"is a folder without config.json: {other or 'name the folder of a saved Hugging Face model'}"
    else:
        why = _damage(path)
    if why:
        raise PairError(role, f"{role} {source!r} {why}")


def _damage(folder: Path) -> str:
    """Return why a saved model cannot be read, judging by config.json and weights' headers, or an empty string."""
    files = sorted(folder.glob("*.safetensors"))
    if not files and any(folder.glob("*.bin")):
        return "has its weights in .bin files only: save the model as safetensors"
    if not files:
        return "has no weights: copy its .safetensors files into the folder"
    try:
        if not isinstance(json.loads((folder / "config.json").read_text(encoding="utf-8")), dict):
            raise ValueError("it must hold a mapping")
    except (OSError, ValueError) as error:
        return f"has a config.json that cannot be read: {first_line(error)}"
    try:
        named = json.loads((folder / _INDEX).read_text(encoding="utf-8"))["weight_map"].values()
        if absent := sorted({*named} - {file.name for file in files}):
            return f"lacks {absent[0]}, which its {_INDEX} names: copy it into the folder"
    except FileNotFoundError:
        pass  # its weights are in one file
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return f"is damaged: {_INDEX} cannot be read; copy it again"
    for file in files:
        try:
            size = file.stat().st_size
            with file.open("rb") as opened:
                start = opened.read(8)
                if start == b"version ":  # as a clone without git-lfs leaves it
                    return f"has a pointer of Git LFS instead of {file.name}: run git lfs pull in its folder"
                length = int.from_bytes(start, "little")
                header = json.loads(opened.read(length)) if length < size else {}
            ends = [one["data_offsets"][1] for name, one in header.items() if name != "__metadata__"]
        except OSError as error:  # such as a link to nothing in the hub's cache
            return f"has weights that cannot be read ({file.name}: {error.strerror})"
        except (ValueError, KeyError, TypeError, AttributeError, IndexError):
            ends = []
        if not ends or 8 + length + max(ends) != size:
            return f"is damaged: {file.name} does not have the size that its header states; copy it again"
    return ""


def check_reachable(role: str, source: str) -> bool:
    """Return whether a source must be loaded offline because it is local or the hub is unreachable.

    Raises:
        PairError: the hub is unreachable and the model's configuration is not in the local cache.
    """
    if is_gguf(source) or Path(source).is_dir():
        return True
    from huggingface_hub import constants, try_to_load_from_cache

    why = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else _why_unreachable(constants.ENDPOINT)
    if why and not isinstance(try_to_load_from_cache(source, "config.json"), str):
        raise PairError(
            role,
            f"{role} {source!r} is neither a local folder nor in the cache ({constants.HF_HUB_CACHE}), and the hub "
            f"cannot be reached ({why}): name a local folder, 'smollm2' or 'stdlib', or load it once with a network",
        )
    return bool(why)


@cache  # so that only the first model of a pair waits for the timeout
def _why_unreachable(endpoint: str) -> str:
    """Return why the hub is unreachable, or an empty string if it can be reached."""
    from huggingface_hub import get_session

    try:
        get_session().head(endpoint, timeout=float(os.environ.get("HF_HUB_ETAG_TIMEOUT", _PATIENCE_SECONDS)))
    except Exception as error:  # the HTTP library, and its errors, depend on the client's version
        return f"{endpoint}: {first_line(error)}"
    return ""
