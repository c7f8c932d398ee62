"""A client for OpenAI's API that streams a completion and records when each piece arrives."""

from __future__ import annotations

import json
import os
import re
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import cache
from time import monotonic, perf_counter
from typing import Any

import httpx

from specexp.base.messages import did_you_mean
from specexp.engines.engine import EngineError

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
KEY = "SPECEXP_API_KEY"
"""The environment variable with the API key. It is not an option, because other users can see command lines."""
_SHOWN = 200  # maximum number of an answer's characters in an error message
_HELD_BACK = 2  # number of pieces in which a server may send text that it held back, without a new token


@dataclass
class Streamed:
    """A streamed completion. Optional fields that the server did not send are empty or None.

    Attributes:
        times: arrival time of each piece, in seconds after the request.
        first: text of the first piece.
        finish_reason: ``stop`` or ``length``.
        tokens: number of new tokens, as counted by the server.
        speculation: speculation counts, named as in vLLM's ``metrics.speculative_decoding``.
        logprobs: for each token, the log-probabilities of it and the top tokens, keyed by their text.
        pieces: text of each token in ``logprobs``; bytes of an incomplete character are surrogates
            (``surrogateescape``).
        token_ids: the new tokens.
        generation_seconds: time from the first token to the last one, on the server's clock.
        prompt_tokens: number of prompt tokens, as counted by the server.
    """

    text: str = ""
    times: list[float] = field(default_factory=list)
    first: str = ""
    finish_reason: str = ""
    tokens: int | None = None
    speculation: dict[str, Any] = field(default_factory=dict)
    logprobs: list[dict[str, float]] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    generation_seconds: float | None = None
    prompt_tokens: int | None = None

    def split(self, tokens: int, first_tokens: int) -> tuple[float, float]:
        """Return the seconds until the first token, and from the first to the last of ``tokens`` tokens.

        If the first piece has several tokens, ``first_tokens``, its time is that of the last of them. The time of the
        first one is extrapolated from the rate of the later pieces. The second value is 0 if there are none.

        The server's clock is preferred, because a server that keeps the machine busy delays the client. All pieces of a
        short answer then seem to arrive together.
        """
        whole, rest = self.times[-1], self.times[-1] - self.times[0]
        if self.generation_seconds is not None:
            rest = self.generation_seconds
        elif tokens > first_tokens:
            rest *= (tokens - 1) / (tokens - first_tokens)
        rest = min(rest, whole)
        return whole - rest, rest

    def _add(self, text: str, at: float) -> None:
        self.first = self.first or text
        self.text += text
        self.times.append(at)


@cache
def _client() -> httpx.Client:
    """Return this process's HTTP client, which keeps connections open between requests."""
    limits = httpx.Limits(max_connections=None)
    headers = {"Accept-Encoding": "identity"}  # compression would buffer the stream into larger pieces
    # use the system's certificates, and ignore proxy variables, since a proxy would distort the times
    return httpx.Client(verify=ssl.create_default_context(), limits=limits, trust_env=False, headers=headers)


@contextmanager
def _request(method: str, url: str, seconds: float, body: object = None) -> Iterator[httpx.Response]:
    key = {"Authorization": f"Bearer {os.environ[KEY]}"} if os.environ.get(KEY) else {}
    try:
        request = _client().build_request(method, url, json=body, timeout=seconds, headers=key)
        try:
            opened = _client().send(request, stream=True)
        except httpx.RemoteProtocolError:  # the server has just closed the idle connection
            opened = _client().send(request, stream=True)
        with closing(opened) as answer:
            if answer.status_code in (401, 403):
                raise EngineError(f"{url}: the server rejects the API key: set {KEY} to its key")
            if answer.status_code != 200:
                shown = " ".join(answer.read()[:_SHOWN].decode(errors="replace").split())
                raise EngineError(f"{url}: the server answered with status {answer.status_code}: {shown}")
            yield answer
    except (httpx.TimeoutException, TimeoutError) as error:
        raise EngineError(f"{url}: no complete answer within {seconds:g} s") from error
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise EngineError(f"{url}: the connection failed ({type(error).__name__}: {error})") from error


def fetch(url: str, seconds: float) -> bytes:
    """Return the response body of a URL. Raises EngineError if the server does not answer with status 200."""
    with _request("GET", url, seconds) as answer:
        return answer.read()


def wrong_address(url: str) -> str:
    """Return why a URL cannot be a server's address; empty if it can."""
    if not url.startswith(("http://", "https://")):
        return f"must begin with http:// or https://, got {url!r}"
    path = url.rstrip("/").endswith("/completions")
    return f"must be a server's address, without the path of an endpoint, got {url!r}" if path else ""


def listed_models(url: str, seconds: float) -> list[dict[str, Any]]:
    """Return the models that a server lists, such as ``{"id": ..., "owned_by": ...}``."""
    content = _json(fetch(f"{url}/v1/models", seconds))
    listed = content.get("data") if isinstance(content, dict) else None
    return [one for one in listed or () if isinstance(one, dict) and "id" in one]


def owner_of(url: str, seconds: float) -> str | None:
    """Return the program that a server names as the owner of its first model, such as ``llamacpp``; None if none."""
    return next((one.get("owned_by") for one in listed_models(url, seconds)), None)


def model_of(url: str, wanted: str | None, seconds: float, key: str = "model") -> str:
    """Return the model name for requests: ``wanted`` or, if it is None, the name of the server's only model.

    Raises:
        EngineError: the server does not list ``wanted``, or ``wanted`` is None and the server does not list exactly one
            model. ``key`` is the argument's name in the message.
    """
    found = [str(one["id"]) for one in listed_models(url, seconds)]
    # some servers accept requests but list no models
    if wanted is not None and (wanted in found or not found):
        return wanted
    models = f"the models {', '.join(found)}" if found else "no model"
    if wanted is not None:
        raise EngineError(f"{url} lists {models}, but {key} is {wanted!r}{did_you_mean(wanted, found)}")
    if len(found) != 1:
        raise EngineError(f"{url} lists {models}: set {key} to the name of one")
    return found[0]


def accepted_in(tokens: int, steps: int, accepted: int) -> int:
    """Return how many of a request's accepted drafts are in its answer of ``tokens`` tokens, after ``steps`` drafts.

    vLLM counts those behind the end too. The first token is the prompt pass's, and every step but the last adds one.
    """
    return min(accepted, max(0, tokens - steps))


def prompt_fields(prompt: str, chat: bool) -> dict[str, Any]:
    """Return the request fields of a prompt: a text, or a chat message to which the server applies its template."""
    return {"messages": [{"role": "user", "content": prompt}]} if chat else {"prompt": prompt}


def complete(
    url: str,
    body: Mapping[str, Any],
    seconds: float,
    stopped: Callable[[], bool] = lambda: False,
    path: str = COMPLETIONS,
) -> Streamed:
    """Request a completion as a stream, and read the stream to its end.

    Args:
        body: the request's fields, except those that make it a stream.
        seconds: time limit for the whole answer.
        stopped: called after each piece; True stops reading.
        path: the path of OpenAI's completions or chats, or llama.cpp's ``/completion``, which returns token ids.

    Raises:
        EngineError: the server does not answer in time or answers with an error, or the stream is incomplete or not
            valid.
    """
    request = {**body, "stream": True, "stream_options": {"include_usage": True}}
    found, ended = Streamed(), False
    begun, deadline = perf_counter(), monotonic() + seconds
    with _request("POST", f"{url}{path}", seconds, request) as answer:
        for line in _lines(answer.iter_raw()):
            if monotonic() > deadline:
                raise TimeoutError
            data = line.removeprefix(b"data:").strip()
            if ended or not line.startswith(b"data:"):  # read to the end, to reuse the connection
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
        missing = [] if found.finish_reason else ["a finish_reason"]
        missing += [] if ended else ["[DONE]"]
        raise EngineError(
            f"{url}: the stream ended early, after {len(found.text)} characters and without {' and '.join(missing)}"
        )
    if found.tokens and found.tokens < len(found.times) - _HELD_BACK:
        raise EngineError(
            f"{url}: usage.completion_tokens must be the number of new tokens, got {found.tokens} for "
            f"{len(found.times)} pieces of text, so tokens per second cannot be measured"
        )
    return found


def _lines(pieces: Iterator[bytes]) -> Iterator[bytes]:
    # not httpx's iter_lines, which also splits at characters inside JSON strings, such as U+2028
    rest = b""
    for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        yield from lines
    yield rest


def _json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise EngineError(f"the server must send JSON, got {data[:60]!r}") from error


def _no_completion(content: Any) -> EngineError:
    return EngineError(f"the stream must hold completions, got {str(content)[:_SHOWN]!r}")


def _take_llama(found: Streamed, content: Mapping[str, Any], at: float) -> bool:
    """Add an event in llama.cpp's own stream format; return whether it is the last one."""
    text, tokens = content["content"], content.get("tokens", [])
    if not isinstance(text, str) or not all(isinstance(one, int) for one in tokens):
        raise _no_completion(content)
    if tokens:  # the last event may have no tokens
        found._add(text, at)
        found.token_ids += tokens
    if not content.get("stop"):
        return False
    found.finish_reason = "length" if content.get("stop_type") == "limit" else "stop"
    found.tokens = len(found.token_ids)
    _take_timings(found, content.get("timings"))
    return True


def _take_timings(found: Streamed, timings: Any) -> None:
    """Add llama.cpp's times, and its counts under vLLM's names, if the server sent any."""
    if isinstance(timings, dict) and isinstance(timings.get("predicted_n"), int):
        if isinstance(timings.get("predicted_ms"), (int, float)):
            found.generation_seconds = max(0.0, timings["predicted_ms"] / 1000)
        accepted = timings.get("draft_n_accepted", 0)
        found.speculation = {
            "num_draft_tokens": timings.get("draft_n", 0),
            "num_accepted_draft_tokens": accepted,
            # each pass yields its accepted tokens and one more; the first token is from the prompt's pass
            "num_spec_steps": timings["predicted_n"] - accepted - 1,
        }


def _take(found: Streamed, content: Any, at: float) -> None:
    if not isinstance(content, dict) or not isinstance(content.get("choices", []), list):
        raise _no_completion(content)
    if content.get("error"):
        raise EngineError(f"the server sent an error: {str(content['error'])[:_SHOWN]}")
    for choice in content.get("choices", []):
        text = _text(choice) if isinstance(choice, dict) else None
        if not isinstance(text, str | None):
            raise _no_completion(choice)
        if text:
            found._add(text, at)
        found.token_ids += (choice or {}).get("token_ids") or ()  # vLLM, if return_token_ids is set
        found.finish_reason = (choice or {}).get("finish_reason") or found.finish_reason
        _take_logprobs(found, (choice or {}).get("logprobs") or {})
    usage, metrics = content.get("usage"), content.get("metrics")
    _take_timings(found, content.get("timings"))
    if isinstance(usage, dict) and isinstance(usage.get("completion_tokens"), int):
        found.tokens = usage["completion_tokens"]
        found.prompt_tokens = usage.get("prompt_tokens")
        drafts = usage.get("completion_tokens_details") or {}
        if (accepted := drafts.get("accepted_prediction_tokens")) is not None:  # the gateway smg
            found.speculation = {
                "num_draft_tokens": accepted + drafts.get("rejected_prediction_tokens", 0),
                "num_accepted_draft_tokens": accepted,
                "num_spec_steps": found.tokens - accepted - 1,
            }
    details = (content.get("sglext") or {}).get("spec_tokens_details")
    if isinstance(details, dict) and details.get("spec_verify_ct"):  # SGLang
        histogram = details.get("spec_correct_drafts_histogram") or ()
        found.speculation = {
            "num_draft_tokens": details["spec_num_proposed_drafts"],
            "num_accepted_draft_tokens": details["spec_num_correct_drafts"],
            "num_spec_steps": details["spec_verify_ct"],
            # the draft length of a tree is unknown: use the most positions that a step accepted, but at least 1
            "acceptance_histogram_by_draft_length": {max(1, len(histogram) - 1): histogram},
        }
    if isinstance(metrics, dict) and isinstance(metrics.get("speculative_decoding"), dict):
        found.speculation = metrics["speculative_decoding"]


def _text(choice: Mapping[str, Any]) -> Any:
    """Return the new text of a completion or a chat. Some servers send reasoning in a separate field, or in two."""
    delta = choice.get("delta")
    if not isinstance(delta, dict):
        return choice.get("text")
    parts = [delta.get("reasoning_content") or delta.get("reasoning") or "", delta.get("content") or ""]
    return "".join(parts) if all(isinstance(part, str) for part in parts) else parts


def _take_logprobs(found: Streamed, logprobs: Any) -> None:
    """Add log-probabilities in either format: parallel lists (completions), or an object per token (chats)."""
    try:
        entries = []
        for one in logprobs.get("content") or ():
            listed = [(_piece_of(top), top["logprob"]) for top in one["top_logprobs"]]
            entries.append((_piece_of(one), one.get("logprob"), listed))
        tokens = logprobs.get("tokens") or ()
        columns = (logprobs.get(name) or [None] * len(tokens) for name in ("token_logprobs", "top_logprobs"))
        for text, own, top in zip(tokens, *columns, strict=True):
            listed = [(_piece_of({"token": name}), value) for name, value in (top or {}).items()]
            entries.append((_piece_of({"token": text}), own, listed))
        for piece, own, listed in entries:
            best: dict[str, float] = {} if own is None else {piece: float(own)}
            for name, value in listed:  # of several tokens with the same text, the most probable one
                best[name] = max(float(value), best.get(name, float(value)))
            found.pieces.append(piece)
            found.logprobs.append(best)
    except (TypeError, KeyError, AttributeError, ValueError) as error:
        raise EngineError(f"the format of the logprobs is unknown: {str(logprobs)[:_SHOWN]!r}") from error


def _piece_of(entry: Mapping[str, Any]) -> str:
    """Return a token's text, from its bytes or OpenAI's notation ``bytes:\\xf0`` if it has them."""
    text, raw = str(entry["token"]), entry.get("bytes")
    if raw is None and re.fullmatch(r"bytes:(\\x[0-9a-f]{2})+", text):
        raw = bytes.fromhex(text.removeprefix("bytes:").replace("\\x", ""))
    return text if raw is None else bytes(raw).decode(errors="surrogateescape")
