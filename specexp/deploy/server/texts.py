"""Between texts and token ids: prompts, chats, pieces of an answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any

from specexp.core.messages import shown, type_and_line
from specexp.data.conversation import ROLES
from specexp.data.prompt import first_turn_ids
from specexp.data.prompt_set import Message
from specexp.deploy.server.error import RequestError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_MOST_MESSAGES = 1000


class Texts:
    """A target's tokenizer at work for several requests.

    A chat is written with the tokenizer's chat template. Where it has none, the texts of all messages stand with a
    blank line between them, without their roles, as the prompt sets of a study write them.

    Args:
        tokenizer: the target's.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer
        self.has_template = bool(tokenizer.chat_template)
        self._lock = Lock()  # a tokenizer keeps how it pads from call to call

    def ids(self, text: str) -> list[int]:
        """Token ids of a prompt, with the special tokens that the tokenizer adds."""
        with self._lock:
            return list(self.tokenizer(text)["input_ids"])

    def chat_ids(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """Token ids of a chat, up to where the answer begins.

        Raises:
            RequestError: a message is none, the last is not the user's, or the template takes no such chat.
        """
        read = [_message(number, message) for number, message in enumerate(messages)]
        if not 0 < len(read) <= _MOST_MESSAGES:
            raise RequestError(
                400, f"messages lists {len(read)}; allowed are 1 to {_MOST_MESSAGES}", "messages"
            )
        if read[-1]["role"] != "user":
            raise RequestError(
                400,
                f"the last message is of the {read[-1]['role']}; one of the user is expected, to be answered",
                "messages",
            )
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


def _message(number: int, given: Mapping[str, Any]) -> Message:
    key = f"messages.{number}"
    if unknown := sorted(set(given) - {"role", "content", "name", "refusal"}):
        raise RequestError(400, f"{key} has {shown(unknown[0])}; role and content are read", key)
    role, content = given.get("role"), given.get("content")
    if not isinstance(role, str) or role not in ROLES:
        raise RequestError(400, f"{key}.role is {shown(role)}; roles are {', '.join(ROLES)}", f"{key}.role")
    if isinstance(content, list):
        for part in content:
            text = part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None
            if not isinstance(text, str):
                raise RequestError(
                    400, f"{key}.content holds {shown(part)}; parts of text are read alone", key
                )
        content = "".join(part["text"] for part in content)
    if not isinstance(content, str):
        raise RequestError(400, f"{key}.content is {shown(content)}; a text is expected", f"{key}.content")
    return Message(role=ROLES[role], content=content)
