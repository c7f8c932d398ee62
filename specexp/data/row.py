"""One row of a source of prompts, which knows where it stands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from specexp.core.messages import shown
from specexp.data.prompt_set import PromptSetError


@dataclass(frozen=True)
class Row:
    """One row of a source.

    Attributes:
        where: the source, as errors call it.
        number: counted from 1.
        values: by column.
        place: where in the source it stands, e.g. ``line 3``; ``row`` and the number where it says nothing better.
    """

    where: str
    number: int
    values: dict[str, Any]
    place: str = ""

    def text(self, key: str) -> str:
        """The text under ``key``; raises PromptSetError when it is missing, blank or no text."""
        value = self.values.get(key)
        if not is_text(value):
            raise self.error(key, "a text that is not blank", value)
        return str(value)

    def texts(self, key: str) -> list[str]:
        """The texts under ``key``, at least one; raises PromptSetError when it is anything else."""
        value = self.values.get(key)
        if not isinstance(value, list) or not value:
            raise self.error(key, "a list of one or more texts", value)
        for item in value:
            if not is_text(item):
                raise self.error(key, "a list of texts that are not blank", value)
        return value

    def label(self, key: str) -> str:
        """The identifier under ``key``, a text or a whole number, as text."""
        value = self.values.get(key)
        return str(value) if isinstance(value, int) else self.text(key)

    def error(self, key: str, expected: str, given: object) -> PromptSetError:
        """What to raise when the value under ``key`` is not what was expected."""
        half = isinstance(given, str) and any("\ud800" <= mark <= "\udfff" for mark in given)
        holds = ", which holds half a surrogate pair" if half else ""
        return self.refusal(f", key {key!r}: expected {expected}, found {shown(given)}{holds}.")

    def refusal(self, sentence: str) -> PromptSetError:
        """What to raise of the row; the sentence goes on after where it stands."""
        return PromptSetError(f"{self.where}: {self.place or f'row {self.number}'}{sentence}")


def is_text(value: object) -> bool:
    """Whether a value is a text that is not blank and can be written as UTF-8 (JSON can hold half a character)."""
    if not isinstance(value, str) or not value.strip():
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
