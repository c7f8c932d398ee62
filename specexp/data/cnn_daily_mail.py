"""CNN/DailyMail (Hermann et al. 2015; See et al. 2017): news articles."""

from typing import Annotated

from pydantic import Field

from specexp.data.raw_text import RawText


class CNNDailyMail(RawText):
    """The first articles of CNN/DailyMail's test split, ``article, highlights, id``.

    Args:
        path: A file, its URL, or the hub data set.
        items: How many articles to read, from the first.
        prompt_tokens: How many tokens of each article are the prompt.
        subset: Of a hub data set; a file has none.
        split: Of a hub data set; a file has none.

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
