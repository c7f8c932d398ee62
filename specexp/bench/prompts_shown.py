"""What a report shows of single prompts: their text, the output token by token, and what its steps gave."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from specexp.bench.publish import Report
from specexp.bench.record import PromptRecord
from specexp.bench.table import Cell, Column, Table

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from specexp.data import Prompt


def texts_of(prompts: Iterable[Prompt]) -> dict[str, str]:
    """The text of prompts by id."""
    return {prompt.prompt_id: "\n".join(prompt.turns) for prompt in prompts}


def prompts_shown(
    texts: Mapping[str, str],
    records: Sequence[PromptRecord],
    titles: Mapping[str, str],
    tokenizer: PreTrainedTokenizerBase | None,
) -> Report:
    """The part of a report about single prompts: a table for programs, a chart, and a section of the page.

    Args:
        texts: Prompts by id.
        records: Records of the run.
        titles: Arms to show, the one whose output is shown first, with their names for a person.
        tokenizer: The target's; None where there is none, and no output is shown.
    """
    from specexp.bench.page.sections import prompt_section
    from specexp.bench.page.step_charts import phases_chart, steps_chart

    alone = [record for record in records if record.group is None]
    first = next(iter(titles), "")
    charts = {
        "steps": steps_chart(alone, first, titles.get(first, ""), texts),
        "phases": phases_chart(records, titles),
    }
    section = "" if tokenizer is None else prompt_section(texts, alone, titles, tokenizer.decode)
    return Report(
        data={"prompts": _table(texts, records, titles)},
        charts={name: chart for name, chart in charts.items() if chart is not None},
        fragments={"prompts": section} if section else {},
    )


def _table(texts: Mapping[str, str], records: Sequence[PromptRecord], titles: Mapping[str, str]) -> Table:
    heads = ("prompt", "text", "arm", "sample", "new tokens", "tokens per step", "seconds per token", "equal")
    table = Table("Prompts", [Column(head) for head in heads])
    for record in records:
        if record.error or record.arm not in titles:
            continue
        row: list[Cell] = [
            record.prompt_id,
            texts.get(record.prompt_id, ""),
            titles[record.arm],
            record.sample,
        ]
        row += [record.new_tokens, record.tokens_per_step, record.seconds_per_token]
        table.rows.append([*row, "yes" if record.difference is None else "parts"])
    return table
