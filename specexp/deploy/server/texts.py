"""Conversion between text and token ids, for prompts, chats, and outputs as they are generated."""

from __future__ import annotations

import codecs
import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING, Any

from specexp.base.messages import first_line, restated, shown, type_and_line
from specexp.data.chat import Message, check_template_arguments, template_text
from specexp.data.workload import chat_ids, first_turn_ids, renders_turns, varying_template
from specexp.deploy.server.request_schema import AnyRequest, ChatRequest, RequestError
from specexp.deploy.server.tool_calls import MARK

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

log = logging.getLogger("specexp.serve")
_INCOMPLETE = "\ufffd"
"""Replacement character, which tokenizers return for the bytes of an incomplete character."""


class Texts:
    """The target's tokenizer, shared by all requests.

    Chat messages are rendered with the tokenizer's chat template. If it has none, the message texts are joined by blank
    lines, without their roles, as in a study's workload. ``template_arguments`` are default variables of the template.
    Raises ValueError if the template does not use an argument.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, template_arguments: Mapping[str, Any] | None = None) -> None:
        self.tokenizer = tokenizer
        self._arguments = dict(template_arguments or {})
        check_template_arguments(tokenizer, self._arguments)
        if why := varying_template(tokenizer, self._arguments):
            log.warning(f"{why}, so the prompt cache seldom finds the beginning of a prompt")
        self._lock = Lock()  # calling a tokenizer changes its padding settings, which is not thread-safe

    def prompts(self, request: AnyRequest) -> list[list[int]]:
        """Return the token ids of a request's prompts. Text prompts include the tokenizer's special tokens.

        Raises RequestError if the chat template raises an error for the messages.
        """
        with self._lock:
            if isinstance(request, ChatRequest):
                return [self._chat_ids(request)]
            return [
                first_turn_ids(self.tokenizer, one, False) if isinstance(one, str) else one for one in request.prompt
            ]

    def _chat_ids(self, request: ChatRequest) -> list[int]:
        read = [one.message() for one in request.messages]
        own = request.chat_template_kwargs
        with restated(ValueError, lambda error: RequestError(400, first_line(error), "chat_template_kwargs")):
            check_template_arguments(self.tokenizer, own)
        try:
            template, _ = renders_turns(self.tokenizer, read[-1]["content"], chat=True)
            if request.calls is not None:
                read, own = self._with_tools(request, read, own)
            return chat_ids(self.tokenizer, read, template, self._arguments | own)
        except RequestError:
            raise
        except Exception as error:  # a template is a program and may raise any error
            why = type_and_line(error)[:300]
            raise RequestError(400, f"the model's chat template rejects these messages ({why})") from error

    def _with_tools(
        self, request: ChatRequest, messages: list[Message], arguments: dict[str, Any]
    ) -> tuple[list[Message], dict[str, Any]]:
        """Return messages and template arguments that describe the request's tools.

        A template that does not read ``tools`` gets them in the system message.
        """
        tools = [one.model_dump(exclude_none=True) for one in request.tools]
        given = {**arguments, "tools": tools}
        text = template_text(self.tokenizer, self._arguments | given) if self.tokenizer.chat_template else ""
        if request.calls == "auto" and MARK not in text:
            sentence = (
                "tool_choice must be none, required or a function, since this model's chat template has no calls in "
                f"<tool_call>, got {shown(request.tool_choice or 'auto')}"
            )
            raise RequestError(400, sentence, "tool_choice")
        if re.search(r"\btools\b", text):
            return messages, given
        lines = "\n".join(json.dumps(one["function"], ensure_ascii=False) for one in tools)
        about = f'You can call these tools. Answer as JSON with the keys "name" and "arguments".\n\n{lines}'
        if messages[0]["role"] == "system":
            about = f"{messages.pop(0)['content']}\n\n{about}"
        return [Message(role="system", content=about), *messages], arguments

    def text(self, ids: Sequence[int], *, special: bool = False) -> str:
        """Decode tokens to text, without special tokens unless ``special`` is set."""
        kept = {"skip_special_tokens": not special, "clean_up_tokenization_spaces": False}
        return str(self.tokenizer.decode(list(ids), **kept))

    def token_bytes(self, token: int) -> bytes:
        """Return a token's own bytes, which may be a part of a character. Special tokens are written out."""
        piece = self.tokenizer.convert_ids_to_tokens(token)
        if piece is None:  # models may have more logits than there are tokens
            return b""
        if token in self.tokenizer.added_tokens_decoder:
            return str(piece).encode()
        kinds = {one["type"] for one in self._decoders}
        if "ByteLevel" in kinds:
            return b"".join(self._bytes.get(char, char.encode()) for char in piece)
        if "ByteFallback" in kinds and re.fullmatch("<0x[0-9A-F]{2}>", piece):
            return bytes.fromhex(piece[3:5])
        marks = [one for one in self._decoders if one["type"] in ("Metaspace", "Replace")]
        for one in marks:  # of spaces
            mark = one.get("replacement") or one["pattern"].get("String")
            piece = piece.replace(mark, one.get("content", " ")) if mark else piece
        return (piece if marks else self.text([token], special=True)).encode()

    @cached_property
    def special_ids(self) -> dict[int, str]:
        """The tokens that are not shown in texts, and how they are written."""
        return {token: one.content for token, one in self.tokenizer.added_tokens_decoder.items() if one.special}

    @cached_property
    def _decoders(self) -> list[dict[str, Any]]:
        """The tokenizer's decoders, each with its type and settings."""
        found: Any = getattr(self.tokenizer, "backend_tokenizer", None)
        if found is None:  # SentencePiece itself
            return [{"type": "ByteFallback"}, {"type": "Metaspace", "replacement": "\u2581"}]
        outer = json.loads(found.decoder.__getstate__()) if found.decoder else {"type": "Fuse"}
        return list(outer.get("decoders", [outer]))

    @cached_property
    def _bytes(self) -> dict[str, bytes]:
        from transformers.convert_slow_tokenizer import bytes_to_unicode

        return {char: bytes([byte]) for byte, char in bytes_to_unicode().items()}


class TokenTexts:
    """The texts of one output's tokens. The bytes of all tokens, one after another, are those of the output's text."""

    def __init__(self, texts: Texts, skips_special: bool = True) -> None:
        self._texts = texts
        self._skipped = texts.special_ids if skips_special else {}
        self._characters = codecs.getincrementaldecoder("utf-8")("replace")
        self._begun = False
        self._length = 0  # complete characters of the output so far

    def bytes_of(self, token: int) -> bytes:
        """Return the bytes that a token would add to the text; empty for a special token."""
        found = b"" if token in self._skipped else self._texts.token_bytes(token)
        # SentencePiece's decoders remove the space at the beginning of a text
        stripped = not self._begun and self._texts.text([token]).encode() == found[1:]
        return found[1:] if stripped and found[:1] == b" " else found

    def text_of(self, token: int) -> str:
        """Return a token as text, in OpenAI's notation ``bytes:\\xf0`` if it is only a part of a character."""
        found = self._texts.token_bytes(token) if token in self._skipped else self.bytes_of(token)
        try:
            return found.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in found)

    def add(self, token: int) -> int:
        """Add the output's next token; return its place in the text, in characters."""
        found = self.bytes_of(token)
        pending = self._characters.getstate()[0]
        # a character that is not continued is shown as one U+FFFD
        place = self._length + bool(pending and found and not 0x80 <= found[0] < 0xC0)
        self._length += len(self._characters.decode(found))
        self._begun |= bool(found)
        return place


class OutputText:
    """Incremental decoder from an output's tokens to text.

    :meth:`take` returns only final text. It holds back incomplete characters and any text that may be the beginning
    of a stop string. A stop string and all text after it are dropped. If there are stop strings, the loop calls this
    object after each token (:data:`~specexp.core.loop.Stop`). Otherwise, :meth:`extend` adds several tokens at once.
    The output ends in front of the first complete stop string. Stop strings that end in the text of the first
    ``min_tokens`` tokens are ignored.

    Example:
        >>> text = OutputText(lambda ids: "".join(map(chr, ids)), ["\\n\\n"])
        >>> [text([97]), text([97, 10]), text.take(), text([97, 10, 10]), text.rest()]
        [False, False, 'a', True, '']
    """

    def __init__(self, decode: Callable[[list[int]], str], stop: Sequence[str] = (), min_tokens: int = 0) -> None:
        self._decode = decode
        self._stop = tuple(stop)
        self._min_tokens = min_tokens
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
        unsearched = max(0, self._min_tokens - len(self._tokens)) if self._stop else 0
        for token in tokens[:unsearched]:  # so that no stop string is searched in their text
            self._append((token,))
        self._append(tokens[unsearched:])

    def _append(self, tokens: Sequence[int]) -> None:
        self._tokens += tokens
        text = self._new_text()
        if not text.endswith(_INCOMPLETE):
            self._add(text)
            self._decoded, self._shown = self._shown, len(self._tokens)

    def take(self) -> str:
        """Return the text that has become final since the last call."""
        # a stop string may begin at the end of the text
        begun = [size for one in self._stop for size in range(len(one)) if self._waiting.endswith(one[:size])]
        end = len(self._waiting) - (0 if self._stopped else max(begun, default=0))
        text = self._waiting[:end]
        self._waiting = self._waiting[end:]
        return text

    def rest(self) -> str:
        """Return the remaining text once the output has ended."""
        if not self._stopped:
            self._add(self._new_text())
        text = self._waiting
        self._waiting = ""
        return text

    def _new_text(self) -> str:
        before = self._decode(self._tokens[self._decoded : self._shown])
        return self._decode(self._tokens[self._decoded :])[len(before) :]

    def _add(self, text: str) -> None:
        before = len(self._waiting)
        self._waiting += text
        starts = {one: self._waiting.find(one, max(0, before - len(one) + 1)) for one in self._stop}
        found = [(start + len(one), start) for one, start in starts.items() if start >= 0]
        if found and len(self._tokens) > self._min_tokens:
            self._waiting = self._waiting[: min(found)[1]]
            self._stopped = True
