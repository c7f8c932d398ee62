"""CNN/DailyMail (Hermann et al. 2015; See et al. 2017): news articles."""

from __future__ import annotations

from dataclasses import dataclass

from specexp.data.raw_text import RawText


@dataclass(frozen=True)
class CNNDailyMail(RawText):
    """The first articles of CNN/DailyMail's test split, ``article, highlights, id``.

    Example::

        CNNDailyMail("cnn_dailymail.parquet", items=100).load()[0]["category"]  # "news"
    """

    path: str = "abisee/cnn_dailymail"
    subset: str | None = "3.0.0"
    split: str = "test"
    key: str = "article"
    category: str = "news"
