"""Where the models of a pair come from, and whether their files are there: looked at without torch."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

from specexp.core.messages import first_line
from specexp.models.gguf import is_gguf

PAIRS = Path(__file__).parent
_HUB_ID = re.compile(r"[\w-][\w.-]*(/[\w.-]+)?")
_TOKENIZERS = (
    *(
        "tokenizer.json",
        "tokenizer.model",
        "tokenizer_config.json",
        "vocab.json",
        "vocab.txt",
        "spiece.model",
    ),
    *("sentencepiece.bpe.model", "tekken.json"),
)
"""Files one of which a saved tokenizer has."""


class PairError(ValueError):
    """A pair that cannot be loaded.

    Args:
        argument: the argument of :func:`~specexp.models.pair.load_pair` whose value is to blame.
        sentence: what is wrong with it.
    """

    def __init__(self, argument: str, sentence: str) -> None:
        super().__init__(sentence)
        self.argument = argument


def sources_of(target: str, draft: str | None = None) -> tuple[str, str | None]:
    """Hub ids or folders of target and draft, embedded ones by their names; None where there is no draft.

    ``stdlib`` is the embedded pair, as a target and as a draft; ``stdlib-SIZE`` is the embedded target or draft of
    another size, and an embedded target's draft is the family's own unless another is named.

    Args:
        target: a target as :func:`~specexp.models.pair.load_pair` takes it.
        draft: a draft as :func:`~specexp.models.pair.load_pair` takes it.

    Example:
        >>> sources_of("my/target")
        ('my/target', None)
    """
    here = _embedded("target", target)
    if here is not None and draft is None:
        draft = target.partition("-")[0]
    return here or target, draft and (_embedded("draft", draft) or draft)


def embedded_artifact(name: str) -> Path | None:
    """The folder of an artifact that is embedded with its models, ``FAMILY:NAME``; None where that is none.

    Example:
        >>> embedded_artifact("my/head") is None
        True
    """
    family, _, artifact = name.partition(":")
    folder = PAIRS / family / artifact
    return folder if re.fullmatch(r"\w+:\w+", name) and (folder / "artifact.json").is_file() else None


def _embedded(role: str, name: str) -> str | None:
    """The folder of an embedded model: of ``family``, or of another size where its name is ``family-size``."""
    family, _, size = name.partition("-")
    folder = PAIRS / family / "-".join(filter(None, (role, size)))
    return str(folder) if re.fullmatch(r"\w+(-\w+)?", name) and folder.is_dir() else None


def check_source(role: str, source: str) -> None:
    """Refuse what is neither a folder with a whole model nor looks like a hub id.

    Raises:
        PairError: it says which file is missing, unreadable or cut short.
    """
    folder = Path(source)
    if is_gguf(source):
        if not folder.is_file():
            raise PairError(
                role, f"{role} {source!r} is no existing file; specexp.export --to gguf writes one"
            )
        return
    if folder.is_file():
        raise PairError(
            role, f"{role} {source!r} is a file; the folder of a saved model, or a .gguf file, is expected"
        )
    if not folder.is_dir():
        if not _HUB_ID.fullmatch(source) or folder.exists():
            raise PairError(
                role,
                f"{role} {source!r} is no existing folder; expected 'stdlib', a folder, a GGUF file or a hub id "
                "(owner/name)",
            )
        return
    if not (folder / "config.json").is_file():
        if inside := sorted(folder.glob("*.gguf")):
            raise PairError(
                role,
                f"{role} {source!r} is a folder of GGUF files; name one of them, such as {str(inside[0])!r}",
            )
        raise PairError(
            role, f"{role} {source!r} is a folder without config.json; a saved Hugging Face model is expected"
        )
    _read_json(role, folder / "config.json")
    if not any((folder / name).is_file() for name in _TOKENIZERS) and not [*folder.glob("*.tiktoken")]:
        raise PairError(
            role,
            f"{role} {source!r} has no tokenizer, such as tokenizer.json: save it in this folder too, with its "
            "save_pretrained",
        )
    weights_of(role, source)


def not_here(role: str, source: str, offline: str) -> PairError:
    """What is neither a local folder nor whole in the cache."""
    from huggingface_hub import constants

    return PairError(
        role,
        f"{role} {source!r} is no local folder and is not whole in the cache ({constants.HF_HUB_CACHE}), and the hub "
        f"cannot be asked for it ({offline}): name a local folder or 'stdlib', or load it once with a network",
    )


def weights_of(role: str, source: str) -> dict[str, Sequence[int]]:
    """Shapes of all tensors of a folder by name, from the headers of its files; no tensor is read.

    Raises:
        PairError: there are none, or a file is missing or cut short.
    """
    folder = Path(source)
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        named: dict[str, str] = _read_json(role, index).get("weight_map") or {}
        files = [folder / name for name in sorted(set(named.values()))]
    else:
        files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise PairError(
            role,
            f"{role} {source!r} holds no weights in safetensors: save the model again with save_pretrained, which "
            "writes model.safetensors",
        )
    found: dict[str, Sequence[int]] = {}
    for file in files:
        if not file.is_file():
            raise PairError(
                role, f"{role} {source!r} lacks {file.name}, which its index names: copy it there"
            )
        found |= _header(role, file)
    return found


def _header(role: str, file: Path) -> dict[str, Sequence[int]]:
    """Name and shape of each tensor of a file, which must be as long as it says."""
    try:
        with file.open("rb") as opened:
            size = int.from_bytes(opened.read(8), "little")
            if size > file.stat().st_size:
                raise ValueError("its header is longer than the file")
            header = json.loads(opened.read(size))
        tensors = {name: entry for name, entry in header.items() if name != "__metadata__"}
        end = max((entry["data_offsets"][1] for entry in tensors.values()), default=0)
        if 8 + size + end != file.stat().st_size:
            raise ValueError(f"{file.stat().st_size} bytes long and not {8 + size + end}")
        return {name: entry["shape"] for name, entry in tensors.items() if prod(entry["shape"]) >= 0}
    except (OSError, ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise PairError(
            role, f"{role}: {file} is no whole safetensors file ({first_line(error)}): copy it again"
        ) from error


def _read_json(role: str, path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise PairError(role, f"{role}: {path} cannot be read ({first_line(error)})") from error
    if not isinstance(content, dict):
        raise PairError(role, f"{role}: {path} holds no JSON object, and a saved model's does")
    return content
