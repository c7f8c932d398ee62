"""OpenWebText (Gokaslan and Cohen 2019): web pages that were linked from Reddit."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from specexp.data.raw_text import RawText


class OpenWebText(RawText):
    """The first texts of OpenWebText, ``text``.

    Args:
        path: a file, its URL, or a hub data set.
        items: how many texts to read, from the first.
        prompt_tokens: how many tokens of each text are the prompt.
        subset: the subset of a hub data set; a file has none.
        split: the split of a hub data set; a file has none.

    Example::

        OpenWebText("openwebtext.jsonl", items=100).load()[0]["category"]  # "web_text"
    """

    def __init__(
        self,
        # The repository itself needs a loading script, which datasets no longer runs; the hub's conversion does not.
        path: str = "hf://datasets/Skylion007/openwebtext@refs/convert/parquet/**/*.parquet",
        items: Annotated[int, Field(ge=1)] = 1000,
        prompt_tokens: Annotated[int, Field(ge=1)] = 128,
        subset: str | None = None,
        split: str = "train",
    ) -> None:
        super().__init__(path, "text", "web_text", items, prompt_tokens, subset, split)
