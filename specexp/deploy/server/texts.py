"""Conversion between text and token ids, for prompts, chats, and outputs as they are generated."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from threading import Lock
from typing import TYPE_CHECKING

from specexp.base.messages import type_and_line
from specexp.data.chat import ChatMessage
from specexp.data.workload import chat_ids, first_turn_ids, renders_turns, varying_template
from specexp.deploy.server.request_schema import (
    ChatRequest,
    CompletionRequest,
    GenerationRequest,
    RequestError,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

log = logging.getLogger("specexp.serve")
_INCOMPLETE = "\ufffd"
"""Replacement character, which tokenizers return for the bytes of an incomplete character."""


class Texts:
    """The target's tokenizer, shared by all requests.

    Chat messages are rendered with the tokenizer's chat template. If it has none, the message texts are joined by
    blank lines, without their roles, as in a study's workload.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer
        if why := varying_template(tokenizer):
            log.warning(f"{why}, so the prompt cache seldom finds the beginning of a prompt")
        self._lock = Lock()  # calling a tokenizer changes its padding settings, which is not thread-safe

    def prompts(self, request: GenerationRequest) -> list[list[int]]:
        """Return the token ids of a request's prompts. Text prompts include the tokenizer's special tokens.

        Raises:
            RequestError: the chat template raises an error for the messages.
        """
        with self._lock:
            if isinstance(request, ChatRequest):
                return [self._chat_ids(request.messages)]
            assert isinstance(request, CompletionRequest)
            return [
                first_turn_ids(self.tokenizer, one, False) if isinstance(one, str) else one
                for one in request.prompt
            ]

    def _chat_ids(self, messages: Sequence[ChatMessage]) -> list[int]:
        read = [one.message() for one in messages]
        try:
            template, _ = renders_turns(self.tokenizer, read[-1]["content"], chat=True)
            return chat_ids(self.tokenizer, read, template)
        except Exception as error:  # a template is a program and may raise any error
            why = type_and_line(error)[:300]
            raise RequestError(400, f"the model's chat template rejects these messages ({why})") from error

    def text(self, ids: Sequence[int], *, special: bool = False) -> str:
        """Decode tokens to text, without special tokens unless ``special`` is set."""
        text: str = self.tokenizer.decode(
            list(ids), skip_special_tokens=not special, clean_up_tokenization_spaces=False
        )
        return text


class OutputText:
    """Incremental decoder from an output's tokens to text.

    :meth:`take` returns only final text. It holds back incomplete characters and any text that may be the beginning
    of a stop string. A stop string and all text after it are dropped. If there are stop strings, the loop calls this
    object after each token (:data:`~specexp.core.loop.Stop`). Otherwise, :meth:`extend` adds several tokens at once.

    Example:
        >>> text = OutputText(lambda ids: "".join(map(chr, ids)), ["\\n\\n"])
        >>> [text([97]), text([97, 10]), text.take(), text([97, 10, 10]), text.rest()]
        [False, False, 'a', True, '']
    """

    def __init__(self, decode: Callable[[list[int]], str], stop: Sequence[str] = ()) -> None:
        self._decode = decode
        self._stop = tuple(stop)
        self._longest = max(map(len, self._stop), default=0)
        self._tokens: list[int] = []
        # A token's text depends on the token before it, so new tokens are decoded together with the last complete
        # group of tokens, _tokens[_decoded:_shown], and the text of that group is cut off.
        self._decoded = self._shown = 0
        self._waiting = ""  # decoded text that has not been taken yet
        self._stopped = False

    def __call__(self, new_tokens: Sequence[int]) -> bool:
        """Add the last token of ``new_tokens``; return whether a stop string is complete."""
        self.extend((int(new_tokens[-1]),))
        return self._stopped

    @property
    def stops(self) -> bool:
        """True if there are stop strings."""
        return bool(self._stop)

    def extend(self, tokens: Sequence[int]) -> None:
        """Add tokens and decode them."""
        self._tokens += tokens
        text = self._new_text()
        if not text.endswith(_INCOMPLETE):
            self._add(text)
            self._decoded, self._shown = self._shown, len(self._tokens)

    def take(self) -> str:
        """Return the text that has become final since the last call."""
        end = len(self._waiting) - (0 if self._stopped else self._beginning_of_stop())
        text, self._waiting = self._waiting[:end], self._waiting[end:]
        return text

    def rest(self) -> str:
        """Return the remaining text once the output has ended."""
        if not self._stopped:
            self._add(self._new_text())
        text, self._waiting = self._waiting, ""
        return text

    def _new_text(self) -> str:
        before = self._decode(self._tokens[self._decoded : self._shown])
        return self._decode(self._tokens[self._decoded :])[len(before) :]

    def _add(self, text: str) -> None:
        start = max(0, len(self._waiting) - self._longest + 1)
        self._waiting += text
        found = [at for one in self._stop if (at := self._waiting.find(one, start)) >= 0]
        if found:
            self._waiting, self._stopped = self._waiting[: min(found)], True

    def _beginning_of_stop(self) -> int:
        """Return the number of characters at the end that may be the beginning of a stop string."""
        for count in range(min(self._longest - 1, len(self._waiting)), 0, -1):
            end = self._waiting[-count:]
            if any(one.startswith(end) for one in self._stop):
                return count
        return 0
