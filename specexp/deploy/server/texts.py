"""Between texts and token ids: prompts, chats, and the text of an output while it is generated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Lock
from typing import TYPE_CHECKING

from specexp.core.messages import type_and_line
from specexp.data.own_prompts import ROLES
from specexp.data.prompt import first_turn_ids
from specexp.data.prompt_set import Message
from specexp.deploy.server.requests import ChatMessage, RequestError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_UNFINISHED = "\ufffd"
"""The text of bytes that are no character yet, as tokenizers write it."""


class Texts:
    """The target's tokenizer, used by several requests at once.

    A chat is written with the tokenizer's chat template; without one the texts of all messages are joined by blank
    lines, without their roles, as the prompt sets of a study write them.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer
        self.has_template = bool(tokenizer.chat_template)
        self._lock = Lock()  # a tokenizer keeps how it pads from call to call

    def ids(self, text: str) -> list[int]:
        """Token ids of a prompt, with the special tokens that the tokenizer adds."""
        with self._lock:
            return list(self.tokenizer(text)["input_ids"])

    def chat_ids(self, messages: Sequence[ChatMessage]) -> list[int]:
        """Token ids of a chat, up to where the answer begins.

        Raises:
            RequestError: the template takes no such chat.
        """
        read = [Message(role=ROLES[one.role], content=one.text) for one in messages]
        try:
            with self._lock:
                return first_turn_ids(self.tokenizer, read[-1]["content"], self.has_template, read[:-1])
        except Exception as error:  # what a model's template raises is its own
            why = type_and_line(error)[:300]
            raise RequestError(400, f"the model's chat template takes no such messages ({why})") from error

    def text(self, ids: Sequence[int]) -> str:
        """Of new tokens, special ones left out."""
        text: str = self.tokenizer.decode(
            list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text

    def token(self, token: int) -> str:
        """Of one token, whatever it is."""
        text: str = self.tokenizer.decode([token], clean_up_tokenization_spaces=False)
        return text


class Written:
    """Text of new tokens. With stop strings it is a :data:`~specexp.core.loop.Stop`, called token by token; without
    any it is given the tokens of each step.

    Sent text is never taken back: a character waits for its last byte, and text that may be the beginning of a stop
    string waits until that is known. Neither a stop string nor anything behind it is sent.

    Example:
        >>> written = Written(lambda ids: "".join(map(chr, ids)), ["\\n\\n"])
        >>> [written([97]), written([97, 10]), written.take(), written([97, 10, 10]), written.rest()]
        [False, False, 'a', True, '']
    """

    def __init__(self, decode: Callable[[list[int]], str], stop: Sequence[str] = ()) -> None:
        self._decode = decode
        self._stop = tuple(stop)
        self._longest = max(map(len, self._stop), default=0)
        self._tokens: list[int] = []
        self._shown = self._read = 0  # tokens whose text is there, without and with the last piece
        self._waiting = ""  # made and not taken
        self._stopped = False

    def __call__(self, said: Sequence[int]) -> bool:
        """Take the last of these new tokens; whether a stop string ends the output with it."""
        self.extend((int(said[-1]),))
        return self._stopped

    @property
    def stops(self) -> bool:
        """Whether there are strings that end the output."""
        return bool(self._stop)

    def extend(self, tokens: Sequence[int]) -> None:
        """Take further tokens."""
        self._tokens += tokens
        before = self._decode(self._tokens[self._shown : self._read])
        now = self._decode(self._tokens[self._shown :])
        if not now.endswith(_UNFINISHED):
            self._add(now[len(before) :])
            self._shown, self._read = self._read, len(self._tokens)

    def take(self) -> str:
        """The text that can be sent now."""
        kept = 0 if self._stopped else self._beginning_of_stop()
        text, self._waiting = (
            self._waiting[: len(self._waiting) - kept],
            self._waiting[len(self._waiting) - kept :],
        )
        return text

    def rest(self) -> str:
        """The text that is left once the output has ended."""
        if not self._stopped:
            before = self._decode(self._tokens[self._shown : self._read])
            self._add(self._decode(self._tokens[self._shown :])[len(before) :])
        text, self._waiting = self._waiting, ""
        return text

    def _add(self, text: str) -> None:
        start = max(0, len(self._waiting) - self._longest + 1)
        self._waiting += text
        found = [at for one in self._stop if (at := self._waiting.find(one, start)) >= 0]
        if found:
            self._waiting, self._stopped = self._waiting[: min(found)], True

    def _beginning_of_stop(self) -> int:
        """Characters at the end that a stop string begins with; what was sent before holds none."""
        for count in range(min(self._longest - 1, len(self._waiting)), 0, -1):
            end = self._waiting[-count:]
            if any(one.startswith(end) for one in self._stop):
                return count
        return 0
