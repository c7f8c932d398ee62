"""The bodies of requests by OpenAI's names. A field that this server cannot obey is refused in a sentence."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    model_validator,
)
from starlette.requests import ClientDisconnect, Request

from specexp.artifacts.manifest import parse_json
from specexp.artifacts.validation import ArtifactError, violation
from specexp.core.messages import did_you_mean, shown
from specexp.data.own_prompts import ROLES

_BODY_SECONDS = 30.0
_LEAST_TEMPERATURE = 0.01


class RequestError(Exception):
    """A refused request.

    Args:
        status: HTTP status.
        sentence: what is wrong, and what is allowed.
        key: the field of the body that is wrong, if it is one.
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
        """The error object that OpenAI's clients read."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        return {"error": {"message": self.sentence, "type": kind, "param": self.key, "code": self.status}}


@dataclass(frozen=True)
class Limits:
    """Bounds of a request.

    Attributes:
        body_bytes: of a body.
        prompt_tokens: of a prompt; None leaves the model's context.
        outputs: of a request, its prompts times ``n``.
        seconds: until a request must be complete; its own deadline may be earlier.
    """

    body_bytes: int = 1_000_000
    prompt_tokens: int | None = None
    outputs: int = 16
    seconds: float = 600.0


def _temperature(value: float) -> float:
    if 0 < value < _LEAST_TEMPERATURE:
        raise ValueError(f"temperature must be 0, or a number >= {_LEAST_TEMPERATURE}, got {value}")
    return value


def _form(value: Any) -> str | None:
    """The tag of a union's member; :func:`~specexp.artifacts.validation.violation` leaves it out of the key."""
    if isinstance(value, list):
        first = value[0] if value else ""
        return "(ids)" if isinstance(first, int) else "(lists)" if isinstance(first, list) else "(texts)"
    return {str: "(text)", int: "(number)"}.get(type(value))


def _forms(words: str) -> Discriminator:
    return Discriminator(_form, custom_error_type="form", custom_error_message=f"Input should be {words}")


_Count = Annotated[int, Field(ge=1, le=2**31)]
_Token = Annotated[int, Field(ge=0, le=2**31)]
_Integer = Annotated[int, Field(ge=-(2**63), lt=2**63)]
_StopString = Annotated[str, Field(min_length=1, max_length=200)]
_Stop = Annotated[
    Annotated[_StopString, Tag("(text)")]
    | Annotated[list[_StopString], Field(max_length=16), Tag("(texts)")],
    _forms("a text or a list of texts"),
]
_Sequence = Annotated[
    Annotated[_Integer, Tag("(number)")] | Annotated[str, Field(max_length=1000), Tag("(text)")],
    _forms("an integer or a text"),
]
_Prompt = Annotated[
    Annotated[str, Tag("(text)")]
    | Annotated[list[str], Field(min_length=1), Tag("(texts)")]
    | Annotated[list[_Token], Tag("(ids)")]
    | Annotated[list[list[_Token]], Tag("(lists)")],
    _forms("a text, token ids, or a list of either"),
]


class GenerationRequest(BaseModel):
    """The fields of both kinds of requests; null stands for the default.

    Attributes:
        model: the model that is meant; the served one if None.
        temperature: 0 for greedy decoding, else from 0.01; 1 if None.
        n: outputs of a prompt.
        stop: strings that end an output.
        seed: key of the randomness; drawn if None.
        sequence: which continuation of the seed, as :meth:`~specexp.core.loop.Decoder.generate` takes it; the
            outputs' numbers from 0 if None.
        stream_options: ``{"include_usage": true}`` adds a chunk with the counts of tokens.
        speculative: whether anything is drafted; the output is the same.
        deadline: seconds within which the output must be complete.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)

    model: str | None = None
    max_tokens: _Count | None = None
    temperature: Annotated[float, Field(ge=0, le=2), AfterValidator(_temperature)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: _Count | None = None
    n: _Count | None = None
    stop: _Stop | None = None
    seed: _Integer | None = None
    sequence: _Sequence | None = None
    stream: bool | None = None
    stream_options: dict[Literal["include_usage"], bool] | None = None
    speculative: bool | None = None
    deadline: Annotated[float, Field(gt=0, le=86400)] | None = None

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """The strings that end an output."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def include_usage(self) -> bool:
        """Whether a last chunk counts the tokens."""
        return bool((self.stream_options or {}).get("include_usage"))

    @property
    def best_tokens(self) -> int | None:
        """How many of the target's best tokens are listed with each token; None without probabilities."""
        raise NotImplementedError

    @property
    def most_tokens(self) -> int | None:
        """The limit of an output in tokens; None if the request names none."""
        return self.max_tokens


class CompletionRequest(GenerationRequest):
    """``/v1/completions``: a text or token ids, or a list of either."""

    prompt: _Prompt
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None

    @property
    def best_tokens(self) -> int | None:
        """The field ``logprobs``."""
        return self.logprobs

    @property
    def prompts(self) -> list[str | list[int]]:
        """The prompts, each a text or token ids."""
        one = isinstance(self.prompt, str) or isinstance(self.prompt[0], int)
        return [self.prompt] if one else list(self.prompt)  # type: ignore[list-item, arg-type]


class _Part(BaseModel):
    model_config = ConfigDict(strict=True)

    type: Literal["text"]
    text: str


class ChatMessage(BaseModel):
    """A role, as files and templates call it, and a text or parts of it."""

    model_config = ConfigDict(strict=True, extra="forbid")

    role: Literal[tuple(ROLES)]  # type: ignore[valid-type]
    content: Annotated[
        Annotated[str, Tag("(text)")] | Annotated[list[_Part], Tag("(texts)")],
        Discriminator(
            lambda value: {str: "(text)", list: "(texts)"}.get(type(value)),
            custom_error_type="form",
            custom_error_message="Input should be a text, or a list of parts of text",
        ),
    ]
    name: Any = None
    refusal: Any = None

    @property
    def text(self) -> str:
        """Its parts joined."""
        return self.content if isinstance(self.content, str) else "".join(one.text for one in self.content)


class ChatRequest(GenerationRequest):
    """``/v1/chat/completions``; ``max_completion_tokens`` is another name of ``max_tokens``."""

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=1000)]
    max_completion_tokens: _Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None

    @property
    def best_tokens(self) -> int | None:
        """The field ``top_logprobs``, if probabilities are asked for."""
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def most_tokens(self) -> int | None:
        """The limit, by either of its names."""
        return self.max_tokens or self.max_completion_tokens

    @model_validator(mode="after")
    def _check(self) -> ChatRequest:
        if self.top_logprobs is not None and not self.logprobs:
            raise RequestError(
                400, "top_logprobs is given without logprobs: set logprobs to true", "logprobs"
            )
        if None not in (self.max_tokens, self.max_completion_tokens):
            raise RequestError(
                400, "max_tokens and max_completion_tokens are both given; give one", "max_tokens"
            )
        if self.messages[-1].role not in ("user", "human"):
            raise RequestError(
                400,
                f"the last message is of the {self.messages[-1].role}; one of the user is expected, to be answered",
                "messages",
            )
        return self


_WITHOUT_EFFECT = ("user", "metadata", "store", "safety_identifier", "prompt_cache_key", "service_tier")
"""Fields that do not concern the output."""
_NEUTRAL: Mapping[str, tuple[tuple[Any, ...], str]] = {
    **dict.fromkeys(("frequency_penalty", "presence_penalty"), ((None, 0), "this server has no penalties")),
    "repetition_penalty": ((None, 1), "this server has no penalties"),
    "min_p": ((None, 0), "this server samples by temperature, top_p and top_k"),
    "logit_bias": ((None, {}), "this server changes no logits"),
    "best_of": ((None, 1), "every output that is made is answered: ask for n of them"),
    "echo": ((None, False), "the prompt is not repeated"),
    "suffix": ((None, ""), "nothing is filled in between two texts"),
    "response_format": (
        (None, {"type": "text"}),
        "no grammar holds this server's output to a format: read the text, or serve with an engine that has one",
    ),
    **dict.fromkeys(("tools", "functions"), ((None, []), "this server calls no tools")),
    **dict.fromkeys(("tool_choice", "function_call"), ((None, "none", "auto"), "this server calls no tools")),
    "parallel_tool_calls": ((None, True, False), "this server calls no tools"),
    "modalities": ((None, ["text"]), "this server writes text alone"),
    "audio": ((None,), "this server writes text alone"),
    "reasoning_effort": ((None, "none"), "this server thinks as the model does"),
    "prediction": ((None,), "the artifact decides on the drafts"),
}
"""Values that a field may have although it is not obeyed, and why it may have no other."""


def read_request(body: Mapping[str, Any], kind: type[GenerationRequest]) -> GenerationRequest:
    """Validate a body.

    Raises:
        RequestError: a field is unknown, of another type, out of bounds, or asks for something this server cannot do.
    """
    fields = kind.model_fields
    try:
        for name, value in body.items():
            allowed, why = _NEUTRAL.get(name, ((), ""))
            if why and not any(
                value == one and isinstance(value, bool) is isinstance(one, bool) for one in allowed
            ):
                raise RequestError(400, f"{name} is {shown(value)}, but {why}; leave it out", name)
            if not why and name not in fields and name not in _WITHOUT_EFFECT:
                near = did_you_mean(name[:60], fields)
                raise RequestError(400, f"the body has the unknown field {shown(name)}{near}", name[:60])
        return kind.model_validate({name: value for name, value in body.items() if name in fields})
    except ValidationError as error:
        key, sentence = violation(error)
        raise RequestError(400, sentence, key) from error
    except RecursionError as error:  # a value that was parsed, and is too deep to be repeated
        raise RequestError(400, "the body is nested too deep") from error


async def read_body(request: Request, most_bytes: int) -> dict[str, Any]:
    """Read the JSON object of a request, at most ``most_bytes`` bytes of it.

    Raises:
        RequestError: it is no JSON object, too large, nested too deep, or slow to come.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise RequestError(415, f"the content type is {kind[:60]!r}; application/json is expected")
    data = bytearray()
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            async for part in request.stream():
                data += part
                if len(data) > most_bytes:
                    raise RequestError(
                        413, f"the body is larger than {most_bytes} bytes, the most that is read"
                    )
    except TimeoutError as error:
        raise RequestError(408, f"the body did not come within {_BODY_SECONDS:g} seconds") from error
    except ClientDisconnect as error:
        raise RequestError(400, "the body is not complete") from error
    return object_in(bytes(data))


def object_in(data: bytes) -> dict[str, Any]:
    """Parse a JSON object; raises a RequestError if there is none."""
    try:
        found = parse_json(data, "the body")
        json.dumps(found, ensure_ascii=False, allow_nan=False).encode()
    except ArtifactError as error:
        raise RequestError(400, str(error)) from error
    except RecursionError as error:
        raise RequestError(400, "the body is nested too deep") from error
    except UnicodeEncodeError as error:
        raise RequestError(400, "the body holds half a surrogate pair, which is no text") from error
    except ValueError as error:
        raise RequestError(400, "the body holds a number that is not finite") from error
    if not isinstance(found, dict):
        raise RequestError(400, f"the body is a JSON {type(found).__name__}; an object is expected")
    return found
