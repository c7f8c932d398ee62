"""The original files, where the environment variable SPECEXP_DATA names the folder with them."""

import re
from collections import Counter

from helpers.continuation import starts_with

from specexp.data import MBPP, HumanEval, MTBench, SpecBench
from specexp.data.source import read_table

SPEC_BENCH_TASKS = ("translation", "summarization", "qa", "math_reasoning", "rag", "multi-turn conversation")


def test_spec_bench(specexp_data):
    rows = SpecBench(str(specexp_data / "spec_bench/question.jsonl")).load()
    assert Counter(rows["category"]) == dict.fromkeys(SPEC_BENCH_TASKS, 40)
    for row in rows:
        assert len(row["turns"]) == (2 if row["category"] == "multi-turn conversation" else 1)


def test_mt_bench_part_of_spec_bench(specexp_data):
    rows = MTBench(str(specexp_data / "spec_bench/question.jsonl")).load()
    assert len(rows) == 40
    assert set(Counter(rows["category"]).values()) == {5}
    assert len(set(rows["category"])) == 8


def test_both_forms_of_mbpp_write_a_prompt_alike(specexp_data):
    forms = [MBPP(str(specexp_data / "mbpp" / name)).load() for name in ("question.jsonl", "mbpp.jsonl")]
    spec_bench, original = ({row["prompt_id"]: row["turns"][0] for row in rows} for rows in forms)
    assert len(original) == 974
    # some tasks of one form were reworded by hand; the prompts of the others agree to the letter
    assert sum(original.get(i) == f"{prompt}\n" for i, prompt in spec_bench.items()) >= 20


def test_solutions_leave_the_tokens_of_their_prompts_as_they_are(specexp_data, embedded_tokenizer):
    for kind, name, key in (
        (HumanEval, "humaneval/HumanEval.jsonl.gz", "canonical_solution"),
        (MBPP, "mbpp/mbpp.jsonl", "code"),
    ):
        path = str(specexp_data / name)
        for row, solution in zip(kind(path).load(), read_table(path, key), strict=True):
            # some begin with blank lines, which the tokenizer joins with the prompt's line break.
            text = re.sub(r"^\s*\n", "", solution.text(key))
            assert starts_with(embedded_tokenizer, row["turns"][0], text)
