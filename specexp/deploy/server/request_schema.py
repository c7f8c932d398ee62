"""Schema of request bodies, with OpenAI's field names. Unsupported fields are accepted only with a neutral value."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Annotated, Any, Literal

from fastapi.exceptions import RequestValidationError
from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    Tag,
    model_validator,
)
from starlette.exceptions import HTTPException
from typing_extensions import override

from specexp.base.checked import Section, violation
from specexp.base.messages import shown
from specexp.data.chat import ChatMessage

_LEAST_TEMPERATURE = 0.01


class RequestError(HTTPException):
    """An error response. ``key`` names the field of the body at fault, and ``retry_after`` is in seconds."""

    def __init__(
        self, status: int, sentence: str, key: str | None = None, retry_after: int | None = None
    ) -> None:
        super().__init__(status, sentence, None if retry_after is None else {"Retry-After": str(retry_after)})
        self.key = key

    @property
    def body(self) -> dict[str, Any]:
        """The error object, in the format that OpenAI's clients expect."""
        kind = "server_error" if self.status_code >= 500 else "invalid_request_error"
        message = " ".join(self.detail.split())[:900]  # it may quote long values from the client
        return {"error": {"message": message, "type": kind, "param": self.key, "code": self.status_code}}


@dataclass(frozen=True)
class Limits:
    """Upper limits on a request."""

    body_bytes: int = 1_000_000
    prompt_tokens: int | None = None  # per prompt; None for the model's context limit
    outputs: int = 16  # number of prompts times n
    seconds: float = 600.0  # deadline; a request may set an earlier one


def _check_temperature(value: float) -> float:
    if 0 < value < _LEAST_TEMPERATURE:
        raise ValueError(f"temperature must be 0, or a number >= {_LEAST_TEMPERATURE}, got {value}")
    return value


def _as_prompts(value: Any) -> Any:
    """Wrap a single prompt, which is a text or a list of token ids, in a list. Return any other value unchanged."""
    is_ids = isinstance(value, list) and isinstance(next(iter(value), None), int)
    return [value] if is_ids or isinstance(value, str) else value


# violation() drops tags in parentheses from an error's key.
# With a discriminator, pydantic reports only the error of the matching alternative.
_by_type = Discriminator(lambda value: "(text)" if isinstance(value, str) else "(other)")
_Text = Annotated[str, Tag("(text)")]
_Count = Annotated[int, Field(ge=1, le=2**31)]
_Integer = Annotated[int, Field(ge=-(2**63), lt=2**63)]
_TokenIds = Annotated[list[Annotated[int, Field(ge=0, le=2**31)]], Tag("(other)")]
_Prompts = Annotated[
    list[Annotated[_Text | _TokenIds, _by_type]], Field(min_length=1), BeforeValidator(_as_prompts)
]
_Stop = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=200)]],
    Field(max_length=16),
    BeforeValidator(lambda value: [value] if isinstance(value, str) else value),
]
_Sequence = Annotated[
    Annotated[_Text, Field(max_length=1000)] | Annotated[_Integer, Tag("(other)")], _by_type
]

_IGNORED = {"user", "metadata", "store", "safety_identifier", "prompt_cache_key", "service_tier"}
"""Fields that do not affect the output. They are accepted and ignored."""
_UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("frequency_penalty", "presence_penalty", "min_p"), (0,)),
    **dict.fromkeys(("repetition_penalty", "best_of"), (1,)),
    **dict.fromkeys(("tools", "functions"), ([],)),
    **dict.fromkeys(("tool_choice", "function_call"), ("none", "auto")),
    **dict.fromkeys(("audio", "prediction"), ()),
    "logit_bias": ({},),
    "echo": (False,),
    "suffix": ("",),
    "response_format": ({"type": "text"},),
    "parallel_tool_calls": (True, False),
    "modalities": (["text"],),
    "reasoning_effort": ("none",),
}
"""Unsupported fields, each with the neutral values that are accepted and ignored."""


class GenerationRequest(Section):
    """Fields shared by completion and chat requests. Null selects the default.

    Attributes:
        model: name of the model; None for the served model.
        temperature: 0 for greedy decoding, otherwise at least 0.01.
        n: number of outputs for each prompt.
        stop: strings that end an output; a single string is accepted too.
        seed: random seed; None draws one.
        sequence: second part of the random key (see :meth:`~specexp.core.loop.Decoder.generate`); by default the
            output's index, from 0.
        stream_options: ``{"include_usage": true}`` adds a last chunk with the token counts.
        speculative: whether to draft, or the maximum number of drafted tokens per step. It does not change the output.
        deadline: time limit for the request, in seconds.
    """

    model: str | None = None
    max_tokens: _Count | None = None
    temperature: Annotated[float, Field(ge=0, le=2), AfterValidator(_check_temperature)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: _Count | None = None
    n: _Count = 1
    stop: _Stop = Field([])
    seed: _Integer | None = None
    sequence: _Sequence | None = None
    stream: bool = False
    stream_options: dict[Literal["include_usage"], bool] = Field({})
    speculative: bool | Annotated[int, Field(ge=0, le=1024)] = True
    deadline: Annotated[float, Field(gt=0, le=86400)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _without_neutral_fields(cls, body: Any) -> Any:
        """Reject unsupported values, and drop null and ignored fields. The base class rejects unknown fields."""
        if not isinstance(body, dict):
            return body
        for name, neutral in _UNSUPPORTED.items():
            value = body.get(name)
            if value is not None and value not in neutral:
                sentence = f"{name} is not supported by this server, got {shown(value)}; leave it out"
                raise RequestError(400, sentence, name)
        dropped = _UNSUPPORTED.keys() | _IGNORED
        return {name: value for name, value in body.items() if value is not None and name not in dropped}

    @property
    def top_log_probs(self) -> int | None:
        """Number of top tokens to list for each output token; None for no log-probabilities."""
        raise NotImplementedError


class CompletionRequest(GenerationRequest):
    """The body of ``/v1/completions``. ``prompt`` is a text, a list of token ids, or a list of either."""

    prompt: _Prompts
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None

    @property
    @override
    def top_log_probs(self) -> int | None:
        return self.logprobs


class ChatRequest(GenerationRequest):
    """The body of ``/v1/chat/completions``. ``max_completion_tokens`` is an alias of ``max_tokens``."""

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=1000)]
    max_completion_tokens: _Count | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None

    @property
    @override
    def top_log_probs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    @model_validator(mode="after")
    def _check_fields_together(self) -> ChatRequest:
        role = self.messages[-1].role
        if self.top_logprobs is not None and not self.logprobs:
            raise RequestError(400, "logprobs must be true if top_logprobs is set", "logprobs")
        if None not in (self.max_tokens, self.max_completion_tokens):
            raise RequestError(
                400, "max_tokens and max_completion_tokens are both set: give only one of them", "max_tokens"
            )
        if role not in ("user", "human"):
            raise RequestError(400, f"the last message must have the role 'user', got {role!r}", "messages")
        return self


def refusal_of(error: RequestValidationError) -> RequestError:
    """Convert FastAPI's error about an invalid body to a RequestError with a one-sentence message."""
    # FastAPI puts "body" before the location of each error
    details = [{**one, "loc": one["loc"][1:]} for one in error.errors()]
    pydantics: Any = SimpleNamespace(errors=lambda **_: details)
    steps, sentence = violation(pydantics, error.body)
    key = ".".join(steps)[:200]  # it may contain a long key from the client
    return RequestError(400, f"{key or 'the body'}{sentence}", key or None)
