"""What is answered instead of an output: a status and one sentence."""

from __future__ import annotations

from typing import Any


class RequestError(Exception):
    """A request that is not answered.

    Args:
        status: of the HTTP answer.
        sentence: what was given, where, and what is allowed.
        key: the field of the body, if it is one's fault.
        retry_after: seconds after which asking again may help.
    """

    def __init__(
        self, status: int, sentence: str, key: str | None = None, retry_after: int | None = None
    ) -> None:
        super().__init__(sentence)
        self.status = status
        self.sentence = sentence
        self.key = key
        self.headers = {} if retry_after is None else {"Retry-After": str(retry_after)}

    @property
    def body(self) -> dict[str, Any]:
        """As OpenAI's clients read it."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        return {"error": {"message": self.sentence, "type": kind, "param": self.key, "code": self.status}}
