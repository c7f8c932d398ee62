"""Read a table of prompts: from a local file, a folder, a URL or the Hugging Face hub.

Everything that can go wrong with a source is told here, once, in one sentence that names the source.
"""

from __future__ import annotations

import difflib
import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from fsspec import available_protocols

from specexp.core.messages import first_line
from specexp.data.prompt_set import PromptSetError
from specexp.data.row import Row
from specexp.data.text_file import TEXT_ENDINGS, text_rows

PATH = ("prompts", "init_args", "path")
"""Key of the source, where it is what is wrong."""
READERS = {".json": "json", ".jsonl": "json", ".txt": "text", ".parquet": "parquet", ".csv": "csv"}
COMPRESSIONS = {".gz", ".bz2", ".xz", ".zst"}
_SAVED = {"state.json", "dataset_dict.json"}
"""Files of a folder that ``datasets`` saved; the second of one with splits."""


@dataclass(frozen=True)
class SourceTable:
    """Rows as they stand in a source."""

    where: str
    all_rows: Sequence[Row]

    def rows(self, *keys: str) -> Iterator[Row]:
        """The rows, in order.

        Raises:
            PromptSetError: one of ``keys`` is not a column; the message names the nearest one.
        """
        self._require(keys)
        yield from self.all_rows

    def has(self, key: str) -> bool:
        """Whether the source has a column of this name."""
        return key in self._columns()

    def _columns(self) -> list[str]:
        return list(dict.fromkeys(key for row in self.all_rows for key in row.values))

    def _require(self, keys: Sequence[str]) -> None:
        present = self._columns()
        for key in keys:
            if key not in present:
                near = difflib.get_close_matches(key, present, n=1)
                hint = f"; did you mean {near[0]!r}?" if near else "; is this the right prompt set for it?"
                raise PromptSetError(
                    f"{self.where}: no key {key!r} among {', '.join(map(repr, present))}{hint}"
                )


def read_table(
    path: str, *, subset: str | None = None, split: str = "train", limit: int | None = None
) -> SourceTable:
    """The rows of a source, at least one; see :func:`read_rows`.

    Raises:
        PromptSetError: as :func:`read_rows`; or it has no row.

    Example::

        read_table("gsm8k/test.jsonl").has("question")  # True
        read_table("openai/gsm8k", subset="main", split="test")
    """
    rows = list(islice(read_rows(path, subset=subset, split=split, streaming=limit is not None), limit))
    if not rows:
        raise PromptSetError(f"{path}: the data set is empty; at least one prompt is needed.")
    return SourceTable(path, rows)


def read_rows(
    path: str, *, subset: str | None = None, split: str = "train", streaming: bool = True
) -> Iterator[Row]:
    """The rows of a source, one after the other; of a local one nothing is read beyond the last that is taken.

    Args:
        path: a local file in its original format (``.json``, ``.jsonl``, ``.txt``, ``.parquet``, ``.csv``,
            also compressed), a URL of one (``https://`` or ``hf://``), a folder that ``datasets`` saved, one laid out
            like a hub repository, or the name of a hub data set, ``owner/name``.
        subset: the subset of a hub data set or folder; a single file has none.
        split: the split of a hub data set or folder; a single file has none.
        streaming: whether no more of a hub data set is downloaded than is taken; otherwise ``datasets`` keeps all of it
            in its cache.

    Raises:
        PromptSetError: there is no such source, or it is not in the format its name says.
    """
    local = Path(path).expanduser()
    ending = _ending(path)
    if "://" not in path and ending in TEXT_ENDINGS and _is_file(local):
        return text_rows(local, path, ending)
    return _rows_of_datasets(path, local, subset, split, streaming)


def _rows_of_datasets(
    path: str, local: Path, subset: str | None, split: str, streaming: bool
) -> Iterator[Row]:
    """The rows of whatever is no text file here, read with ``datasets``."""
    here = "://" not in path and _exists(local)
    try:
        saved = here and local.is_dir() and not _SAVED.isdisjoint(entry.name for entry in local.iterdir())
        arguments = {} if saved else _load_arguments(path, local, subset, split)
        import datasets  # takes a second: what is not there is told before

        with _silent():
            if saved:
                values = _split_of(datasets.load_from_disk(str(local)), path, split)
            else:
                # A local file needs no second copy in a cache, which may be on a disk we cannot write to.
                values = datasets.load_dataset(**arguments, streaming=streaming or here)
            for number, row in enumerate(values, start=1):
                yield Row(path, number, row)
    except PromptSetError:
        raise
    except Exception as error:  # datasets, pyarrow, fsspec and the hub client each raise their own
        if here or "://" in path:
            raise PromptSetError(f"{path}: cannot be read ({_reason(error)}).") from error
        raise PromptSetError(
            f"{path}: there is no such file{_near(local)}, and as a hub data set it cannot be read "
            f"({_reason(error)}). Without network, give a local file as its path.",
            PATH,
        ) from error


def _split_of(saved: Any, path: str, split: str) -> Any:
    """One split of what ``datasets`` saved: the one that is named, or the only one."""
    if not isinstance(saved, dict):
        return saved
    if len(saved) == 1:
        return next(iter(saved.values()))
    if split not in saved:
        raise PromptSetError(
            f"{path}: it has no split {split!r}; allowed are {', '.join(map(str, saved))}.",
            ("prompts", "init_args", "split"),
        )
    return saved[split]


def _load_arguments(path: str, local: Path, subset: str | None, split: str) -> dict[str, Any]:
    """The arguments of ``load_dataset`` for a source, which is not opened yet."""
    reader = READERS.get(_ending(path))
    scheme = path.partition("://")[0]
    if "://" in path and scheme not in available_protocols():
        raise PromptSetError(
            f"{path}: {scheme}:// is not known; allowed are https://, http://, hf:// and file://", PATH
        )
    if "://" in path or _is_file(local):
        if reader is None:
            raise PromptSetError(
                f"{path}: its format is not known; the name has to end in {_formats()}.", PATH
            )
        if "://" not in path and local.stat().st_size == 0:
            raise PromptSetError(f"{path}: the data set is empty; at least one prompt is needed.")
        return {"path": reader, "data_files": path if "://" in path else str(local), "split": "train"}
    if _exists(local) and local.is_dir():
        if (local / "config.json").is_file() and any(local.glob("*.safetensors")):
            raise PromptSetError(f"{path}: the folder holds a model; a file of prompts is expected.", PATH)
        if not any(_ending(entry.name) in READERS for entry in local.rglob("*")):
            raise PromptSetError(
                f"{path}: the folder holds no data set: neither one saved by datasets (state.json) nor a file that "
                f"ends in {_formats()}.",
                PATH,
            )
        return {"path": str(local.resolve()), "name": subset, "split": split}
    if reader is None and re.fullmatch(r"[\w.-]+/[\w.-]+", path) and not path.startswith("."):
        return {"path": path, "name": subset, "split": split}
    what = "is no plain file" if _exists(local) else "there is no such file"
    hub = "" if reader is not None else ", and it is not a hub name (owner/name)"
    allowed = f"a file that ends in {_formats()}, its URL, a folder of datasets, and a hub name (owner/name)"
    raise PromptSetError(f"{path}: {what}{hub}{_near(local) or f'; allowed are {allowed}.'}", PATH)


def _is_file(path: Path) -> bool:
    """Whether there is such a plain file."""
    return _exists(path) and path.is_file()


def _exists(path: Path) -> bool:
    """Whether there is something of this name; a name that no file can have names nothing."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def _near(path: Path) -> str:
    """The name beside it that is nearest."""
    try:
        beside = [entry.name for entry in path.parent.iterdir() if entry.name != path.name]
    except (OSError, ValueError):
        return ""
    near = difflib.get_close_matches(path.name, beside, n=1, cutoff=0.8)  # an ending alone is alike too often
    return f"; did you mean {str(path.parent / near[0])!r}?" if near else ""


def _ending(path: str) -> str:
    """What the name ends in, without that of a compression."""
    suffixes = [suffix.lower() for suffix in Path(path).suffixes]
    if suffixes and suffixes[-1] in COMPRESSIONS:
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def _formats() -> str:
    return ", ".join(READERS) + f" (or one of them with {', '.join(sorted(COMPRESSIONS))})"


@contextmanager
def _silent() -> Iterator[None]:
    """Keep ``datasets`` from telling on its own what is told here in one sentence."""
    logger = logging.getLogger("datasets")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(level)


def _reason(error: BaseException) -> str:
    """The innermost cause in one line: datasets wraps what pyarrow or the network said."""
    while error.__cause__ is not None:
        error = error.__cause__
    return first_line(error)
