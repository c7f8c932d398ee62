"""SPEED-Bench as its own script writes it, and every other layout refused in a sentence."""

import pytest

from specexp.data import PromptSetError, SpeedBench
from specexp.data.named_sets import PLACEHOLDER
from specexp.testing.prompt_sets import PromptSetContract


def question(number, category="coding", **given):
    return {
        "question_id": f"q{number}",
        "category": category,
        "sub_category": "none",
        "source": "somewhere",
        "src_id": str(number),
        "difficulty": "",
        "multiturn": False,
        **given,
    }


def said(*turns):
    return [{"role": "user", "content": turn} for turn in turns]


PREPARED = [
    question(1, messages=said("Sort this.", "Now backwards.")),
    question(2, "multilingual", messages=said("Bonjour?")),
]


class TestSpeedBench(PromptSetContract):
    @pytest.fixture
    def prompt_set(self, write):
        return SpeedBench(write("qualitative.jsonl", PREPARED))


def test_messages_of_the_user_are_turns_and_the_category_is_the_files(write):
    first, second = SpeedBench(write("qualitative.jsonl", PREPARED)).load()
    assert (first["prompt_id"], first["category"]) == ("q1", "coding")
    assert first["turns"] == ["Sort this.", "Now backwards."]
    assert (second["category"], second["turns"]) == ("multilingual", ["Bonjour?"])


def test_the_hubs_own_form_says_turns(write):
    (row,) = SpeedBench(write("throughput_1k.jsonl", [question(3, "low_entropy", turns=["Go on."])])).load()
    assert (row["category"], row["turns"]) == ("low_entropy", ["Go on."])


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        (
            question(1, turns=[f"{PLACEHOLDER} FROM THE SOURCE"]),
            "line 1: question q1 is a placeholder; fetch the texts",
        ),
        (
            question(1, messages=[{"role": "system", "content": "Be brief."}]),
            "line 1, key 'messages': expected messages of",
        ),
        (question(1, messages="Sort this."), "line 1, key 'messages': expected a list of messages"),
        (
            {"question_id": 1, "category": "qa", "turns": ["Who?"], "reference": []},
            "no key 'sub_category' among",
        ),
    ],
    ids=["not fetched", "a system's message", "no messages", "Spec-Bench"],
)
def test_another_layout_is_refused_in_a_sentence(write, row, sentence):
    with pytest.raises(PromptSetError, match=sentence) as refused:
        SpeedBench(write("questions.jsonl", [row])).load()
    assert "\n" not in str(refused.value)
