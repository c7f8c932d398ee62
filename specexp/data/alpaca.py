"""Alpaca (Taori et al. 2023): instructions, some with an input to work on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from typing_extensions import override

from specexp.data.prompt_set import PromptRow
from specexp.data.row import Row
from specexp.data.source import SourceTable
from specexp.data.table_prompts import TablePrompts


@dataclass(frozen=True)
class Alpaca(TablePrompts):
    """``alpaca_data.json``, ``instruction, input, output``: the instruction, a blank line, the input.

    Rows have no name of their own, so the row number, from 0, is the prompt id.

    Example::

        Alpaca("alpaca_data.json").load()[0]["turns"]  # ["Sort these numbers.\\n\\n3, 1, 2"]
    """

    path: str = "tatsu-lab/alpaca"

    @override
    def rows(self, table: SourceTable) -> Iterable[PromptRow]:
        for row in table.rows("instruction", "input"):
            yield PromptRow(str(row.number - 1), "instruction", [_prompt(row)])


def _prompt(row: Row) -> str:
    instruction = row.text("instruction")
    # Most rows have no input, written as an empty text.
    return f"{instruction}\n\n{row.text('input')}" if row.values.get("input") else instruction
