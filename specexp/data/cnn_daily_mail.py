"""CNN/DailyMail (Hermann et al. 2015; See et al. 2017): news articles."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from specexp.data.raw_text import RawText


class CNNDailyMail(RawText):
    """The first articles of CNN/DailyMail's test split, ``article, highlights, id``.

    Args:
        path: a file, its URL, or the hub data set.
        items: how many articles to read, from the first.
        prompt_tokens: how many tokens of each article are the prompt.
        subset: the subset of a hub data set; a file has none.
        split: the split of a hub data set; a file has none.

    Example::

        CNNDailyMail("cnn_dailymail.parquet", items=100).load()[0]["category"]  # "news"
    """

    def __init__(
        self,
        path: str = "abisee/cnn_dailymail",
        items: Annotated[int, Field(ge=1)] = 1000,
        prompt_tokens: Annotated[int, Field(ge=1)] = 128,
        subset: str | None = "3.0.0",
        split: str = "test",
    ) -> None:
        super().__init__(path, "article", "news", items, prompt_tokens, subset, split)
