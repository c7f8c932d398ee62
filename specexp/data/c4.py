"""C4 (Raffel et al. 2020, "Exploring the Limits of Transfer Learning"): cleaned web pages."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from specexp.data.raw_text import RawText


class C4(RawText):
    """The first texts of C4's English validation split, ``text, timestamp, url``.

    Args:
        path: a shard (``c4-validation.00000-of-00008.json.gz``), its URL, or the hub data set.
        items: how many texts to read, from the first.
        prompt_tokens: how many tokens of each text are the prompt.
        subset: the subset of a hub data set; a file has none.
        split: the split of a hub data set; a file has none.

    Example::

        C4("c4-validation.00000-of-00008.json.gz", items=100).load()[0]["category"]  # "web_text"
    """

    def __init__(
        self,
        path: str = "allenai/c4",
        items: Annotated[int, Field(ge=1)] = 1000,
        prompt_tokens: Annotated[int, Field(ge=1)] = 128,
        subset: str | None = "en",
        split: str = "validation",
    ) -> None:
        super().__init__(path, "text", "web_text", items, prompt_tokens, subset, split)
