"""The choice of prompts, their order and their tokens: long prompts, chat templates, and later turns."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from helpers.small_models import byte_tokenizer
from hypothesis import given, strategies as st
from tokenizers import processors

from specexp.data import (
    C4,
    HumanEval,
    OwnPrompts,
    Prompt,
    PromptRow,
    PromptSet,
    PromptSetError,
    RawText,
    StdlibFunctions,
    TaskItems,
    Workload,
    prompt_rows,
)
from specexp.data.prompt_set import Message
from specexp.data.workload import digest_of_prompts, first_turn_ids, varying_template


class Letters(PromptSet):
    """Prompts A, B, C ... or the texts given."""

    def __init__(self, texts: Sequence[str] = "ABCDEFGH", prompt_tokens: int | None = None) -> None:
        self.texts = texts
        self.prompt_tokens = prompt_tokens

    def load(self):
        rows = (PromptRow(f"p{i}", "letters", [text]) for i, text in enumerate(self.texts))
        return prompt_rows(rows, where="Letters")


class Chat(PromptSet):
    """One conversation with a system prompt."""

    def load(self):
        texts = {"system": "Be brief.", "user": "Hi", "assistant": "Yes?"}
        before = [Message(role=role, content=text) for role, text in texts.items()]
        return prompt_rows([PromptRow("c", "chat", ["Why? "], before, chat=True)], where="Chat")


class NoTokens:
    """A stand-in for tests without tokens."""

    chat_template = None
    bos_token_id = None

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": [1]}


def test_the_order_is_the_files_and_the_index_is_the_row_in_any_order(tokenizer):
    prompts = Workload(Letters()).load(tokenizer)
    assert "".join(prompt.turns[0] for prompt in prompts) == "ABCDEFGH"
    assert prompts[1] == Prompt("p1", "letters", ("B",), tuple(tokenizer("B")["input_ids"]), index=1)
    for prompt in Workload(Letters(), shuffle_seed=3, offset=2).load(tokenizer):
        assert prompt.prompt_id == f"p{prompt.index}"


@pytest.mark.parametrize(("most", "exhausted"), [(5, False), (6, True), (7, True), (None, True)])
def test_a_set_is_exhausted_when_its_last_prompt_is_taken(most, exhausted, tokenizer):
    workload = Workload(Letters(), offset=2, max_prompts=most)
    workload.load(tokenizer)
    assert workload.exhausted is exhausted


@pytest.mark.slow
@given(taken=st.integers(1, 10), seed=st.none() | st.integers(0, 5))
def test_search_and_confirmation_share_no_prompt(taken: int, seed: int | None):
    letters = Letters([f"text {i}" for i in range(12)])
    search = Workload(letters, max_prompts=taken, shuffle_seed=seed).load(NoTokens())
    confirm = Workload(letters, offset=taken, shuffle_seed=seed).load(NoTokens())
    assert len(search) == taken
    assert sorted(p.index for p in search + confirm) == list(range(12))


LONG = Letters(["much too long"])
REFUSED = [
    (Letters(), {"offset": 8}, "offset must be at most 7, since Letters has 8 prompts, got 8"),
    (LONG, {"max_prompt_tokens": 5}, "'p0' has 13 tokens, but max_prompt_tokens is 5; raise"),
    (LONG, {"max_prompt_tokens": 5, "too_long": "skip"}, "all 1 prompts of Letters were left out .*too_long: skip"),
    (LONG, {"too_long": "skip"}, "max_prompt_tokens must be set if too_long is 'skip'"),
    (Letters(prompt_tokens=4), {"chat_template": True}, "chat_template must not be true for .*first 4 tokens"),
    (Letters(), {"chat_template": True}, "chat_template must be false, since the tokenizer has no"),
    (Chat(), {}, "consists of chat messages.*no chat template.*chat_template: false"),
]  # fmt: skip


@pytest.mark.parametrize(("prompts", "options", "message"), REFUSED)
def test_a_workload_that_cannot_be_loaded_is_one_sentence(tokenizer, prompts, options, message):
    with pytest.raises(ValueError, match=message):
        Workload(prompts, **options).load(tokenizer)


def test_a_chat_template_may_refuse_a_role_and_keeps_its_end(chat_tokenizer):
    with pytest.raises(PromptSetError, match="keep-first would cut off the end of"):
        Workload(Chat(), max_prompt_tokens=5, too_long="keep-first").load(chat_tokenizer)
    chat_tokenizer.chat_template = "{{ raise_exception('System role not supported') }}"
    message = r"'c' cannot be rendered with the tokenizer.s chat template \(System role not supported\)"
    with pytest.raises(PromptSetError, match=message):
        Workload(Chat()).load(chat_tokenizer)


def test_chat_messages_are_written_with_the_template_or_joined_by_blank_lines(chat_tokenizer):
    (prompt,) = Workload(Chat()).load(chat_tokenizer)
    assert chat_tokenizer.decode(prompt.token_ids) == (
        "<|system|>Be brief.<|end|><|user|>Hi<|end|><|assistant|>Yes?<|end|><|user|>Why? <|end|><|assistant|>"
    )
    (prompt,) = Workload(Chat(), chat_template=False).load(chat_tokenizer)
    assert chat_tokenizer.decode(prompt.token_ids) == "Be brief.\n\nHi\n\nYes?\n\nWhy? "


class Code(Letters):
    """Texts to be continued."""

    continued = True


RENDERED = "<|user|>A<|end|><|assistant|>"
USE = "rendered as a user's turn, the first up to '<|user|>A<|end|><|assistant|>'."


@pytest.mark.parametrize(
    ("prompts", "options", "text", "note"),
    [
        (Letters(["A"]), {}, RENDERED, USE),
        (Code(["A"]), {}, "A", "1 as written (text to be continued)."),
        (Code(["A"]), {"chat_template": True}, RENDERED, USE),
        (Letters(["A"]), {"chat_template": False}, "A", "1 as written (data.chat_template is false)."),
        (Letters([RENDERED]), {}, RENDERED, "(it begins with a special token, so it is rendered already)."),
        (Letters(["A b"], prompt_tokens=1), {}, "A", "1 as written (text to be continued)."),
    ],
)  # fmt: skip
def test_a_prompt_is_a_users_turn_unless_it_is_a_text_to_be_continued(chat_tokenizer, prompts, options, text, note):
    workload = Workload(prompts, **options)
    (prompt,) = workload.load(chat_tokenizer)
    assert chat_tokenizer.decode(prompt.token_ids) == text
    (sentence,) = workload.preparation.chat_template()
    assert sentence.endswith(note)
    assert sentence in workload.preparation.notes()
    assert "rendered" in workload.preparation.files()["prompts.json"]


def test_without_a_template_auto_continues_the_text_without_a_note(tokenizer):
    workload = Workload(Letters(["A"]))
    (prompt,) = workload.load(tokenizer)
    assert (tokenizer.decode(prompt.token_ids), workload.preparation.notes()) == ("A", [])
    assert first_turn_ids(tokenizer, "A") == list(prompt.token_ids)


@pytest.mark.parametrize("prompt_set", [StdlibFunctions, HumanEval, RawText, C4, TaskItems])
def test_sets_of_functions_raw_text_and_tasks_are_texts_to_be_continued(prompt_set):
    assert prompt_set.continued
    assert not OwnPrompts.continued


def test_a_bos_token_in_the_text_is_not_doubled(chat_tokenizer):
    chat_tokenizer.add_bos_token = True
    chat_tokenizer.bos_token = "<s>"
    chat_tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", chat_tokenizer.bos_token_id)]
    )
    assert chat_tokenizer.decode(chat_tokenizer("A")["input_ids"]) == "<s>A"
    assert chat_tokenizer.decode(first_turn_ids(chat_tokenizer, "A", False)) == "<s>A"
    assert chat_tokenizer.decode(first_turn_ids(chat_tokenizer, "<s>A")) == "<s>A"  # rendered already
    chat_tokenizer.chat_template = f"<s>{chat_tokenizer.chat_template}"
    assert chat_tokenizer.decode(first_turn_ids(chat_tokenizer, "A")) == f"<s>{RENDERED}"


@pytest.mark.parametrize("text", ["def f():\n", "def f():\n    ", "  x", "Answer: ", "a\r\n\n", "\t"])
def test_a_prompt_is_decoded_exactly_as_the_set_has_it(tokenizer, text):
    (prompt,) = Workload(Letters([f"x{text}"])).load(tokenizer)
    assert prompt.turns == (f"x{text}",)
    assert tokenizer.decode(prompt.token_ids) == f"x{text}"


def test_prompts_that_end_inside_a_token_are_warned_of():
    joins_blanks = byte_tokenizer("Ġa")
    texts = ["Answer: ", "def f():\n   ", "def f():\n", "Answer:", "It is so.", "a\n\n"]
    workload = Workload(Letters(texts))
    workload.load(joins_blanks)
    assert workload.preparation.end_inside_a_token == ["p0", "p1"]
    assert workload.preparation.warnings() == workload.preparation.notes()
    (warning,) = workload.preparation.warnings()
    assert warning.startswith("2 of 6 prompts end in white space that is tokenized differently before a word")
    joins_blanks.chat_template = "{{ messages[0].content }}"
    for options in ({"chat_template": True}, {"prompt_tokens": 4}):  # neither ends where the text does
        workload = Workload(Letters(["Answer: "], options.pop("prompt_tokens", None)), **options)
        workload.load(joins_blanks)
        assert workload.preparation.end_inside_a_token == []


@pytest.mark.parametrize(
    ("policy", "kept", "note"),
    [
        ("keep-last", ["short", "<s>long"], "1 of 2 prompts (of up to 11 tokens) were cut to their last 5 tokens"),
        ("keep-first", ["short", "<s>much"], "1 of 2 prompts (of up to 11 tokens) were cut to their first 5 tokens"),
        ("skip", ["short"], "1 prompt with more than 5 tokens left out"),
    ],
)  # fmt: skip
def test_prompts_that_are_too_long_are_cut_after_bos_or_left_out_and_counted(tokenizer, policy, kept, note):
    tokenizer.bos_token = "<s>"
    workload = Workload(Letters(["short", "<s>much: long"]), max_prompt_tokens=5, too_long=policy)
    assert [tokenizer.decode(prompt.token_ids) for prompt in workload.load(tokenizer)] == kept
    assert workload.preparation.notes() == [f"{note} (too_long: {policy})."]
    assert '"p1": 11' in workload.preparation.files()["prompts.json"]


def test_raw_texts_that_are_cut_and_prompts_that_are_repeated_are_counted(tokenizer):
    workload = Workload(Letters(["Once upon a time", "Oh"], prompt_tokens=4))
    workload.load(tokenizer)
    note = "1 of 2 prompts were cut to the first 4 tokens of a longer text (prompt_tokens)."
    assert workload.preparation.notes() == [note]
    workload = Workload(Letters(list("AABA")))
    workload.load(tokenizer)
    (note,) = workload.preparation.notes()
    assert note.startswith("2 of 4 prompts repeat the text of an earlier prompt")
    assert '"repeated": 2' in workload.preparation.files()["prompts.json"]
    workload = Workload(Letters(list("AABA")), offset=1, max_prompts=2)
    workload.load(tokenizer)
    assert workload.preparation.notes() == []


def make_prompt(tokenizer, *turns: str, chat_template: bool = False) -> Prompt:
    ids = tuple(first_turn_ids(tokenizer, turns[0], chat_template))
    return Prompt("81", "qa", turns, ids, index=0, chat_template=chat_template)


def encode(tokenizer, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize(
    ("chat", "answer", "whole"),
    [
        (False, " Me.", "Who? Me.\n\nWhy?"),
        (True, "Me.", "<|user|>Who?<|end|><|assistant|>Me.<|end|><|user|>Why?<|end|><|assistant|>"),
        (True, "Me.<|end|>", "<|user|>Who?<|end|><|assistant|>Me.<|end|><|user|>Why?<|end|><|assistant|>"),
    ],
)
def test_a_later_turn_continues_the_tokens_of_the_answer(chat_tokenizer, chat, answer, whole):
    prompt = make_prompt(chat_tokenizer, "Who?", "Why?", chat_template=chat)
    context = [*prompt.token_ids, *encode(chat_tokenizer, answer)]
    ids = prompt.turn_ids(chat_tokenizer, 1, context)
    assert ids[: len(context)] == context
    assert chat_tokenizer.decode(ids) == whole


def test_three_turns_are_the_template_of_the_whole_conversation_and_reach_the_longest_context(chat_tokenizer):
    prompt = make_prompt(chat_tokenizer, "A?", "B?", "C?", chat_template=True)
    messages, ids, answer = [], prompt.turn_ids(chat_tokenizer, 0), "x" * 5
    for turn in (1, 2):
        ids = prompt.turn_ids(chat_tokenizer, turn, [*ids, *encode(chat_tokenizer, answer)])
        messages += [Message(role="user", content=prompt.turns[turn - 1])]
        messages += [Message(role="assistant", content=answer)]
    messages.append({"role": "user", "content": "C?"})
    whole = chat_tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert ids == encode(chat_tokenizer, whole)
    assert prompt.longest_context(chat_tokenizer, max_new_tokens=5) == len(ids) + 5


def test_a_template_that_rejects_a_later_turn_is_one_sentence(tokenizer):
    tokenizer.chat_template = "{{ raise_exception('one turn only') if messages|length > 1 else messages[0].content }}"
    prompt = make_prompt(tokenizer, "A", "B", chat_template=True)
    with pytest.raises(PromptSetError, match=r"'81': turn 1 is rejected by the .* template \(one turn only\)$"):
        prompt.longest_context(tokenizer, 4)


def test_a_byte_that_ends_an_answer_is_no_end_of_turn(tokenizer):
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}x{% endfor %}"
    prompt = make_prompt(tokenizer, "A", "B", chat_template=True)
    assert tokenizer.decode(prompt.turn_ids(tokenizer, 1, encode(tokenizer, "Ax x"))) == "Ax xxBx"


@pytest.mark.parametrize(
    ("turn", "previous", "message"),
    [
        (1, [1], r"'81' .*drops earlier answers; set chat_template: false"),
        (0, [1], "empty for turn 0, and must not be empty for a later turn"),
        (1, [], "empty for turn 0, and must not be empty for a later turn"),
    ],
)
def test_a_template_without_answers_and_wrong_previous_tokens_are_refused(tokenizer, turn, previous, message):
    tokenizer.chat_template = "{{ messages[-1].content }}"
    prompt = make_prompt(tokenizer, "A", "B", chat_template=True)
    with pytest.raises(ValueError, match=message):
        prompt.turn_ids(tokenizer, turn, previous)


def test_each_stretch_of_a_set_with_a_category_has_every_kind_in_its_share(tokenizer, write):
    rows = [{"id": f"{kind}{number}", "prompt": "A", "kind": kind} for kind in "ab" for number in range(8)]
    rows += [{"id": f"c{number}", "prompt": "A", "kind": "c"} for number in range(16)]
    prompts = OwnPrompts(write("my.jsonl", rows))
    taken = []
    for offset in range(0, 32, 8):
        stage = Workload(prompts, category="kind", shuffle_seed=3, offset=offset, max_prompts=8)
        drawn = stage.load(tokenizer)
        assert sorted(prompt.category for prompt in drawn) == [*"aabbcccc"]
        taken += [prompt.prompt_id for prompt in drawn]
    assert sorted(taken) == sorted(row["id"] for row in rows)
    with pytest.raises(PromptSetError, match="no field 'kin'; did you mean 'kind'") as refused:
        Workload(prompts, category="kin").load(tokenizer)
    assert refused.value.key == ("category",)


IMAGES = [{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}] * 7


def test_all_unusable_rows_are_named_at_once_by_kind_or_left_out(chat_tokenizer, write):
    good = {"messages": [{"role": "user", "content": "Hi"}]}
    prompts = OwnPrompts(write("my.jsonl", [good, *IMAGES, {"messages": []}, {**good, "system": "No."}]))
    with pytest.raises(PromptSetError) as refused:
        Workload(prompts).load(chat_tokenizer)
    answer = str(refused.value)
    assert "my.jsonl: 8 of 10 prompts cannot be used: rows 2, 3, 4, 5, 6 and 2 more, messages.0" in answer
    assert "; row 9, key 'messages': must be" in answer
    assert answer.endswith("; correct the file, or leave such rows out with data.unusable: skip")
    chat_tokenizer.chat_template += "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    workload = Workload(prompts, unusable="skip", max_prompts=2)
    (prompt,) = workload.load(chat_tokenizer)
    assert prompt.prompt_id == "0"
    (note,) = [one for one in workload.preparation.notes() if "left out" in one]
    assert note.startswith("9 rows left out (unusable: skip). The first: row 2, messages.0")


BODY = "{% for m in messages %}{{ m.content }}{% endfor %}"


@pytest.mark.parametrize(
    ("template", "found"),
    [
        (BODY, ""),
        ("{{ strftime_now('%Y-%m-%d') }}" + BODY, "prints the time"),
        ("{% if strftime_now is defined %}{{ strftime_now('%d %b %Y') }}{% endif %}" + BODY, "prints the time"),
        ("{{ range(100000) | list | random }}" + BODY, "differently each time"),
        ("{{ raise_exception('no') }}", ""),
    ],
    ids=["fixed", "clock", "clock if defined", "random", "error"],
)
def test_a_template_that_gives_two_renderings_for_one_prompt_is_named(template, found, tokenizer):
    tokenizer.chat_template = template
    assert found in varying_template(tokenizer)
    assert bool(varying_template(tokenizer)) == bool(found)


def test_template_arguments_decide_whether_a_template_varies(tokenizer):
    dated = "{% if dated %}{{ strftime_now('%Y') }}{% endif %}" + BODY
    tokenizer.chat_template = {"default": BODY, "tool_use": dated}
    assert varying_template(tokenizer, {"dated": True}) == ""
    assert "prints the time" in varying_template(tokenizer, {"dated": True, "tools": [{}]})
    tokenizer.chat_template = dated
    assert varying_template(tokenizer, {"dated": False}) == ""
    assert "prints the time" in varying_template(tokenizer, {"dated": True})


def test_the_digest_of_prompts_is_that_of_their_tokens():
    prompts = [Prompt("a", "own", ("text",), (1, 2), 0), Prompt("b", "own", ("text",), (3,), 1)]
    other = [replace(prompts[0], token_ids=(1, 4)), prompts[1]]
    assert digest_of_prompts(prompts) == digest_of_prompts([replace(one, index=7) for one in prompts])
    assert len({digest_of_prompts(some) for some in (prompts, other, prompts[:1], prompts[::-1])}) == 4
