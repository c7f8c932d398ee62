"""Which prompts are decoded, in which order, and what happens to one that is too long."""

from collections.abc import Sequence

import pytest
from helpers.small_models import byte_tokenizer
from hypothesis import given, strategies as st

from specexp.data import Prompt, PromptRow, PromptSet, PromptSetError, Workload, prompt_rows
from specexp.data.prompt_set import Message


class Letters(PromptSet):
    """Prompts A, B, C ... or the texts given."""

    def __init__(self, texts: Sequence[str] = "ABCDEFGH", prompt_tokens: int | None = None) -> None:
        self.texts = texts
        self.prompt_tokens = prompt_tokens

    def load(self):
        rows = (PromptRow(f"p{i}", "letters", [text]) for i, text in enumerate(self.texts))
        return prompt_rows(rows, where="Letters")


def test_file_order_by_default(tokenizer):
    prompts = Workload(Letters()).load(tokenizer)
    assert "".join(prompt.turns[0] for prompt in prompts) == "ABCDEFGH"
    assert prompts[1] == Prompt("p1", "letters", ("B",), tuple(tokenizer("B")["input_ids"]), index=1)


def test_the_index_is_the_row_in_the_set_whatever_the_order(tokenizer):
    for prompt in Workload(Letters(), shuffle_seed=3, offset=2).load(tokenizer):
        assert prompt.prompt_id == f"p{prompt.index}"


class NoTokens:
    """A stand-in where tokens do not matter."""

    chat_template = None
    bos_token_id = None

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": [1]}


@given(taken=st.integers(1, 10), seed=st.none() | st.integers(0, 5))
def test_search_and_confirmation_share_no_prompt(taken: int, seed: int | None):
    letters = Letters([f"text {i}" for i in range(12)])
    search = Workload(letters, max_prompts=taken, shuffle_seed=seed).load(NoTokens())
    confirm = Workload(letters, offset=taken, shuffle_seed=seed).load(NoTokens())
    assert len(search) == taken
    assert sorted(p.index for p in search + confirm) == list(range(12))


def test_an_offset_beyond_the_set_is_refused(tokenizer):
    with pytest.raises(
        PromptSetError, match="offset 8 passes over all 8 prompts of Letters; it can be at most 7"
    ):
        Workload(Letters(), offset=8).load(tokenizer)


def test_a_prompt_that_is_too_long_is_refused_by_default(tokenizer):
    workload = Workload(Letters(["short", "much too long"]), max_prompt_tokens=5)
    with pytest.raises(
        PromptSetError, match="prompt 'p1' of Letters has 13 tokens, more than max_prompt_tokens: 5; raise it"
    ):
        workload.load(tokenizer)


def test_truncation_keeps_the_bos_token(tokenizer):
    tokenizer.bos_token = "<s>"
    (prompt,) = Workload(Letters(["<s>too long"]), max_prompt_tokens=5, too_long="keep-last").load(tokenizer)
    assert tokenizer.decode(prompt.token_ids) == "<s>long"


def test_raw_text_and_a_chat_template_do_not_go_together():
    with pytest.raises(ValueError, match=r"chat_template: true does not go with Letters.*first 4 tokens"):
        Workload(Letters(prompt_tokens=4), chat_template=True)


def test_a_chat_template_that_the_tokenizer_has_not_is_refused(tokenizer):
    with pytest.raises(PromptSetError, match="chat_template is true, but the tokenizer has none"):
        Workload(Letters(["A"]), chat_template=True).load(tokenizer)


class Chat(PromptSet):
    """One conversation with a system prompt."""

    def load(self):
        before = [
            Message(role="system", content="Be brief."),
            Message(role="user", content="Hi"),
            Message(role="assistant", content="Yes?"),
        ]
        return prompt_rows([PromptRow("c", "chat", ["Why? "], before, chat=True)], where="Chat")


def test_chat_messages_are_written_with_the_template_with_what_came_before(chat_tokenizer):
    (prompt,) = Workload(Chat()).load(chat_tokenizer)
    assert chat_tokenizer.decode(prompt.token_ids) == (
        "<|system|>Be brief.<|end|><|user|>Hi<|end|><|assistant|>Yes?<|end|><|user|>Why? <|end|><|assistant|>"
    )


def test_chat_messages_need_a_template_unless_their_plain_form_is_chosen(tokenizer):
    with pytest.raises(
        PromptSetError, match=r"made of chat messages.*no chat template.*chat_template: false"
    ):
        Workload(Chat()).load(tokenizer)
    (prompt,) = Workload(Chat(), chat_template=False).load(tokenizer)
    assert tokenizer.decode(prompt.token_ids) == "Be brief.\n\nHi\n\nYes?\n\nWhy? "


def test_a_template_that_refuses_a_role_is_one_sentence(chat_tokenizer):
    chat_tokenizer.chat_template = "{{ raise_exception('System role not supported') }}"
    with pytest.raises(
        PromptSetError,
        match=r"'c' of Chat cannot be tokenized with the tokenizer.s chat template \(System role not supported\)",
    ):
        Workload(Chat()).load(chat_tokenizer)


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
    assert workload.preparation.warnings() == [
        "2 of 6 prompts end in white space that becomes other tokens when a word follows (the first is 'p0'); specexp "
        "does no token healing, so remove it."
    ]
    assert '"end_inside_a_token": [\n  "p0"' in workload.preparation.files()["prompts.json"]


def test_a_chat_template_and_the_cut_of_raw_text_end_no_prompt_inside_a_token():
    joins_blanks = byte_tokenizer("Ġa")
    joins_blanks.chat_template = "{{ messages[0].content }}"
    for workload in (
        Workload(Letters(["Answer: "]), chat_template=True),
        Workload(Letters(["Answer: "], prompt_tokens=4)),
    ):
        workload.load(joins_blanks)
        assert workload.preparation.end_inside_a_token == []


@pytest.mark.parametrize(
    ("policy", "kept", "note"),
    [
        (
            "keep-last",
            ["short", " long"],
            "1 of 2 prompts cut to the last 5 of up to 13 tokens (too_long: keep-last).",
        ),
        (
            "keep-first",
            ["short", "much "],
            "1 of 2 prompts cut to the first 5 of up to 13 tokens (too_long: keep-first).",
        ),
        ("skip", ["short"], "1 prompt of more than 5 tokens left out (too_long: skip)."),
    ],
)
def test_what_happens_to_a_prompt_that_is_too_long_is_counted(tokenizer, policy, kept, note):
    workload = Workload(Letters(["short", "much too long"]), max_prompt_tokens=5, too_long=policy)
    assert [tokenizer.decode(prompt.token_ids) for prompt in workload.load(tokenizer)] == kept
    assert workload.preparation.notes() == [note]
    assert '"p1": 13' in workload.preparation.files()["prompts.json"]


def test_texts_of_which_only_the_first_tokens_are_prompts_are_counted(tokenizer):
    workload = Workload(Letters(["Once upon a time", "Oh"], prompt_tokens=4))
    workload.load(tokenizer)
    assert workload.preparation.notes() == [
        "1 of 2 prompts are the first 4 tokens of a longer text (prompt_tokens)."
    ]


def test_policies_that_would_leave_nothing_or_break_a_template_are_refused(tokenizer, chat_tokenizer):
    with pytest.raises(PromptSetError, match=r"all 1 prompts of Letters .* too_long: skip leaves none"):
        Workload(Letters(["much too long"]), max_prompt_tokens=5, too_long="skip").load(tokenizer)
    with pytest.raises(PromptSetError, match="keep-first would cut off the end of"):
        Workload(Chat(), max_prompt_tokens=5, too_long="keep-first").load(chat_tokenizer)
    with pytest.raises(ValueError, match=r"too_long: skip is for prompts .* which is not set"):
        Workload(Letters(), too_long="skip")


def test_prompts_of_the_same_text_are_told_for_they_narrow_the_interval(tokenizer):
    workload = Workload(Letters(list("AABA")))
    workload.load(tokenizer)
    (note,) = workload.preparation.notes()
    assert note.startswith("2 of 4 prompts repeat the text of an earlier one")
    assert '"repeated": 2' in workload.preparation.files()["prompts.json"]
    workload = Workload(Letters(list("AABA")), offset=1, max_prompts=2)
    workload.load(tokenizer)
    assert workload.preparation.notes() == []
