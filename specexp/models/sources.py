"""The sources of models: embedded models, folders, GGUF files and hub ids. Imports no torch."""

from __future__ import annotations

import os
import re
from difflib import get_close_matches
from functools import cache
from pathlib import Path

from specexp.core.messages import first_line
from specexp.models.gguf import is_gguf, is_local

PAIRS = Path(__file__).parent
_HUB_ID = re.compile(r"[\w-][\w.-]*(/[\w.-]+)?")
_PATIENCE_SECONDS = 5.0  # for the hub's first answer; the hub's client itself retries for most of a minute


class PairError(ValueError):
    """A pair that cannot be loaded; ``argument`` is the argument of :func:`~specexp.models.pair.load_pair` to blame."""

    def __init__(self, argument: str, sentence: str) -> None:
        super().__init__(sentence)
        self.argument = argument


def sources_of(target: str, draft: str | None = None) -> tuple[str, str | None]:
    """Return hub ids, folders or files of target and draft; None where there is no draft.

    ``stdlib`` is the embedded pair, as a target and as a draft; ``stdlib-SIZE`` is an embedded model of another size,
    in either role. An embedded target's draft is the family's own unless another is named.

    Example:
        >>> sources_of("my/target")
        ('my/target', None)
    """
    here = _embedded("target", target)
    if here is not None and draft is None:
        draft = target.partition("-")[0]
    return here or target, draft and (_embedded("draft", draft) or draft)


def embedded_artifact(name: str) -> Path | None:
    """Return the folder of ``FAMILY:NAME``, an artifact that is embedded with its models; None if there is none.

    Example:
        >>> embedded_artifact("my/head") is None
        True
    """
    family, _, artifact = name.partition(":")
    folder = PAIRS / family / artifact
    return folder if re.fullmatch(r"\w+:\w+", name) and (folder / "artifact.json").is_file() else None


def _embedded(role: str, name: str) -> str | None:
    """Return the folder of the embedded model ``family``, which has one for each role, or ``family-size``."""
    family, _, size = name.partition("-")
    folder = PAIRS / family / (size or role)
    return str(folder) if re.fullmatch(r"\w+(-\w+)?", name) and (folder / "config.json").is_file() else None


def checked_sources(target: str, draft: str | None = None) -> tuple[str, str | None]:
    """Return :func:`sources_of` target and draft; raise :class:`PairError` if one is wrong or cannot be reached."""
    sources = sources_of(target, draft)
    for role, source in zip(("target", "draft"), sources, strict=True):
        if source is not None:
            check_source(role, source)
            check_reachable(role, source)
    return sources


def check_source(role: str, source: str) -> None:
    """Raise :class:`PairError` unless a source is a saved model's folder, a GGUF file, or can be a hub id."""
    path, why = Path(source), ""
    if is_gguf(source):
        if not path.is_file():
            why = "is no existing file; llama.cpp's convert_hf_to_gguf.py writes one"
    elif path.is_file():
        why = "is a file; the folder of a saved model, or a .gguf file, is expected"
    elif not path.is_dir():
        if not _HUB_ID.fullmatch(source):
            why = "is no existing folder; expected 'stdlib', a folder, a GGUF file or a hub id (owner/name)"
        elif "/" not in source and get_close_matches(source.partition("-")[0], ["stdlib"], cutoff=0.8):
            why = "is no embedded model; there are 'stdlib', 'stdlib-middle' and 'stdlib-small'"
    elif not (path / "config.json").is_file():
        inside = sorted(path.glob("*.gguf"))
        other = f"name one of its GGUF files, such as {str(inside[0])!r}" if inside else ""
        why = f"is a folder without config.json; {other or 'a saved Hugging Face model is expected'}"
    if why:
        raise PairError(role, f"{role} {source!r} {why}")


def check_reachable(role: str, source: str) -> bool:
    """Return whether a source must be loaded without the hub: it is local, or the hub cannot be reached.

    Raises:
        PairError: the hub cannot be reached, and the cache does not hold the model's configuration.
    """
    if is_local(source):
        return True
    from huggingface_hub import constants, try_to_load_from_cache

    why = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else _why_unreachable(constants.ENDPOINT)
    if why and not isinstance(try_to_load_from_cache(source, "config.json"), str):
        raise PairError(
            role,
            f"{role} {source!r} is no local folder and is not in the cache ({constants.HF_HUB_CACHE}), and the hub "
            f"cannot be asked for it ({why}): name a local folder or 'stdlib', or load it once with a network",
        )
    return bool(why)


@cache  # or each model of a pair would wait for it
def _why_unreachable(endpoint: str) -> str:
    """Return the reason why the hub cannot be reached; empty if it can."""
    from huggingface_hub import get_session

    try:
        get_session().head(endpoint, timeout=float(os.environ.get("HF_HUB_ETAG_TIMEOUT", _PATIENCE_SECONDS)))
    except Exception as error:  # of the client's HTTP library, which one depends on its version
        return f"{endpoint} cannot be reached: {first_line(error)}"
    return ""
