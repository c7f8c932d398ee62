"""SPEED-Bench (Abramovich et al. 2026): 880 prompts in 11 categories, and prompts of 1k to 32k tokens."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from typing_extensions import override

from specexp.data.prompt_set import PromptRow
from specexp.data.row import Row, is_text
from specexp.data.source import SourceTable
from specexp.data.table_prompts import TablePrompts

PLACEHOLDER = "FULL BENCHMARK DATA SHOULD BE FETCHED"
"""What stands on the hub where a prompt is another data set's, and its own script is to fetch it."""
_KEYS = ("question_id", "category", "sub_category", "difficulty", "multiturn")


@dataclass(frozen=True)
class SpeedBench(TablePrompts):
    """A file of SPEED-Bench as its ``prepare.py`` writes it: ``qualitative.jsonl`` (80 prompts of each of 11
    categories) or ``throughput_1k.jsonl`` to ``throughput_32k.jsonl`` (512 prompts of each of three entropies).

    A row has ``question_id, category, sub_category, difficulty, multiturn`` and the user's turns, as ``messages`` or,
    in the hub's own form, as ``turns``. Rows whose text is still to be fetched are refused.

    Args:
        path: the prepared file, on this machine.
        subset: left out: a file is one subset.
        split: left out.

    Example::

        SpeedBench("speed_bench/qualitative.jsonl").load()[0]["category"]  # "coding"
    """

    @override
    def rows(self, table: SourceTable) -> Iterable[PromptRow]:
        said_in = "turns" if table.has("turns") else "messages"
        for row in table.rows(*_KEYS, said_in):
            turns = row.texts("turns") if said_in == "turns" else _of_messages(row)
            if any(PLACEHOLDER in turn for turn in turns):
                raise row.refusal(
                    f": question {row.label('question_id')} is a placeholder; fetch the texts with SPEED-Bench's own "
                    "prepare.py, and give the file it writes."
                )
            yield PromptRow(row.label("question_id"), row.text("category"), turns)


def _of_messages(row: Row) -> list[str]:
    """What the user says, turn by turn; the file has no other messages."""
    given = row.values.get("messages")
    if not isinstance(given, list) or not given:
        raise row.error("messages", "a list of messages of the user", given)
    for message in given:
        if (
            not isinstance(message, dict)
            or message.get("role") != "user"
            or not is_text(message.get("content"))
        ):
            raise row.error("messages", "messages of the user, each with a content", message)
    return [str(message["content"]) for message in given]
