"""Published prompt sets, such as HumanEval and GSM8K, and raw text. Each is read from one table."""

from __future__ import annotations

import json
from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

from pydantic import Field
from typing_extensions import override

from specexp.data.prompt_set import PromptRow, PromptSet, prompt_rows
from specexp.data.source import Row, check_columns, read_table

if TYPE_CHECKING:
    from datasets import Dataset

MT_BENCH_CATEGORIES = frozenset(
    {"writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"}
)


class PromptColumns(NamedTuple):
    """The names of the columns that contain the prompts."""

    turns: str  # column with the turns: one text or a list of texts
    prompt_id: str | None = None  # None: the prompt id is the row number, from 0
    category: str | None = None  # None: ``name`` is the category of all rows
    name: str = ""
    others: tuple[str, ...] = ()  # other columns that the table must have


_QUESTIONS = PromptColumns("turns", "question_id", "category")


@dataclass(frozen=True)
class TablePrompts(PromptSet):
    """A prompt set read from a table in its published format. A subclass names the columns that contain the prompts.

    Args:
        path: a file in the published format, its URL, or the name of a hub data set.
        subset: subset of the hub data set.
        split: split of the hub data set.

    Example::

        @dataclass(frozen=True)
        class Riddles(TablePrompts):
            path: str = "owner/riddles"
            columns = (PromptColumns("text", "id", name="riddle"),)
    """

    path: str
    subset: str | None = None
    split: str = "train"

    @property
    @abstractmethod
    def columns(self) -> tuple[PromptColumns, ...]:
        """Possible layouts of the table. The first with an existing ``turns`` column is used, otherwise the last."""

    @property
    def limit(self) -> int | None:
        """The maximum number of rows to read; None for all."""
        return None

    def category_of(self, name: str) -> str | None:
        """Map a table row's category to the prompt's category. Return None to skip the row."""
        return name

    def turns_of(self, row: Row, column: str) -> list[str]:
        """Return the turns of a row, read from ``column``."""
        return row.texts(column) if isinstance(row.values[column], list) else [row.text(column)]

    @override
    def load(self) -> Dataset:
        rows = read_table(self.path, subset=self.subset, split=self.split, limit=self.limit)
        columns = next((one for one in self.columns if one.turns in rows[0].values), self.columns[-1])
        turns, prompt_id, category, name, others = columns
        check_columns(rows, [key for key in (prompt_id, category, *others, turns) if key is not None])
        prompts = []
        for row in rows:
            group = name if category is None else self.category_of(row.text(category))
            if group is not None:
                label = str(row.number - 1) if prompt_id is None else row.label(prompt_id)
                prompts.append(PromptRow(label, group, self.turns_of(row, turns)))
        return prompt_rows(prompts, where=self.path)


@dataclass(frozen=True)
class SpecBench(TablePrompts):
    """Spec-Bench (Xia et al. 2024), with the columns ``question_id, category, turns, reference``.

    The eight MT-bench categories become one category, ``multi-turn conversation``, as in the benchmark's own tables.
    :class:`MTBench` reads the same file and keeps them separate.
    """

    path: str = "https://raw.githubusercontent.com/hemingkx/Spec-Bench/main/data/spec_bench/question.jsonl"
    columns = (_QUESTIONS,)

    @override
    def category_of(self, name: str) -> str:
        return "multi-turn conversation" if name in MT_BENCH_CATEGORIES else name


@dataclass(frozen=True)
class MTBench(TablePrompts):
    """MT-bench (Zheng et al. 2023), with the columns ``prompt_id, category, prompt`` as on the hub.

    Files with the columns ``question_id, category, turns``, such as Spec-Bench's, also work. Rows in other categories
    are skipped.
    """

    path: str = "HuggingFaceH4/mt_bench_prompts"
    columns = (PromptColumns("prompt", "prompt_id", "category"), _QUESTIONS)

    @override
    def category_of(self, name: str) -> str | None:
        return name if name in MT_BENCH_CATEGORIES else None


@dataclass(frozen=True)
class HumanEval(TablePrompts):
    """HumanEval (Chen et al. 2021). A prompt is the signature and docstring of a function to complete."""

    path: str = "openai/openai_humaneval"
    split: str = "test"
    columns = (PromptColumns("prompt", "task_id", name="code"),)
    continued = True


@dataclass(frozen=True)
class MBPP(TablePrompts):
    """MBPP (Austin et al. 2021) in either of two formats, which are recognized by their columns.

    - ``question_id, category, turns``: the Spec-Bench format, which Token Recycling uses.
    - ``task_id, text, test_list``: the original format. The prompt is a docstring with the task and its first test, as
      in the other format, but it ends with a line break.
    """

    path: str = "google-research-datasets/mbpp"
    subset: str | None = "full"
    split: str = "test"
    columns = (_QUESTIONS, PromptColumns("text", "task_id", name="code", others=("test_list",)))

    @override
    def turns_of(self, row: Row, column: str) -> list[str]:
        if column != "text":
            return super().turns_of(row, column)
        task = row.text("text")
        first_test = row.texts("test_list")[0]
        return [f'Create a Python script for this problem:\n```python\n"""\n{task}\n{first_test}\n"""\n\n```\n']


@dataclass(frozen=True)
class GSM8K(TablePrompts):
    """GSM8K (Cobbe et al. 2021). The prompt is the question, and its id is the row number, counted from 0."""

    path: str = "openai/gsm8k"
    subset: str | None = "main"
    split: str = "test"
    columns = (PromptColumns("question", name="math_reasoning"),)


@dataclass(frozen=True)
class Alpaca(TablePrompts):
    """Alpaca (Taori et al. 2023). The prompt is the instruction; any input follows after a blank line.

    The prompt id is the row number, counted from 0.
    """

    path: str = "tatsu-lab/alpaca"
    columns = (PromptColumns("instruction", name="instruction", others=("input",)),)

    @override
    def turns_of(self, row: Row, column: str) -> list[str]:
        instruction = row.text("instruction")
        return [f"{instruction}\n\n{row.text('input')}" if row.values.get("input") else instruction]


class EverydayTasks(PromptSet):
    """Prompts for common uses of a model, 24 per task. They ship with specexp and need no network access.

    Each task is a category: edit a file, summarise, write code, chat, explain. The tasks alternate, so the first five
    prompts cover all of them.
    """

    file = "everyday.jsonl"

    @override
    def load(self) -> Dataset:
        rows = map(json.loads, Path(__file__).with_name(self.file).read_text(encoding="utf-8").splitlines())
        prompts = [
            PromptRow(
                row["prompt_id"], row["category"], [row["prompt"]], structured_outputs=row.get("structured_outputs")
            )
            for row in rows
        ]
        return prompt_rows(prompts, where=type(self).__name__)


class StructuredTasks(EverydayTasks):
    """Prompts with answers of a given form, twelve per task. They ship with specexp and need no network access.

    The tasks alternate, as in :class:`EverydayTasks`: extract, classify, call a tool. Objects to extract have eight
    fields. A class is one of several choices, a small object or a regular expression. A call is an object of the tool's
    name and arguments.
    """

    file = "structured.jsonl"


@dataclass(frozen=True)
class RawText(TablePrompts):
    """Raw text: the first ``items`` texts of a source, each cut to its first ``prompt_tokens`` tokens.

    DySpec and Sequoia were evaluated this way, with 128 prompt tokens and 128 new tokens. Hub data sets are streamed.
    The prompt id is the row number, counted from 0.

    Args:
        key: column with the text; ``text`` for a ``.txt`` file, which has one text per line.
        category: category of all rows.
        items: number of texts to read.
        prompt_tokens: maximum prompt length in tokens; shorter texts are used in full.
    """

    key: str = "text"
    category: str = "raw_text"
    items: Annotated[int, Field(ge=1)] = 1000
    prompt_tokens: Annotated[int, Field(ge=1)] = 128
    continued = True

    @property
    @override
    def limit(self) -> int:
        return self.items

    @property
    @override
    def columns(self) -> tuple[PromptColumns, ...]:
        # the texts are returned whole; the workload cuts them, since it has the tokenizer
        return (PromptColumns(self.key, name=self.category),)


@dataclass(frozen=True)
class C4(RawText):
    """C4 (Raffel et al. 2020): the first texts of the English validation split. ``path`` may also be a single shard."""

    path: str = "allenai/c4"
    subset: str | None = "en"
    split: str = "validation"
    category: str = "web_text"


@dataclass(frozen=True)
class CNNDailyMail(RawText):
    """CNN/DailyMail (Hermann et al. 2015; See et al. 2017): the first articles of the test split."""

    path: str = "abisee/cnn_dailymail"
    subset: str | None = "3.0.0"
    split: str = "test"
    key: str = "article"
    category: str = "news"


@dataclass(frozen=True)
class OpenWebText(RawText):
    """OpenWebText (Gokaslan and Cohen 2019): the first texts of the data set."""

    # the hub's conversion to parquet, since datasets no longer runs the repository's loading script
    path: str = "hf://datasets/Skylion007/openwebtext@refs/convert/parquet/**/*.parquet"
    category: str = "web_text"
