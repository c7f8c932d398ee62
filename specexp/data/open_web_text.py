"""OpenWebText (Gokaslan and Cohen 2019): web pages that were linked from Reddit."""

from __future__ import annotations

from dataclasses import dataclass

from specexp.data.raw_text import RawText


@dataclass(frozen=True)
class OpenWebText(RawText):
    """The first texts of OpenWebText, ``text``.

    Example::

        OpenWebText("openwebtext.jsonl", items=100).load()[0]["category"]  # "web_text"
    """

    # The repository itself needs a loading script, which datasets no longer runs; the hub's conversion does not.
    path: str = "hf://datasets/Skylion007/openwebtext@refs/convert/parquet/**/*.parquet"
    category: str = "web_text"
