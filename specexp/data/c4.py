"""C4 (Raffel et al. 2020, "Exploring the Limits of Transfer Learning"): cleaned web pages."""

from __future__ import annotations

from dataclasses import dataclass

from specexp.data.raw_text import RawText


@dataclass(frozen=True)
class C4(RawText):
    """The first texts of C4's English validation split, ``text, timestamp, url``; a shard is a file.

    Example::

        C4("c4-validation.00000-of-00008.json.gz", items=100).load()[0]["category"]  # "web_text"
    """

    path: str = "allenai/c4"
    subset: str | None = "en"
    split: str = "validation"
    category: str = "web_text"
