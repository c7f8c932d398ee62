"""Held-out text of the embedded pair's own domains as prompts: problems to be solved, and openings to be continued."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field
from typing_extensions import override

from specexp.data.prompt_set import PromptRow, PromptSet, PromptSetError, prompt_rows
from specexp.data.training_text import TextSource, fingerprint

if TYPE_CHECKING:
    from datasets import Dataset

MAX_CHARACTERS = 600


class HeldOut(PromptSet):
    """Prompts out of a source of training text, from its held-out texts.

    Of a source whose problems can be checked every problem is asked as its task asks it; of others a prompt is the
    beginning of a text. The category is the source, or the kind of problem.

    Args:
        source: whose texts; the same arguments as in training hold the same texts out.
        split: a search uses ``validation``, and the confirmed figures come from ``test``.
        items: at most so many prompts.

    Example::

        HeldOut(Arithmetic(), "test", items=1).load()[0]["turns"]  # ["Solve each problem in small steps. ..."]
    """

    def __init__(
        self,
        source: TextSource,
        split: Literal["validation", "test"] = "test",
        items: Annotated[int, Field(ge=1)] = 200,
    ) -> None:
        self.source = source
        self.split: Literal["validation", "test"] = split
        self.items = items

    @override
    def load(self) -> Dataset:
        name = type(self.source).__name__
        try:
            rows = list(islice(self._rows(name), self.items))
        except ValueError as error:
            raise PromptSetError(str(error), ("prompts", "init_args", "source")) from error
        return prompt_rows({row.prompt_id: row for row in rows}.values(), where=f"HeldOut({name})")

    def _rows(self, name: str) -> Iterator[PromptRow]:
        asked = False
        for probe in self.source.probes(self.split):
            asked = True
            yield PromptRow(f"{name}-{fingerprint(probe.prompt)[:12]}", probe.kind, [probe.prompt])
        for text in () if asked else self.source.texts(self.split):
            yield PromptRow(f"{text.name}-{fingerprint(text.text)[:12]}", name, [opening(text.text)])


def opening(text: str) -> str:
    """The first lines of a text, about 40 % of it but no more than 600 characters, as a prompt to be continued.

    It ends after a line break and before a line that is not blank; of a single line, before a blank. Tokenizers join
    successive line breaks, and a blank with the word after it.

    Example:
        >>> opening("one\\ntwo\\n\\nthree\\nfour\\nfive\\n"), opening("one line alone")
        ('one\\ntwo\\n\\n', 'one')
    """
    kept = ""
    for line in text.splitlines(keepends=True):
        if kept and line.strip() and len(kept) + len(line) > min(MAX_CHARACTERS, 0.4 * len(text)):
            break
        kept += line
    return kept if len(kept) < len(text) else text[: len(text) // 2].rsplit(maxsplit=1)[0]
