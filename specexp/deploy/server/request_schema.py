"""Schema of request bodies, with OpenAI's field names. Unsupported fields are accepted only with a neutral value."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from types import SimpleNamespace
from typing import Annotated, Any, Literal

from fastapi.exceptions import RequestValidationError
from pydantic import AfterValidator, BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError
from starlette.exceptions import HTTPException
from typing_extensions import override

from specexp.base.checked import IntegerKey, Section, violation
from specexp.base.messages import shown
from specexp.core.sampling import Processors
from specexp.data.chat import ROLES, ChatMessage
from specexp.deploy.server.tool_calls import Tool, call_schema

_GREEDY_BELOW = 1e-5
"""Lower temperatures are greedy decoding, as in vLLM."""


class RequestError(HTTPException):
    """An error response. ``key`` names the field of the body at fault, and ``retry_after`` is in seconds."""

    def __init__(self, status: int, sentence: str, key: str | None = None, retry_after: int | None = None) -> None:
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


def _as_prompts(value: Any) -> Any:
    """Wrap a single prompt, which is a text or a list of token ids, in a list. Return other lists unchanged."""
    is_ids = isinstance(value, list) and isinstance(next(iter(value), None), int)
    return [value] if is_ids else _as_texts(value)


def _as_texts(value: Any) -> Any:
    """Wrap a single text in a list, and return a list unchanged. Raise PydanticCustomError for any other value."""
    if not isinstance(value, str | list):
        raise PydanticCustomError(
            "sentence", " must be a text or a list of texts, got {given}", {"given": shown(value)}
        )
    return [value] if isinstance(value, str) else value


_Count = Annotated[int, Field(ge=1, le=2**31)]
_Integer = Annotated[int, Field(ge=-(2**63), lt=2**63)]
_Token = Annotated[int, Field(ge=0, le=2**31)]
_Penalty = Annotated[float, Field(ge=-2, le=2)]
_Prompts = Annotated[list[str | list[_Token]], Field(min_length=1), BeforeValidator(_as_prompts)]
_Stop = Annotated[
    list[Annotated[str, Field(max_length=200)]],
    Field(max_length=16),
    BeforeValidator(_as_texts),
    AfterValidator(lambda value: [one for one in value if one]),
]

_IGNORED = {
    "user", "metadata", "store", "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "service_tier",
    "request_id", "priority", "cache_prompt", "cache_salt", "spaces_between_special_tokens",
}  # fmt: skip
"""Fields that do not affect the output. They are accepted and ignored."""
_UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    name: neutral
    for names, neutral in {
        "best_of length_penalty repeat_penalty typical_p": (1,),
        "no_repeat_ngram_size prompt_logprobs epsilon_cutoff eta_cutoff": (0,),
        "echo use_beam_search early_stopping include_stop_str_in_output return_token_ids": (False,),
        "add_special_tokens detokenize": (True,),
        "tools functions bad_words logits_processors documents": ([],),
        "tool_choice function_call": ("none", "auto"),
        "audio prediction web_search_options chat_template grammar": (),
        "guided_json guided_regex guided_choice guided_grammar": (),
        "truncate_prompt_tokens": (-1,),
        "suffix": ("",),
        "parallel_tool_calls": (True, False),
        "modalities": (["text"],),
        "reasoning_effort": ("none",),
        "verbosity": ("medium",),
    }.items()
    for name in names.split()
}
"""Unsupported fields, each with the neutral values that are accepted and ignored."""
_INSTEAD = {
    **{f"guided_{form}": f"use structured_outputs: {{{form}: ...}}" for form in ("json", "regex", "choice", "grammar")},
    "functions": "use tools",
    "messages": "send it to /v1/chat/completions",
    "prompt": "send it to /v1/completions",
}
"""Advice that replaces ``leave it out``, by field."""


class StreamOptions(Section):
    """Whether a stream has token counts at its end and, with vLLM's second option, in all its chunks."""

    include_usage: bool = False
    continuous_usage_stats: bool = False
    include_obfuscation: bool = False  # ignored


class GenerationRequest(Section):
    """Fields shared by completion and chat requests. Null selects the default.

    Penalties, ``logit_bias`` and ``response_format`` are as in OpenAI's API, and other fields mostly as in vLLM's.
    """

    model: str | None = None  # by default the served model
    max_tokens: _Count | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] = 1.0  # 0 for greedy decoding
    top_p: Annotated[float, Field(ge=0, le=1)] = 1.0  # 0 keeps only the most probable token
    top_k: Annotated[int, Field(ge=-1, le=2**31)] = 0  # 0 and -1 keep all tokens
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0  # lowest probability, as a share of the highest
    presence_penalty: _Penalty = 0.0
    frequency_penalty: _Penalty = 0.0
    repetition_penalty: Annotated[float, Field(gt=0, le=100)] = 1.0  # as in ``transformers``
    logit_bias: dict[IntegerKey, Annotated[float, Field(ge=-100, le=100)]] = Field({})
    n: _Count = 1  # outputs for each prompt
    stop: _Stop = Field([])  # strings that end an output; a special token ends it as a token
    stop_token_ids: list[_Token] = Field([])
    ignore_eos: bool = False
    min_tokens: Annotated[int, Field(ge=0, le=2**31)] = 0
    skip_special_tokens: bool = True
    response_format: dict[str, Any] | None = None  # ``text``, ``json_object``, or ``json_schema`` with a ``schema``
    structured_outputs: dict[str, Any] | None = None  # ``json``, ``json_object``, ``regex``, ``choice`` or ``grammar``
    seed: _Integer | None = None  # None draws one
    # second part of the random key (see Decoder.generate); by default the output's index, from 0
    sequence: Annotated[str, Field(max_length=1000)] | _Integer | None = None
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    # whether to draft, or the maximum number of drafted tokens per step; it does not change the output
    speculative: bool | Annotated[int, Field(ge=0, le=1024)] = True
    deadline: Annotated[float, Field(gt=0, le=86400)] | None = None  # time limit for the request, in seconds

    @model_validator(mode="before")
    @classmethod
    def _without_neutral_fields(cls, body: Any) -> Any:
        """Reject unsupported values, and drop null and ignored fields. The base class rejects unknown fields."""
        if not isinstance(body, dict):
            return body
        body = {name: value for name, value in body.items() if value is not None}
        if "none" in (body.get("tool_choice"), body.get("function_call")):
            body |= {"tools": [], "functions": []}  # no call is wanted
        if body.get("logprobs") is False:
            del body["logprobs"]
        unsupported = {name: neutral for name, neutral in _UNSUPPORTED.items() if name not in cls.model_fields}
        for name, neutral in unsupported.items():
            value = body.get(name)
            if value is not None and value not in neutral:
                instead = _INSTEAD.get(name, "leave it out")
                raise RequestError(400, f"{name} is not supported by this server, got {shown(value)}; {instead}", name)
        for name in ("messages", "prompt"):
            if name in body and name not in cls.model_fields:
                raise RequestError(400, f"{name} does not belong here; {_INSTEAD[name]}", name)
        return {name: value for name, value in body.items() if name not in unsupported and name not in _IGNORED}

    @model_validator(mode="after")
    def _check_fields_without_effect(self) -> GenerationRequest:
        options = self.stream_options
        if not self.stream and (options.include_usage or options.continuous_usage_stats):
            raise RequestError(400, "stream must be true if stream_options are set", "stream")
        if self.sequence is not None and self.seed is None:
            raise RequestError(400, "seed must be given if sequence is set", "seed")
        return self

    @cached_property
    def constraint(self) -> tuple[str, dict[str, Any]] | None:
        """The field that gives the output's form, and the constraint as in ``structured_outputs``; None if free."""
        given = self.structured_outputs
        match {"type": "text"} if self.response_format is None else self.response_format:
            case {"type": "text", **others} if not others:
                return None if given is None else ("structured_outputs", given)
            case _ if given is not None:
                sentence = "response_format must be left out if structured_outputs is given"
            case {"type": "json_object", **others} if not others:
                return "response_format", {"json_object": True}
            case {"type": "json_schema", "json_schema": {"schema": dict(schema)}, **others} if not others:
                return "response_format.json_schema.schema", {"json": schema}
            case form:
                sentence = (
                    "response_format must be {type: text}, {type: json_object} or {type: json_schema, json_schema: "
                    f"{{name, schema}}}}, got {shown(form)}"
                )
        raise RequestError(400, sentence, "response_format")

    @property
    def processors(self) -> Processors:
        """Temperature, top-k and top-p, without neutral values."""
        if self.temperature < _GREEDY_BELOW or self.top_p == 0:
            return Processors(0.0)
        return Processors(
            self.temperature, self.top_k if self.top_k > 0 else None, self.top_p if self.top_p < 1 else None
        )


class CompletionRequest(GenerationRequest):
    """The body of ``/v1/completions``. ``prompt`` is a text, a list of token ids, or a list of either."""

    prompt: _Prompts
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None

    @property
    def top_log_probs(self) -> int | None:
        """Number of top tokens to list for each output token; None for no log-probabilities."""
        return self.logprobs


class ChatRequest(GenerationRequest):
    """The body of ``/v1/chat/completions``. ``max_completion_tokens`` is an alias of ``max_tokens``.

    A last message of the assistant is continued. ``chat_template_kwargs`` are variables of the chat template.
    ``tool_choice`` is ``auto`` by default if there are ``tools``.
    """

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=1000)]
    chat_template_kwargs: dict[str, Any] = Field({})
    tools: Annotated[list[Tool], Field(max_length=128)] = Field([])
    tool_choice: Literal["none", "auto", "required"] | Tool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    max_completion_tokens: _Count | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None

    @property
    def top_log_probs(self) -> int | None:
        """See :attr:`CompletionRequest.top_log_probs`."""
        return (self.top_logprobs or 0) if self.logprobs else None

    @cached_property
    def calls(self) -> Literal["auto", "required"] | None:
        """``auto`` if the answer may be calls, ``required`` if it must be calls, None if it must not."""
        names = [one.function.name for one in self.tools]
        if self.function not in (None, *names):
            sentence = f"tool_choice.function.name must be a tool's: {names}, got {shown(self.function)}"
            raise RequestError(400, sentence, "tool_choice.function.name")
        if not names and self.tool_choice == "required":
            raise RequestError(400, "tools must not be empty if tool_choice is required", "tools")
        if isinstance(self.tool_choice, Tool):
            return "required"
        return (self.tool_choice or "auto") if names and self.tool_choice != "none" else None

    @property
    def function(self) -> str | None:
        """The name of the function that must be called; None if ``tool_choice`` names none."""
        return self.tool_choice.function.name if isinstance(self.tool_choice, Tool) else None

    @cached_property
    @override
    def constraint(self) -> tuple[str, dict[str, Any]] | None:
        given = super().constraint
        if self.calls is None:
            return given
        if given is not None:
            raise RequestError(400, f"{given[0]} must be left out if a tool may be called", given[0])
        functions = [one.function for one in self.tools]
        return None if self.calls == "auto" else ("tools", {"json": call_schema(functions, self.function)})

    @model_validator(mode="after")
    def _check_fields_together(self) -> ChatRequest:
        if self.top_logprobs and not self.logprobs:
            raise RequestError(400, "logprobs must be true if top_logprobs is set", "logprobs")
        both = self.max_tokens, self.max_completion_tokens
        if None not in both and both[0] != both[1]:
            sentence = f"max_tokens and max_completion_tokens must not differ, got {both[0]} and {both[1]}"
            raise RequestError(400, sentence, "max_tokens")
        role = self.messages[-1].role
        continues = ROLES[role] == "assistant"
        for name, usual in (("continue_final_message", continues), ("add_generation_prompt", not continues)):
            if getattr(self, name) not in (None, usual):
                sentence = f"{name} must be {str(usual).lower()} if the last message has the role {role!r}"
                raise RequestError(400, sentence, name)
        return self


AnyRequest = CompletionRequest | ChatRequest


def refusal_of(error: RequestValidationError) -> RequestError:
    """Convert FastAPI's error about an invalid body to a RequestError with a one-sentence message."""
    # FastAPI puts "body" before the location of each error
    details = [{**one, "loc": one["loc"][1:]} for one in error.errors()]
    pydantics: Any = SimpleNamespace(errors=lambda **_: details)
    steps, sentence = violation(pydantics, error.body)
    key = ".".join(steps)[:200]  # it may contain a long key from the client
    return RequestError(400, f"{key or 'the body'}{sentence}", key or None)
