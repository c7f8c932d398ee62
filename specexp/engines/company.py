"""Other requests that a server answers while one of its answers is measured."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from specexp.engines.engine import EngineError

Ask = Callable[[Sequence[int], Callable[[], bool]], object]
"""Asks for the answer to a prompt; gives up when the second argument says that nobody wants it any more."""


@contextmanager
def company(ask: Ask, token_ids: Sequence[int], others: int) -> Iterator[None]:
    """Keep a number of other requests going.

    The n-th of them asks for the same prompt less its last n tokens, again and again, so that every setting that is
    compared has the same company, and no two requests are one to a server that keeps prompts.

    Args:
        ask: Asks the server.
        token_ids: The prompt that is measured.
        others: How many.
    """
    ended = threading.Event()

    def keep_asking(shortened: Sequence[int]) -> None:
        while not ended.is_set():
            try:
                ask(shortened, ended.is_set)
            except EngineError:  # of a server that fails, the measured answer tells
                return

    threads = [
        threading.Thread(
            target=keep_asking, args=(token_ids[: max(1, len(token_ids) - number)],), daemon=True
        )
        for number in range(1, others + 1)
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join()
