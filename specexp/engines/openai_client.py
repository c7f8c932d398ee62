"""One streamed completion of a server that speaks OpenAI's API, with the time each piece came."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from time import monotonic, perf_counter
from typing import Any
from urllib.parse import urlsplit

from specexp.core.messages import did_you_mean
from specexp.engines.engine import EngineError

COMPLETIONS = "/v1/completions"
_MOST_BYTES = 16 * 2**20
_SHOWN = 200


@dataclass
class Streamed:
    """A completion.

    Attributes:
        text: All of it.
        times: Seconds after the request at which pieces of it came.
        finish_reason: ``stop`` or ``length``.
        tokens: New tokens as the server counts them; None where it does not.
        speculation: vLLM's ``metrics.speculative_decoding``, also of servers that tell it by other names; empty where
            the server tells nothing.
        logprobs: Of every token the best ones with their log-probabilities; empty where they are not told.
        pieces: The tokens' texts, as far as logprobs are told.
        token_ids: The tokens; empty where they are not told.
        generation_seconds: From the first token to the last one by the server's own clock; None where it is not told.
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
        """Seconds until the first token, and from it to the last one.

        By the server's clock where it tells: on a machine that the server keeps busy a client is woken late, and all
        of a short answer's pieces seem to come at once.
        """
        whole = self.times[-1]
        rest = (
            whole - self.times[0] if self.generation_seconds is None else min(self.generation_seconds, whole)
        )
        return whole - rest, rest


def models(url: str, seconds: float) -> list[str]:
    """Names of the models that a server has.

    Raises:
        EngineError: It does not say.
    """
    content = _json(_read(url, "GET", "/v1/models", None, monotonic() + seconds))
    listed = content.get("data") if isinstance(content, dict) else None
    return [str(one["id"]) for one in listed or () if isinstance(one, dict) and "id" in one]


def model_of(url: str, wanted: str | None, seconds: float, key: str = "model") -> str:
    """The model that requests are to name.

    Args:
        url: Of the server.
        wanted: Its name; None for the only one that the server has.
        seconds: The server must say by then.
        key: What a sentence calls the name's key.

    Raises:
        EngineError: It is none that the server lists, or there is not exactly one.
    """
    found = models(url, seconds)
    if wanted is not None and (wanted in found or not found):  # some servers list none, and answer
        return wanted
    listed = f"the models {', '.join(found)}" if found else "no model"
    if wanted is not None:
        raise EngineError(f"{url} lists {listed}, and {key} is {wanted!r}{did_you_mean(wanted, found)}")
    if len(found) != 1:
        raise EngineError(f"{url} lists {listed}: name one as {key}")
    return found[0]


def complete(
    url: str,
    body: Mapping[str, Any],
    seconds: float,
    stopped: Callable[[], bool] = lambda: False,
    path: str = COMPLETIONS,
) -> Streamed:
    """Ask for a completion as a stream.

    Args:
        url: Of the server.
        body: The request, without what makes it a stream.
        seconds: It must be whole by then.
        stopped: Whether nobody wants it any more; asked at every piece.
        path: OpenAI's, or llama.cpp's own ``/completion``, which tells tokens.

    Raises:
        EngineError: It is not: no answer, an error, no stream, or a stream that ends early or holds something else.
    """
    asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
    found, ended = Streamed(), False
    begun = perf_counter()
    for line in _lines(url, path, asked, monotonic() + seconds):
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            ended = True
            break
        content = _json(data)
        if isinstance(content, dict) and "content" in content and "choices" not in content:
            ended = _take_llama(found, content, perf_counter() - begun)
        else:
            _take(found, content, perf_counter() - begun)
        if stopped():
            return found
    if not ended or not found.finish_reason:
        raise EngineError(f"{url} ended its stream early, after {len(found.text)} characters")
    return found


def _take_llama(found: Streamed, content: Mapping[str, Any], at: float) -> bool:
    """An event of llama.cpp's own stream; whether it is the last."""
    text, tokens = content["content"], content.get("tokens", [])
    if not isinstance(text, str) or not all(isinstance(one, int) for one in tokens):
        raise EngineError(f"the stream holds {str(content)[:_SHOWN]!r}, which is no completion")
    if tokens:
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
    """llama.cpp's counts by vLLM's names, and its clock; nothing where there are none."""
    if isinstance(timings, dict) and isinstance(timings.get("predicted_n"), int):
        if isinstance(timings.get("predicted_ms"), (int, float)):
            found.generation_seconds = max(0.0, timings["predicted_ms"] / 1000)
        accepted = timings.get("draft_n_accepted", 0)
        found.speculation = {
            "num_draft_tokens": timings.get("draft_n", 0),
            "num_accepted_draft_tokens": accepted,
            "num_spec_steps": timings["predicted_n"] - accepted - 1,
        }


def _take(found: Streamed, content: Any, at: float) -> None:
    if not isinstance(content, dict) or not isinstance(content.get("choices", []), list):
        raise EngineError(f"the stream holds {str(content)[:_SHOWN]!r}, which is no completion")
    if content.get("error"):
        raise EngineError(f"the server answered with the error {str(content['error'])[:_SHOWN]}")
    for choice in content.get("choices", []):
        text = choice.get("text") if isinstance(choice, dict) else None
        if not isinstance(text, str | None):
            raise EngineError(f"the stream holds {str(choice)[:_SHOWN]!r}, which is no completion")
        if text:
            found.text += text
            found.times.append(at)
        found.finish_reason = (choice or {}).get("finish_reason") or found.finish_reason
        _take_logprobs(found, (choice or {}).get("logprobs") or {})
    usage, metrics, timings = content.get("usage"), content.get("metrics"), content.get("timings")
    if isinstance(usage, dict) and isinstance(usage.get("completion_tokens"), int):
        found.tokens = usage["completion_tokens"]
    if isinstance(metrics, dict) and isinstance(metrics.get("speculative_decoding"), dict):
        found.speculation = metrics["speculative_decoding"]
    else:
        _take_timings(found, timings)


def _take_logprobs(found: Streamed, told: Any) -> None:
    """Of completions: the pieces and their best ones beside; or, of chats and llama.cpp, an object for each piece."""
    try:
        if "content" in told:
            for one in told["content"] or ():
                found.pieces.append(str(one["token"]))
                found.logprobs.append(
                    {str(best["token"]): float(best["logprob"]) for best in one["top_logprobs"]}
                )
            return
        found.logprobs += [dict(one or {}) for one in told.get("top_logprobs") or ()]
        found.pieces += [str(one) for one in told.get("tokens") or ()]
    except (TypeError, KeyError, AttributeError, ValueError) as error:
        raise EngineError(
            f"the stream holds the logprobs {str(told)[:_SHOWN]!r}, which nobody knows"
        ) from error


def _lines(url: str, path: str, body: Mapping[str, Any], deadline: float) -> Iterator[bytes]:
    rest = b""
    for piece in _pieces(url, "POST", path, json.dumps(body).encode(), deadline):
        *lines, rest = (rest + piece).split(b"\n")
        yield from lines
    yield rest


def _read(url: str, method: str, path: str, body: bytes | None, deadline: float) -> bytes:
    return b"".join(_pieces(url, method, path, body, deadline))


def _pieces(url: str, method: str, path: str, body: bytes | None, deadline: float) -> Iterator[bytes]:
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=max(0.1, deadline - monotonic()))
    try:
        connection.request(method, parts.path + path, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200:
            said = " ".join(answer.read(_SHOWN).decode(errors="replace").split())
            raise EngineError(f"{url}{path} answered {answer.status}: {said}")
        size = 0
        while piece := answer.read1(65536):
            size += len(piece)
            if size > _MOST_BYTES:
                raise EngineError(f"{url}{path} answered more than {_MOST_BYTES} bytes")
            yield piece
            left = deadline - monotonic()
            if left <= 0:
                raise TimeoutError
            if connection.sock is not None:
                connection.sock.settimeout(left)
    except TimeoutError as error:
        raise EngineError(f"{url}{path} did not answer in time") from error
    except (OSError, http.client.HTTPException) as error:
        raise EngineError(f"{url}{path} broke off ({type(error).__name__}: {error})") from error
    finally:
        connection.close()


def _json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise EngineError(f"the server sent {data[:60]!r}, which is no JSON") from error
