"""One prompt, ready to decode turn by turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from specexp.data.prompt_set import Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ANSWER = "specexp-answer-stands-here"
"""Placeholder of an answer while a chat template is rendered."""


@dataclass(frozen=True)
class Prompt:
    """A prompt of one or more turns.

    Attributes:
        prompt_id: Unique in its set.
        category: Group of the prompt in tables.
        turns: The user's texts, one a turn, exactly as in the set.
        token_ids: The first turn as the model reads it, with chat template or special tokens, cut by the workload.
        index: Row in the set's own order, from 0; random numbers are keyed by it.
        chat_template: Whether turns are written with the tokenizer's chat template.
        context: Messages before the first turn, such as a system prompt.

    Example::

        ids = prompt.turn_ids(tokenizer, 0)
        answer = decode(ids)
        ids = prompt.turn_ids(tokenizer, 1, [*ids, *answer])  # continues from the kept cache
    """

    prompt_id: str
    category: str
    turns: tuple[str, ...]
    token_ids: tuple[int, ...]
    index: int
    chat_template: bool = False
    context: tuple[Message, ...] = ()

    def turn_ids(
        self, tokenizer: PreTrainedTokenizerBase, turn: int, previous_token_ids: Sequence[int] = ()
    ) -> list[int]:
        """Return the whole context of a turn, from 0, whose answer is to be decoded.

        The result starts with ``previous_token_ids``, so that their cache stays valid. Without chat template a later
        turn follows after a blank line. With one, the template's text between an answer and the next turn is added;
        an end-of-turn token at the end of the answer is not repeated.

        Args:
            tokenizer: The tokenizer that the prompt was made with.
            turn: Number of the turn.
            previous_token_ids: For a later turn the context so far, with the answer to ``turn - 1`` as decoded, EOS
                included; empty for turn 0.

        Raises:
            IndexError: There is no such turn.
            ValueError: Previous tokens are missing or not expected, or the chat template leaves out answers.
        """
        if not 0 <= turn < len(self.turns):
            raise IndexError(
                f"prompt {self.prompt_id!r} has {len(self.turns)} turn(s), so there is no turn {turn}."
            )
        if (turn == 0) == bool(previous_token_ids):
            raise ValueError(
                f"prompt {self.prompt_id!r}, turn {turn}: previous_token_ids must be empty for turn 0 and hold at "
                "least one token for a later turn."
            )
        if turn == 0:
            return list(self.token_ids)
        if not self.chat_template:
            return [*previous_token_ids, *_ids(tokenizer, f"\n\n{self.turns[turn]}")]
        added = _ids(tokenizer, self._after_answer(tokenizer, turn))
        if added and added[0] == previous_token_ids[-1] and added[0] in tokenizer.all_special_ids:
            added = added[1:]
        return [*previous_token_ids, *added]

    def longest_context(self, tokenizer: PreTrainedTokenizerBase, max_new_tokens: int) -> int:
        """Return the number of tokens of all turns if every answer has ``max_new_tokens``."""
        length = len(self.token_ids) + max_new_tokens
        for turn in range(1, len(self.turns)):
            # -1 is no token, so it is never taken for a repeated end-of-turn token.
            length += len(self.turn_ids(tokenizer, turn, [-1])) - 1 + max_new_tokens
        return length

    def _after_answer(self, tokenizer: PreTrainedTokenizerBase, turn: int) -> str:
        """Return the chat template's text from the answer before ``turn`` to the next answer."""
        messages = list(self.context)
        for text in self.turns[:turn]:
            messages += [{"role": "user", "content": text}, {"role": "assistant", "content": ANSWER}]
        messages.append({"role": "user", "content": self.turns[turn]})
        rendered = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        _, found, after = str(rendered).rpartition(ANSWER)
        if not found:
            raise ValueError(
                f"prompt {self.prompt_id!r} has {len(self.turns)} turns, but the tokenizer's chat template "
                "leaves out earlier answers; set chat_template: false."
            )
        return after


def first_turn_ids(
    tokenizer: PreTrainedTokenizerBase, text: str, chat_template: bool, context: Sequence[Message] = ()
) -> list[int]:
    """Return the first turn as the model reads it, with the messages before it.

    It is written with the tokenizer's chat template, up to where the answer starts. Without one, the texts of all
    messages are separated by blank lines, and the tokenizer adds its special tokens.
    """
    if not chat_template:
        return list(tokenizer("\n\n".join([*(message["content"] for message in context), text]))["input_ids"])
    messages = [*context, Message(role="user", content=text)]
    # A template writes the special tokens itself, so the tokenizer must not add them again.
    return _ids(
        tokenizer, str(tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False))
    )


def ends_inside_a_token(tokenizer: PreTrainedTokenizerBase, text: str) -> bool:
    """Return whether a text ends in white space that becomes other tokens when a word follows, as ``"Answer: "``.

    A model has rarely seen a word after such tokens, so it continues the text badly.
    """
    if not text[-1:].isspace():
        return False
    ids = _ids(tokenizer, text)
    return _ids(tokenizer, f"{text}a")[: len(ids)] != ids


def _ids(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])
