"""One streamed completion of a server that speaks OpenAI's API, with the time of arrival of each piece."""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from time import monotonic, perf_counter
from typing import Any

import httpx

from specexp.core.messages import did_you_mean
from specexp.engines.engine import EngineError

COMPLETIONS = "/v1/completions"
_SHOWN = 200  # characters of an answer in an error


@dataclass
class Streamed:
    """A completion.

    Attributes:
        times: seconds after the request at which its pieces arrived.
        finish_reason: ``stop`` or ``length``.
        tokens: number of new tokens by the server's count; None if not sent.
        speculation: counts by the names of vLLM's ``metrics.speculative_decoding``; empty if not sent.
        logprobs: for each token the log-probabilities of the best ones; empty if not sent.
        pieces: text of each token that has logprobs.
        token_ids: the tokens; empty if not sent.
        generation_seconds: from the first token to the last one by the server's own clock; None if not sent.
    """

    text: str = ""
    times: list[float] = field(default_factory=list)
    finish_reason: str = ""
    tokens: int | None = None
    speculation: dict[str, Any] = field(default_factory=dict)
    logprobs: list[dict[str, float]] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    generation_seconds: float | None = None

    def split(self) -> tuple[float, float]:
        """Return the seconds until the first token, and from it to the last one.

        The server's clock is preferred: on a machine that the server keeps busy a client is woken late, and all
        pieces of a short answer seem to arrive at once.
        """
        whole, rest = self.times[-1], self.times[-1] - self.times[0]
        if self.generation_seconds is not None:
            rest = min(self.generation_seconds, whole)
        return whole - rest, rest


@cache
def _client() -> httpx.Client:
    """The connections of this process, which are kept open from request to request."""
    limits = httpx.Limits(max_connections=None)
    headers = {"Accept-Encoding": "identity"}  # a compressed stream would arrive in larger pieces
    # the system's certificates, and no proxy between a server and its measurement
    return httpx.Client(verify=ssl.create_default_context(), limits=limits, trust_env=False, headers=headers)


@contextmanager
def _request(method: str, url: str, seconds: float, body: object = None) -> Iterator[httpx.Response]:
    try:
        with _client().stream(method, url, json=body, timeout=seconds) as answer:
            if answer.status_code != 200:
                shown = " ".join(answer.read()[:_SHOWN].decode(errors="replace").split())
                raise EngineError(f"{url} answered {answer.status_code}: {shown}")
            yield answer
    except (httpx.TimeoutException, TimeoutError) as error:
        raise EngineError(f"{url} did not answer in time") from error
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise EngineError(f"{url} broke off ({type(error).__name__}: {error})") from error


def model_of(url: str, wanted: str | None, seconds: float, key: str = "model") -> str:
    """Return the name of the model for requests: the ``wanted`` one, or the only one of the server.

    Raises:
        EngineError: the server does not list it, or has not exactly one model. The sentence names it as ``key``.
    """
    with _request("GET", f"{url}/v1/models", seconds) as answer:
        content = _json(answer.read())
    listed = content.get("data") if isinstance(content, dict) else None
    found = [str(one["id"]) for one in listed or () if isinstance(one, dict) and "id" in one]
    if wanted is not None and (wanted in found or not found):  # some servers list none, and answer
        return wanted
    models = f"the models {', '.join(found)}" if found else "no model"
    if wanted is not None:
        raise EngineError(f"{url} lists {models}, and {key} is {wanted!r}{did_you_mean(wanted, found)}")
    if len(found) != 1:
        raise EngineError(f"{url} lists {models}: name one as {key}")
    return found[0]


def complete(
    url: str,
    body: Mapping[str, Any],
    seconds: float,
    stopped: Callable[[], bool] = lambda: False,
    path: str = COMPLETIONS,
) -> Streamed:
    """Request a completion as a stream.

    Args:
        body: the request, without the fields that make it a stream.
        seconds: time limit for the whole answer.
        stopped: called at each piece; True ends the reading.
        path: OpenAI's, or llama.cpp's own ``/completion``, which returns token ids.

    Raises:
        EngineError: there is no answer, an error, no stream, or a stream that ends early or holds something else.
    """
    request = {**body, "stream": True, "stream_options": {"include_usage": True}}
    found, ended = Streamed(), False
    begun, deadline = perf_counter(), monotonic() + seconds
    with _request("POST", f"{url}{path}", seconds, request) as answer:
        for line in _lines(answer.iter_raw()):
            if monotonic() > deadline:
                raise TimeoutError
            data = line.removeprefix(b"data:").strip()
            if ended or not line.startswith(b"data:"):  # read to the end, so that the connection is kept
                continue
            if data == b"[DONE]":
                ended = True
                continue
            content = _json(data)
            at = perf_counter() - begun
            if isinstance(content, dict) and "content" in content and "choices" not in content:
                ended = _take_llama(found, content, at)
            else:
                _take(found, content, at)
            if stopped():
                return found
    if not ended or not found.finish_reason:
        raise EngineError(f"{url} ended its stream early, after {len(found.text)} characters")
    return found


def _lines(pieces: Iterator[bytes]) -> Iterator[bytes]:
    # httpx's iter_lines also splits at characters that JSON texts may hold, such as U+2028
    rest = b""
    for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        yield from lines
    yield rest


def _json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise EngineError(f"the server sent {data[:60]!r}, which is not JSON") from error


def _no_completion(content: Any) -> EngineError:
    return EngineError(f"the stream holds {str(content)[:_SHOWN]!r}, which is not a completion")


def _take_llama(found: Streamed, content: Mapping[str, Any], at: float) -> bool:
    """Add an event of llama.cpp's own stream; returns whether it is the last."""
    text, tokens = content["content"], content.get("tokens", [])
    if not isinstance(text, str) or not all(isinstance(one, int) for one in tokens):
        raise _no_completion(content)
    if tokens:  # the last event may have none
        found.text += text
        found.token_ids += tokens
        found.times.append(at)
    if not content.get("stop"):
        return False
    found.finish_reason = "length" if content.get("stop_type") == "limit" else "stop"
    found.tokens = len(found.token_ids)
    _take_timings(found, content.get("timings"))
    return True


def _take_timings(found: Streamed, timings: Any) -> None:
    """Add llama.cpp's counts by vLLM's names, and its times, if they are sent."""
    if isinstance(timings, dict) and isinstance(timings.get("predicted_n"), int):
        if isinstance(timings.get("predicted_ms"), (int, float)):
            found.generation_seconds = max(0.0, timings["predicted_ms"] / 1000)
        accepted = timings.get("draft_n_accepted", 0)
        found.speculation = {
            "num_draft_tokens": timings.get("draft_n", 0),
            "num_accepted_draft_tokens": accepted,
            # each pass gives one token beyond the accepted ones; the first pass is that of the prompt
            "num_spec_steps": timings["predicted_n"] - accepted - 1,
        }


def _take(found: Streamed, content: Any, at: float) -> None:
    if not isinstance(content, dict) or not isinstance(content.get("choices", []), list):
        raise _no_completion(content)
    if content.get("error"):
        raise EngineError(f"the server answered with the error {str(content['error'])[:_SHOWN]}")
    for choice in content.get("choices", []):
        text = choice.get("text") if isinstance(choice, dict) else None
        if not isinstance(text, str | None):
            raise _no_completion(choice)
        if text:
            found.text += text
            found.times.append(at)
        found.finish_reason = (choice or {}).get("finish_reason") or found.finish_reason
        _take_logprobs(found, (choice or {}).get("logprobs") or {})
    usage, metrics = content.get("usage"), content.get("metrics")
    if isinstance(usage, dict) and isinstance(usage.get("completion_tokens"), int):
        found.tokens = usage["completion_tokens"]
    if isinstance(metrics, dict) and isinstance(metrics.get("speculative_decoding"), dict):
        found.speculation = metrics["speculative_decoding"]
    else:
        _take_timings(found, content.get("timings"))


def _take_logprobs(found: Streamed, logprobs: Any) -> None:
    """Add the logprobs of completions (parallel lists), or of chats and llama.cpp (an object for each piece)."""
    try:
        for one in logprobs.get("content") or ():
            found.pieces.append(str(one["token"]))
            best = {str(best["token"]): float(best["logprob"]) for best in one["top_logprobs"]}
            found.logprobs.append(best)
        found.logprobs += [dict(one or {}) for one in logprobs.get("top_logprobs") or ()]
        found.pieces += [str(one) for one in logprobs.get("tokens") or ()]
    except (TypeError, KeyError, AttributeError, ValueError) as error:
        raise EngineError(f"the stream holds the unknown logprobs {str(logprobs)[:_SHOWN]!r}") from error
