"""What a body asks for, by OpenAI's names; what cannot be done is refused in a sentence, never left out silently."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from specexp.core.annotations import INVALID, Allowed
from specexp.core.arguments import REQUIRED, arguments_of
from specexp.core.messages import did_you_mean, shown
from specexp.deploy.server.error import RequestError

_Count = Annotated[int, Field(ge=1, le=2**31)]
_Token = Annotated[int, Field(ge=0, le=2**31)]
_Sequence = Annotated[int, Field(ge=-(2**63), lt=2**63)] | Annotated[str, Field(max_length=1000)]
_LEAST_TEMPERATURE = 0.01


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What both kinds of requests ask for; null stands for the default.

    Attributes:
        model: which model is meant; the one that is served if None.
        max_tokens: at most.
        temperature: 0 for greedy decoding, else from 0.01; 1 if None.
        top_p: keep only the most probable tokens that hold this much probability together.
        top_k: keep only so many of the most probable tokens.
        n: outputs of a prompt.
        stop: strings that end an output.
        seed: what randomness is keyed by; drawn if None.
        sequence: which continuation of the seed, as :meth:`~specexp.core.decoder.Decoder.generate` takes it; the
            outputs' numbers from 0 if None.
        stream: whether the output comes piece by piece.
        stream_options: ``{"include_usage": true}`` adds a chunk with the counts of tokens.
        speculative: whether anything is drafted; the output is the same.
        deadline: seconds within which the output must be complete.
    """

    model: str | None = None
    max_tokens: _Count | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: _Count | None = None
    n: _Count | None = None
    stop: (
        Annotated[str, Field(min_length=1, max_length=200)]
        | list[Annotated[str, Field(min_length=1, max_length=200)]]
        | None
    ) = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    sequence: _Sequence | None = None
    stream: bool | None = None
    stream_options: dict[str, bool] | None = None
    speculative: bool | None = None
    deadline: Annotated[float, Field(gt=0, le=86400)] | None = None

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """What ends an output."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def include_usage(self) -> bool:
        """Whether a last chunk counts the tokens."""
        return bool((self.stream_options or {}).get("include_usage"))

    @property
    def best_told(self) -> int | None:
        """How many of the target's best tokens are told beside each token; None where no probabilities are."""
        raise NotImplementedError

    def check(self) -> None:
        """Refuse what each field by itself allows.

        Raises:
            RequestError: one sentence.
        """
        if 0 < (self.temperature or 0) < _LEAST_TEMPERATURE:
            raise _refused(
                "temperature", self.temperature, f"0, or a number of at least {_LEAST_TEMPERATURE}"
            )
        if len(self.stop_strings) > 16:
            raise RequestError(400, f"stop lists {len(self.stop_strings)} strings; at most 16 are", "stop")
        if unknown := sorted(set(self.stream_options or {}) - {"include_usage"}):
            raise RequestError(
                400, f"stream_options has {unknown[0]!r}; include_usage is known alone", "stream_options"
            )


@dataclass(frozen=True, kw_only=True)
class CompletionAsked(Asked):
    """``/v1/completions``.

    Attributes:
        prompt: a text or token ids, or a list of either.
        logprobs: how many of the target's best tokens are told beside each token.
    """

    prompt: str | list[str] | list[_Token] | list[list[_Token]]
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None

    @property
    def best_told(self) -> int | None:
        """As asked."""
        return self.logprobs

    @property
    def prompts(self) -> list[str | list[int]]:
        """Each a text or token ids."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if self.prompt and isinstance(self.prompt[0], int):
            return [list(self.prompt)]
        return list(self.prompt)  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True)
class ChatAsked(Asked):
    """``/v1/chat/completions``.

    Attributes:
        messages: a role and a text each.
        max_completion_tokens: another name of ``max_tokens``.
        logprobs: whether the tokens' probabilities are told.
        top_logprobs: how many of the target's best tokens are told beside each.
    """

    messages: list[dict[str, Any]]
    max_completion_tokens: _Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None

    @property
    def best_told(self) -> int | None:
        """None unless probabilities are asked for."""
        return (self.top_logprobs or 0) if self.logprobs else None

    def check(self) -> None:
        """Also that both names of a limit, or of what is told, agree."""
        super().check()
        if self.top_logprobs is not None and not self.logprobs:
            raise RequestError(
                400, "top_logprobs is given without logprobs: set logprobs to true", "logprobs"
            )
        if None not in (self.max_tokens, self.max_completion_tokens):
            raise RequestError(
                400, "max_tokens and max_completion_tokens are both given; give one", "max_tokens"
            )


_WITHOUT_EFFECT = ("user", "metadata", "store", "safety_identifier", "prompt_cache_key", "service_tier")
"""Fields that say nothing about the output."""
_NEUTRAL: Mapping[str, tuple[tuple[Any, ...], str]] = {
    **dict.fromkeys(("frequency_penalty", "presence_penalty"), ((None, 0), "this server has no penalties")),
    "repetition_penalty": ((None, 1), "this server has no penalties"),
    "min_p": ((None, 0), "temperature, top_p and top_k are what this server samples by"),
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
    "prediction": ((None,), "the artifact says what is drafted"),
}
"""Values that a field may have where nothing is done with it, and why it may have no other."""


def asked_in(body: Mapping[str, Any], kind: Callable[..., Asked]) -> Asked:
    """What a body asks for.

    Args:
        body: the JSON object.
        kind: of which request.

    Raises:
        RequestError: a field is unknown, of another type, out of bounds, or asks for what cannot be done.
    """
    known = arguments_of(kind) or {}
    given: dict[str, Any] = {}
    for name, value in body.items():
        if name in known:
            read = known[name].allowed.read(value)
            if read is INVALID:
                raise _invalid(name, value, known[name].allowed)
            given[name] = read
        elif name in _NEUTRAL:
            allowed, why = _NEUTRAL[name]
            if not any(value == one and isinstance(value, bool) is isinstance(one, bool) for one in allowed):
                raise RequestError(400, f"{name} is {shown(value)}, but {why}; leave it out", name)
        elif name not in _WITHOUT_EFFECT:
            near = did_you_mean(name[:60], known)
            raise RequestError(400, f"the body has the unknown field {shown(name)}{near}", name[:60])
    for name, argument in known.items():
        if argument.default is REQUIRED and name not in given:
            raise RequestError(400, f"{name} is missing; {argument.allowed.words} is expected", name)
    asked = kind(**given)
    asked.check()
    return asked


def _invalid(name: str, value: Any, allowed: Allowed) -> RequestError:
    at, item, inner = allowed.culprit(value, lambda one, found: one.read(found) is not INVALID)
    return _refused(".".join((name, *at)), item, inner.words)


def _refused(key: str, value: Any, allowed: str) -> RequestError:
    return RequestError(400, f"{key} is {shown(value)}; allowed is {allowed}", key)
