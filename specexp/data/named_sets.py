"""Prompt sets read from one table: published ones by name, and raw text."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from pydantic import Field
from typing_extensions import override

from specexp.data.prompt_set import PromptRow, PromptSet, prompt_rows
from specexp.data.source import Row, check_columns, is_text, read_table

if TYPE_CHECKING:
    from datasets import Dataset

MT_BENCH_CATEGORIES = frozenset(
    {"writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"}
)
PLACEHOLDER = "FULL BENCHMARK DATA SHOULD BE FETCHED"
"""Text in SPEED-Bench's file on the hub for a prompt of another data set."""


class PromptColumns(NamedTuple):
    """The columns that make a prompt."""

    turns: str  # a text or a list of texts
    prompt_id: str | None = None  # by default the row number from 0
    category: str | None = None  # by default ``name`` is the category of all rows
    name: str = ""
    others: tuple[str, ...] = ()  # other columns that the table must have


_QUESTIONS = PromptColumns("turns", "question_id", "category")


@dataclass(frozen=True)
class TablePrompts(PromptSet):
    """A table in its original format; an implementation names the columns that make a prompt.

    Args:
        path: a file in its original format, its URL, or a hub data set.
        subset: the subset of a hub data set.
        split: the split of a hub data set.

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
        """The forms of the table. The first one with its prompt column present is read, else the last."""

    @property
    def limit(self) -> int | None:
        """Number of rows that are read, from the first; None reads all of them."""
        return None

    def category_of(self, name: str) -> str | None:
        """Return the category of a row from its name in the table; None leaves the row out."""
        return name

    def turns_of(self, row: Row, column: str) -> list[str]:
        """Return the turns of a row; its prompt is in ``column``."""
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
    """Spec-Bench (Xia et al. 2024): ``question.jsonl`` with ``question_id, category, turns, reference``.

    The eight MT-bench categories are one category, ``multi-turn conversation``, as in the benchmark's own tables;
    :class:`MTBench` reads them one by one from the same file.
    """

    path: str = "https://raw.githubusercontent.com/hemingkx/Spec-Bench/main/data/spec_bench/question.jsonl"
    columns = (_QUESTIONS,)

    @override
    def category_of(self, name: str) -> str:
        return "multi-turn conversation" if name in MT_BENCH_CATEGORIES else name


@dataclass(frozen=True)
class MTBench(TablePrompts):
    """MT-bench (Zheng et al. 2023): ``question_id, category, turns``; rows of other categories are left out.

    The hub's copy, with ``prompt_id, category, prompt``, is read as well.
    """

    path: str = "HuggingFaceH4/mt_bench_prompts"
    columns = (PromptColumns("prompt", "prompt_id", "category"), _QUESTIONS)

    @override
    def category_of(self, name: str) -> str | None:
        return name if name in MT_BENCH_CATEGORIES else None


@dataclass(frozen=True)
class SpeedBench(TablePrompts):
    """SPEED-Bench (Abramovich et al. 2026), a file as its ``prepare.py`` writes it.

    ``qualitative.jsonl`` has 80 prompts of each of 11 categories, ``throughput_1k.jsonl`` to ``throughput_32k.jsonl``
    have 512 prompts of each of three entropies. The user's turns are ``messages`` or, on the hub, ``turns``. A row
    without its text is refused.
    """

    columns = tuple(
        PromptColumns(turns, "question_id", "category", others=("sub_category", "difficulty", "multiturn"))
        for turns in ("turns", "messages")
    )

    @override
    def turns_of(self, row: Row, column: str) -> list[str]:
        turns = super().turns_of(row, column) if column == "turns" else _user_turns(row)
        if any(PLACEHOLDER in turn for turn in turns):
            raise row.refusal(
                f": question {row.label('question_id')} is a placeholder; fetch the texts with SPEED-Bench's own "
                "prepare.py, and give the file it writes."
            )
        return turns


def _user_turns(row: Row) -> list[str]:
    given: Any = row.values.get("messages")
    for message in given if isinstance(given, list) and given else [given]:
        content = message.get("content") if isinstance(message, dict) else None
        if not is_text(content) or message["role"] != "user":
            raise row.error("messages", "messages of the user, each with a content", message)
    return [str(message["content"]) for message in given]


@dataclass(frozen=True)
class HumanEval(TablePrompts):
    """HumanEval (Chen et al. 2021): ``task_id, prompt, ...``; a prompt is a signature and docstring to continue."""

    path: str = "openai/openai_humaneval"
    split: str = "test"
    columns = (PromptColumns("prompt", "task_id", name="code"),)


@dataclass(frozen=True)
class MBPP(TablePrompts):
    """MBPP (Austin et al. 2021) in either of its two forms, which differ in their keys.

    - ``question_id, category, turns``: the Spec-Bench form that Token Recycling measures on.
    - ``task_id, text, test_list``: the original. The prompt is the task and its first test as a docstring, as in the
      other form, but with a line break at its end.
    """

    path: str = "google-research-datasets/mbpp"
    subset: str | None = "full"
    split: str = "test"
    columns = (_QUESTIONS, PromptColumns("text", "task_id", name="code", others=("test_list",)))

    @override
    def turns_of(self, row: Row, column: str) -> list[str]:
        return [mbpp_docstring(row)] if column == "text" else super().turns_of(row, column)


def mbpp_docstring(row: Row) -> str:
    """Return a task of MBPP's original form as the prompt of the other one."""
    task, first_test = row.text("text"), row.texts("test_list")[0]
    return f'Create a Python script for this problem:\n```python\n"""\n{task}\n{first_test}\n"""\n\n```\n'


@dataclass(frozen=True)
class GSM8K(TablePrompts):
    """GSM8K (Cobbe et al. 2021): ``question, answer``; the question is the prompt, the row number from 0 its id.

    :class:`specexp.data.tasks.gsm8k.GSM8K` reads the same files, with the answers.
    """

    path: str = "openai/gsm8k"
    subset: str | None = "main"
    split: str = "test"
    columns = (PromptColumns("question", name="math_reasoning"),)


@dataclass(frozen=True)
class Alpaca(TablePrompts):
    """Alpaca (Taori et al. 2023): ``instruction, input, output``; the instruction, a blank line, the input.

    The row number, from 0, is the prompt id.
    """

    path: str = "tatsu-lab/alpaca"
    columns = (PromptColumns("instruction", name="instruction", others=("input",)),)

    @override
    def turns_of(self, row: Row, column: str) -> list[str]:
        instruction = row.text("instruction")
        return [f"{instruction}\n\n{row.text('input')}" if row.values.get("input") else instruction]


@dataclass(frozen=True)
class RawText(TablePrompts):
    """The first ``items`` texts of a source, each cut to its first ``prompt_tokens`` tokens.

    DySpec and Sequoia measure like this, with 128 tokens and 128 new ones. Large sources are streamed. The row number,
    from 0, is the prompt id.

    Args:
        key: the column of the text; in a ``.txt`` file, which has one text a line, it is ``text``.
        category: the category of all rows.
        items: number of texts to read, from the first.
        prompt_tokens: number of tokens of each text that are the prompt; a shorter text is one as a whole.
    """

    key: str = "text"
    category: str = "raw_text"
    items: Annotated[int, Field(ge=1)] = 1000
    prompt_tokens: Annotated[int, Field(ge=1)] = 128

    @property
    @override
    def limit(self) -> int:
        return self.items

    @property
    @override
    def columns(self) -> tuple[PromptColumns, ...]:
        # Whole texts: the workload cuts them when it tokenizes them.
        return (PromptColumns(self.key, name=self.category),)


@dataclass(frozen=True)
class C4(RawText):
    """C4 (Raffel et al. 2020): the first texts of its English validation split; a shard is a file."""

    path: str = "allenai/c4"
    subset: str | None = "en"
    split: str = "validation"
    category: str = "web_text"


@dataclass(frozen=True)
class CNNDailyMail(RawText):
    """CNN/DailyMail (Hermann et al. 2015; See et al. 2017): the first articles of its test split."""

    path: str = "abisee/cnn_dailymail"
    subset: str | None = "3.0.0"
    split: str = "test"
    key: str = "article"
    category: str = "news"


@dataclass(frozen=True)
class OpenWebText(RawText):
    """OpenWebText (Gokaslan and Cohen 2019): its first texts."""

    # The repository itself needs a loading script, which datasets no longer runs; the hub's conversion does not.
    path: str = "hf://datasets/Skylion007/openwebtext@refs/convert/parquet/**/*.parquet"
    category: str = "web_text"
