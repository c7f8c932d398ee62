"""How turns become tokens: the context of a later turn continues from the tokens that were decoded."""

import pytest

from specexp.data import Prompt
from specexp.data.workload import first_turn_ids


def make_prompt(tokenizer, *turns: str, chat_template: bool = False) -> Prompt:
    ids = tuple(first_turn_ids(tokenizer, turns[0], chat_template))
    return Prompt("81", "qa", turns, ids, index=0, chat_template=chat_template)


def encode(tokenizer, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def test_a_later_turn_follows_the_answer_after_a_blank_line(tokenizer):
    prompt = make_prompt(tokenizer, "Who?", "Why?")
    context = [*prompt.token_ids, *encode(tokenizer, " Me.")]
    ids = prompt.turn_ids(tokenizer, 1, context)
    assert ids[: len(context)] == context
    assert tokenizer.decode(ids) == "Who? Me.\n\nWhy?"


@pytest.mark.parametrize("answer", ["Me.", "Me.<|end|>"], ids=["stopped by length", "ended by EOS"])
def test_the_chat_template_closes_an_answer_once(chat_tokenizer, answer):
    prompt = make_prompt(chat_tokenizer, "Who?", "Why?", chat_template=True)
    context = [*prompt.token_ids, *encode(chat_tokenizer, answer)]
    ids = prompt.turn_ids(chat_tokenizer, 1, context)
    assert ids[: len(context)] == context
    assert (
        chat_tokenizer.decode(ids)
        == "<|user|>Who?<|end|><|assistant|>Me.<|end|><|user|>Why?<|end|><|assistant|>"
    )


def test_three_turns_are_what_the_template_makes_of_the_whole_conversation(chat_tokenizer):
    prompt = make_prompt(chat_tokenizer, "A?", "B?", "C?", chat_template=True)
    messages, ids = [], prompt.turn_ids(chat_tokenizer, 0)
    for turn, answer in enumerate(("a", "b"), start=1):
        ids = prompt.turn_ids(chat_tokenizer, turn, [*ids, *encode(chat_tokenizer, answer)])
        messages += [
            {"role": "user", "content": prompt.turns[turn - 1]},
            {"role": "assistant", "content": answer},
        ]
    messages.append({"role": "user", "content": "C?"})
    whole = chat_tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert ids == encode(chat_tokenizer, whole)


def test_a_byte_that_ends_an_answer_is_no_end_of_turn(tokenizer):
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}x{% endfor %}"
    prompt = make_prompt(tokenizer, "A", "B", chat_template=True)
    assert tokenizer.decode(prompt.turn_ids(tokenizer, 1, encode(tokenizer, "Ax x"))) == "Ax xxBx"


def test_a_template_without_answers_is_refused(tokenizer):
    tokenizer.chat_template = "{{ messages[-1].content }}"
    prompt = make_prompt(tokenizer, "A", "B", chat_template=True)
    with pytest.raises(ValueError, match=r"'81' .*leaves out earlier answers; set chat_template: false"):
        prompt.turn_ids(tokenizer, 1, [1])


@pytest.mark.parametrize(("turn", "previous"), [(0, [1]), (1, [])])
def test_only_a_later_turn_has_previous_tokens(tokenizer, turn, previous):
    with pytest.raises(ValueError, match="empty for turn 0 and hold at least one token"):
        make_prompt(tokenizer, "A", "B").turn_ids(tokenizer, turn, previous)


def test_longest_context_is_reached_when_every_answer_is_as_long_as_it_may_be(chat_tokenizer):
    prompt = make_prompt(chat_tokenizer, "A?", "B?", "C?", chat_template=True)
    answer = encode(chat_tokenizer, "x" * 5)
    context: list[int] = []
    for turn in range(3):
        context = [*prompt.turn_ids(chat_tokenizer, turn, context), *answer]
    assert prompt.longest_context(chat_tokenizer, max_new_tokens=5) == len(context)
