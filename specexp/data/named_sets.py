"""Prompt sets that turn each row of one table into a prompt: published ones by name, and raw text."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from pydantic import Field
from typing_extensions import override

from specexp.data.prompt_set import PromptRow, PromptSet, prompt_rows
from specexp.data.row import Row, is_text
from specexp.data.source import SourceTable, read_table

if TYPE_CHECKING:
    from datasets import Dataset

MT_BENCH_CATEGORIES = frozenset(
    {"writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"}
)
MULTI_TURN = "multi-turn conversation"
PLACEHOLDER = "FULL BENCHMARK DATA SHOULD BE FETCHED"
"""What SPEED-Bench's file on the hub holds where a prompt belongs to another data set."""


@dataclass(frozen=True)
class TablePrompts(PromptSet):
    """A table in its original format; an implementation names the columns that make a prompt.

    Args:
        path: a file in its original format, its URL, or a hub data set.
        subset: the subset of a hub data set; a file has none.
        split: the split of a hub data set; a file has none.

    Example::

        @dataclass(frozen=True)
        class Riddles(TablePrompts):
            path: str = "somebody/riddles"

            def rows(self, table):
                return (PromptRow(row.label("id"), "riddle", [row.text("text")]) for row in table.rows("id", "text"))
    """

    path: str
    subset: str | None = None
    split: str = "train"

    @property
    def limit(self) -> int | None:
        """How many rows are read, from the first; None reads all of them."""
        return None

    @abstractmethod
    def rows(self, table: SourceTable) -> Iterable[PromptRow]:
        """The prompts of a table, in its order.

        Raises:
            PromptSetError: a column is missing, or a row does not hold what it should.
        """

    @override
    def load(self) -> Dataset:
        table = read_table(self.path, subset=self.subset, split=self.split, limit=self.limit)
        return prompt_rows(self.rows(table), where=self.path)


@dataclass(frozen=True)
class SpecBench(TablePrompts):
    """Spec-Bench (Xia et al. 2024): ``question.jsonl`` with ``question_id, category, turns, reference``.

    The eight MT-bench categories are one category, ``multi-turn conversation``, as in the benchmark's own tables.
    To see them one by one, read the same file as :class:`MTBench`.

    Example::

        SpecBench("spec_bench/question.jsonl").load()[0]
        # {"prompt_id": "81", "category": "multi-turn conversation", "turns": ["Compose ...", "Rewrite ..."]}
    """

    path: str = "https://raw.githubusercontent.com/hemingkx/Spec-Bench/main/data/spec_bench/question.jsonl"

    @override
    def rows(self, table: SourceTable) -> Iterable[PromptRow]:
        for row in table.rows("question_id", "category", "turns"):
            category = row.text("category")
            group = MULTI_TURN if category in MT_BENCH_CATEGORIES else category
            yield PromptRow(row.label("question_id"), group, row.texts("turns"))


@dataclass(frozen=True)
class MTBench(TablePrompts):
    """MT-bench (Zheng et al. 2023): ``question_id, category, turns``; rows of other categories are left out.

    The hub's copy, with ``prompt_id, category, prompt``, is read as well.

    Example::

        MTBench("mt_bench/question.jsonl").load()[0]["category"]  # "writing"
    """

    path: str = "HuggingFaceH4/mt_bench_prompts"

    @override
    def rows(self, table: SourceTable) -> Iterable[PromptRow]:
        id_key, turns_key = ("prompt_id", "prompt") if table.has("prompt") else ("question_id", "turns")
        for row in table.rows(id_key, "category", turns_key):
            if row.text("category") in MT_BENCH_CATEGORIES:
                yield PromptRow(row.label(id_key), row.text("category"), row.texts(turns_key))


@dataclass(frozen=True)
class SpeedBench(TablePrompts):
    """SPEED-Bench (Abramovich et al. 2026), a file as its ``prepare.py`` writes it.

    ``qualitative.jsonl`` has 80 prompts of each of 11 categories, ``throughput_1k.jsonl`` to ``throughput_32k.jsonl``
    have 512 prompts of each of three entropies. A row has ``question_id, category`` and the user's turns, as
    ``messages`` or, on the hub, as ``turns``. Rows whose text is still to be fetched are refused.

    Args:
        path: the prepared file, on this machine.
        subset: not used: a file is one subset.
        split: not used.

    Example::

        SpeedBench("speed_bench/qualitative.jsonl").load()[0]["category"]  # "coding"
    """

    @override
    def rows(self, table: SourceTable) -> Iterable[PromptRow]:
        turns_key = "turns" if table.has("turns") else "messages"
        for row in table.rows(
            "question_id", "category", "sub_category", "difficulty", "multiturn", turns_key
        ):
            turns = row.texts("turns") if turns_key == "turns" else _user_turns(row)
            if any(PLACEHOLDER in turn for turn in turns):
                raise row.refusal(
                    f": question {row.label('question_id')} is a placeholder; fetch the texts with SPEED-Bench's own "
                    "prepare.py, and give the file it writes."
                )
            yield PromptRow(row.label("question_id"), row.text("category"), turns)


def _user_turns(row: Row) -> list[str]:
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


@dataclass(frozen=True)
class HumanEval(TablePrompts):
    """HumanEval (Chen et al. 2021): ``task_id, prompt, ...``; a prompt is a signature and docstring to continue.

    Example::

        HumanEval("humaneval/HumanEval.jsonl.gz").load()[0]["prompt_id"]  # "HumanEval/0"
    """

    path: str = "openai/openai_humaneval"
    split: str = "test"

    @override
    def rows(self, table: SourceTable) -> Iterable[PromptRow]:
        for row in table.rows("task_id", "prompt"):
            yield PromptRow(row.label("task_id"), "code", [row.text("prompt")])


@dataclass(frozen=True)
class MBPP(TablePrompts):
    """MBPP (Austin et al. 2021) in either of its two forms, which differ in their keys.

    - ``question_id, category, turns``: the Spec-Bench form that Token Recycling measures on, with its turns unchanged.
    - ``task_id, text, test_list``: the original. The prompt is the task and its first test as a docstring, as in the
      other form, but with a line break at its end.

    Example::

        MBPP("mbpp/question.jsonl").load()[0]["prompt_id"]  # "2"
    """

    path: str = "google-research-datasets/mbpp"
    subset: str | None = "full"
    split: str = "test"

    @override
    def rows(self, table: SourceTable) -> Iterable[PromptRow]:
        if table.has("turns"):
            for row in table.rows("question_id", "category", "turns"):
                yield PromptRow(row.label("question_id"), row.text("category"), row.texts("turns"))
        else:
            for row in table.rows("task_id", "text", "test_list"):
                yield PromptRow(row.label("task_id"), "code", [mbpp_docstring(row)])


def mbpp_docstring(row: Row) -> str:
    """A task of MBPP's original form as the prompt of the other one."""
    task, first_test = row.text("text"), row.texts("test_list")[0]
    return f'Create a Python script for this problem:\n```python\n"""\n{task}\n{first_test}\n"""\n\n```\n'


@dataclass(frozen=True)
class GSM8K(TablePrompts):
    """GSM8K (Cobbe et al. 2021): ``question, answer``; the question is the prompt, the row number from 0 its id.

    :class:`specexp.data.tasks.gsm8k.GSM8K` reads the same files, with the answers.

    Example::

        GSM8K("gsm8k/test.jsonl").load()[0]["category"]  # "math_reasoning"
    """

    path: str = "openai/gsm8k"
    subset: str | None = "main"
    split: str = "test"

    @override
    def rows(self, table: SourceTable) -> Iterable[PromptRow]:
        for row in table.rows("question"):
            yield PromptRow(str(row.number - 1), "math_reasoning", [row.text("question")])


@dataclass(frozen=True)
class Alpaca(TablePrompts):
    """Alpaca (Taori et al. 2023): ``instruction, input, output``; the instruction, a blank line, the input.

    The row number, from 0, is the prompt id.

    Example::

        Alpaca("alpaca_data.json").load()[0]["turns"]  # ["Sort these numbers.\\n\\n3, 1, 2"]
    """

    path: str = "tatsu-lab/alpaca"

    @override
    def rows(self, table: SourceTable) -> Iterable[PromptRow]:
        for row in table.rows("instruction", "input"):
            prompt = row.text("instruction")
            if row.values.get("input"):  # most rows have none, written as an empty text
                prompt = f"{prompt}\n\n{row.text('input')}"
            yield PromptRow(str(row.number - 1), "instruction", [prompt])


@dataclass(frozen=True)
class RawText(TablePrompts):
    """The first ``items`` texts of a source, of each the first ``prompt_tokens`` tokens.

    DySpec and Sequoia measure so, with 128 tokens and 128 new ones. A shorter text is a prompt as a whole. Large
    sources are streamed. The row number, from 0, is the prompt id.

    Args:
        path: a file (``.txt``: one text a line), its URL, or a hub data set.
        key: the column that holds the text; in a ``.txt`` file it is ``text``.
        category: the category of all rows.
        items: how many texts to read, from the first.
        prompt_tokens: how many tokens of each text are the prompt.

    Example::

        RawText("stories.txt", items=10, prompt_tokens=64).load()[0]["turns"]  # ["Once upon a time ..."]
    """

    key: str = "text"
    category: str = "raw_text"
    items: Annotated[int, Field(ge=1)] = 1000
    prompt_tokens: Annotated[int, Field(ge=1)] = 128

    @property
    @override
    def limit(self) -> int:
        return self.items

    @override
    def rows(self, table: SourceTable) -> Iterable[PromptRow]:
        for row in table.rows(self.key):  # whole texts: they are cut where they are tokenized
            yield PromptRow(str(row.number - 1), self.category, [row.text(self.key)])


@dataclass(frozen=True)
class C4(RawText):
    """C4 (Raffel et al. 2020): the first texts of its English validation split; a shard is a file.

    Example::

        C4("c4-validation.00000-of-00008.json.gz", items=100).load()[0]["category"]  # "web_text"
    """

    path: str = "allenai/c4"
    subset: str | None = "en"
    split: str = "validation"
    category: str = "web_text"


@dataclass(frozen=True)
class CNNDailyMail(RawText):
    """CNN/DailyMail (Hermann et al. 2015; See et al. 2017): the first articles of its test split.

    Example::

        CNNDailyMail("cnn_dailymail.parquet", items=100).load()[0]["category"]  # "news"
    """

    path: str = "abisee/cnn_dailymail"
    subset: str | None = "3.0.0"
    split: str = "test"
    key: str = "article"
    category: str = "news"


@dataclass(frozen=True)
class OpenWebText(RawText):
    """OpenWebText (Gokaslan and Cohen 2019): its first texts.

    Example::

        OpenWebText("openwebtext.jsonl", items=100).load()[0]["category"]  # "web_text"
    """

    # The repository itself needs a loading script, which datasets no longer runs; the hub's conversion does not.
    path: str = "hf://datasets/Skylion007/openwebtext@refs/convert/parquet/**/*.parquet"
    category: str = "web_text"
