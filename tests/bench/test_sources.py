"""Which token came from where, in outcomes made by hand, and how an output shows it."""

from __future__ import annotations

from helpers.made_outcomes import outcome_of
from helpers.made_records import record

from specexp.bench.analysis import BONUS, CORRECTED, Sources, steps_of
from specexp.bench.page.charts import tokens_at_a_step
from specexp.bench.page.sections import pieces, prompt_section, prompts_shown

CHAIN_OF_2 = [-1, 0, 1]
TWO_CHILDREN = [-1, 0, 0]


def seen(*outcomes) -> list[int]:
    sources = Sources()
    for outcome in outcomes:
        sources(outcome)
    return sources.found


def test_a_drafted_token_tells_its_rank_and_the_targets_own_why_it_was_needed() -> None:
    assert seen(outcome_of(TWO_CHILDREN, (2,))) == [1, BONUS], "nothing was drafted below the second child"
    assert seen(outcome_of(CHAIN_OF_2, (1,))) == [0, CORRECTED], "the node below the first was another token"
    assert seen(outcome_of(CHAIN_OF_2, ())) == [CORRECTED]
    assert seen(outcome_of([-1], ())) == [BONUS], "plain decoding drafts nothing"
    assert seen(outcome_of(CHAIN_OF_2, (1, 2), bonus=False)) == [0, 1], "the output ended inside the draft"


def test_steps_end_with_the_targets_own_token_or_with_the_turn() -> None:
    found = [0, 0, CORRECTED, BONUS, 1, CORRECTED]
    assert [list(step) for step in steps_of(found, [3, 2, 1])] == [[0, 1, 2], [3], [4], [5]]


def shown(**changes):
    return record("tree", 0, sources=(0, 1, CORRECTED, BONUS), **changes)


def test_the_view_has_a_box_for_each_step_and_marks_where_tokens_came_from() -> None:
    text = prompt_section(
        {"p0": "Why?"}, [shown()], {"tree": "Tree"}, lambda ids: "".join("abcdefgh<"[one] for one in ids)
    )
    text = text.partition("hover over it")[2]
    assert text.count('class="step"') == 2
    assert 'title="step 1: 3 tokens, drafted ranks 0, 1"' in text
    assert '<i>f</i><i class="r">g</i><u>h</u></span>' in text
    assert "<b>&lt;</b>" in text


def test_a_character_of_several_tokens_belongs_to_the_last_of_them() -> None:
    def decode(ids) -> str:
        return bytes(ids).decode(errors="replace")

    assert list(pieces([*"aé<".encode()], decode)) == ["a", "", "é", "<"]


def test_the_shares_of_steps_by_what_they_gave() -> None:
    assert tokens_at_a_step(shown()) == {1: 0.5, 3: 0.5}


def test_a_report_shows_text_steps_and_output_of_each_prompt() -> None:
    class Tokenizer:
        def decode(self, ids) -> str:
            return "".join("abcdefgh<"[one] for one in ids)

    plain = record("engine", 0)
    found = prompts_shown({"p0": "Why?"}, [shown(), plain], {"tree": "Tree", "engine": "AR"}, Tokenizer())  # type: ignore[arg-type]
    assert [row[:3] for row in found.data["prompts"].rows] == [["p0", "Why?", "Tree"], ["p0", "Why?", "AR"]]
    assert {row["text"] for row in found.charts["steps"]["data"]["values"]} == {"Why?"}
    assert "Prompts, and what Tree made of them" in found.fragments["prompts"]
    assert prompts_shown({"p0": "Why?"}, [plain], {"tree": "Tree"}, None).fragments == {}
