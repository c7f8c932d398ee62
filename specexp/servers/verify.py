"""Tests a server's or engine's speculation by comparing its answers with and without speculation at temperature 0."""

from __future__ import annotations

import argparse
import json
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

from specexp.base.messages import counted, shown
from specexp.bench.equality import near_tie_of
from specexp.config.command import current_result
from specexp.config.next_step import command_line
from specexp.core.context import common_prefix
from specexp.engines import openai_client as client
from specexp.engines.engine import EngineError
from specexp.engines.openai_client import Streamed
from specexp.servers.counters import Drafts, draft_counters
from specexp.servers.options import amount, endpoint_parser, positive_integer, prompts_of, run_endpoint_command

Verdict = Literal["equal", "near tie", "wrong", "cannot tell"]
NO_PLAIN = (
    "--plain must be another server of the same model without speculation, or --plain-body must switch it off, such as "
    "'{\"speculative\": false}'"
)
_AROUND = 40
"""The number of characters shown on each side of a divergence."""
_INCOMPLETE = "\ufffd".encode()
"""The end of a text whose last character is cut by the token limit."""
_AMONG = ("--concurrency", 4)
_SPECULATION, _NEIGHBORS = ("off", "on"), ("alone", "among others")

Ask = Callable[[str], Streamed]


@dataclass(frozen=True)
class Compared:
    """The comparison of one prompt's answers with and without speculation."""

    prompt: str
    verdict: Verdict
    at: int = 0  # length of the answers' common prefix in characters
    gap: float | None = None  # log-probability by which plain decoding prefers its own token; None if unknown
    why: str = ""
    plain: str = ""  # the answer without speculation, around the divergence
    speculative: str = ""
    tokens: int = 0  # compared tokens

    @classmethod
    def judge(
        cls,
        prompt: str,
        at: int,
        plain: str,
        speculative: str,
        tokens: int,
        repeats: bool,  # whether plain decoding gave the same answer again
        gap: float | None,
        *,
        source: str,  # source of the gap, for the message
        reference: str = "plain decoding",  # what gave the first answer, for the message
        tolerance: float,  # largest gap that rounding may reverse
    ) -> Compared:
        """Return the verdict on two answers that differ."""
        verdict: Verdict = "cannot tell"
        if not repeats:
            gap, why = None, f"{reference} does not reproduce its own answer"
        elif gap is None:
            why = (
                "the token's log-probabilities are missing, so a near tie cannot be distinguished from an error "
                "(llama.cpp sends none for tokens of a step that checked a draft, so its plain server must not draft)"
            )
        elif gap < -tolerance:
            why = f"{source} prefers the speculative token by {-gap:.3g}, so plain decoding uses another model"
        else:
            verdict = "near tie" if gap <= tolerance else "wrong"
            token = "the speculative token" if gap < 0 else "its own token"
            why = f"{reference} prefers {token} by {abs(gap):.3g} in log-probability, according to {source}"
        around = slice(max(0, at - _AROUND), at + _AROUND)
        return cls(prompt, verdict, at, gap, why, plain[around], speculative[around], tokens)


@dataclass(frozen=True)
class EndpointReport:
    """The verdicts on all prompts, and the settings with which they were compared."""

    compared: Sequence[Compared]
    settings: Mapping[str, Any] = field(default_factory=dict)  # addresses, model and limits
    sides: tuple[str, str] = _SPECULATION  # how the two answers of each prompt were made
    speed: str = ""  # a clause on the speedup; empty if it was not measured

    def count(self, verdict: Verdict) -> int:
        """Return the number of prompts with this verdict."""
        return sum(one.verdict == verdict for one in self.compared)

    @property
    def exit_code(self) -> int:
        """0 if no answer is wrong, 1 if at least one is wrong, 3 if at least one cannot be judged."""
        return 1 if self.count("wrong") else 3 if self.count("cannot tell") else 0

    def counts(self) -> str:
        """Return the number of prompts with each verdict."""
        verdicts: tuple[Verdict, ...] = get_args(Verdict)
        return ", ".join(f"{self.count(verdict)} {verdict}" for verdict in verdicts)

    def write(self, file: Path) -> None:
        """Print a Markdown report and write it to a file that can be attached to an issue."""
        tokens = sum(one.tokens for one in self.compared)
        off, on = self.sides
        subject = "Speculation" if self.sides == _SPECULATION else "Requests"
        lines = [
            f"# {subject} {on} against {off}, temperature 0: {counted(len(self.compared), 'prompt')}, {tokens} tokens",
            *("", self.counts(), *filter(None, [self.speed]), "", f"Settings: `{json.dumps(dict(self.settings))}`"),
        ]
        for one in self.compared:
            if one.verdict != "equal":
                lines += [
                    *("", f"## {one.verdict}: {shown(one.prompt)}"),
                    f"The answers differ after {counted(one.at, 'character')}: {one.why}.",
                    *(f"- {off}: `{one.plain!r}`", f"- {on}: `{one.speculative!r}`"),
                ]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")
        print(*lines, f"in {file}", sep="\n")


def compare_endpoints(
    prompts: Iterable[str], speculative: Ask, plain: Ask, tolerance: float, reference: str = "plain decoding"
) -> Iterator[Compared]:
    """Compare the answers to all prompts, one prompt at a time.

    An answer is wrong only if plain decoding is reproducible and the server's log-probabilities clearly prefer plain
    decoding's token. Without them, the verdict is ``cannot tell``. Raises EngineError if a server fails.
    """
    for prompt in prompts:
        off, on = plain(prompt), speculative(prompt)
        tokens = off.tokens or len(off.pieces) or len(off.times)
        if off.text == on.text:
            yield Compared(prompt, "equal", tokens=tokens)
            continue
        at = common_prefix(off.text, on.text)
        given = (prompt, at, off.text, on.text, tokens, plain(prompt).text == off.text, _gap(off, on, at))
        source = "the server's own log-probabilities"
        yield Compared.judge(*given, source=source, reference=reference, tolerance=tolerance)


def answers_among_others(prompts: Sequence[str], ask: Callable[..., Streamed], others: int) -> dict[str, Streamed]:
    """Return the answers to all prompts, by prompt. Each is sent while up to ``others`` other requests run.

    Half of the requests are unverified: the beginnings of prompts, sampled at several temperatures and seeds or
    cancelled half way. ``ask`` gets a prompt and, for these, the request's fields and whether it is cancelled. Raises
    EngineError if the server fails.
    """
    draw = random.Random(0)
    with ThreadPoolExecutor(others + 1) as pool:
        verified, unverified = {}, []
        for seed, prompt in enumerate(prompts):
            verified[prompt] = pool.submit(ask, prompt)
            beginning = prompt[: draw.randint(1, len(prompt))]
            body = {"temperature": draw.choice((0.3, 0.7, 1.2)), "seed": seed}
            unverified.append(pool.submit(ask, beginning, body, bool(seed % 2)))
        for one in unverified:
            one.result()
        return {prompt: one.result() for prompt, one in verified.items()}


def _gap(off: Streamed, on: Streamed, at: int) -> float | None:
    """Return plain decoding's gap in log-probability between the two tokens at which the answers first differ.

    The gap is a lower bound if the other token is not among the best that the server returned. It is None if a token
    has no log-probabilities, or if an answer ends there, since its end token has no text.
    """
    if at == len(off.text) or at == len(on.text):
        return None
    rest, other = off.text.encode(), on.text.encode()
    for text, best in zip(off.pieces, off.logprobs, strict=False):
        piece = _raw(text)
        if not rest.startswith(piece) and rest != _INCOMPLETE:
            return None  # the tokens do not give the text
        if not other.startswith(piece):
            # The speculative token is unknown, but the rest of the speculative answer starts with its bytes.
            others = [
                one for name, one in best.items() if _raw(name) not in (b"", piece) and other.startswith(_raw(name))
            ]
            return best[text] - max(others, default=min(best.values())) if text in best else None
        rest, other = rest[len(piece) :], other[len(piece) :]
    return None


def _raw(piece: str) -> bytes:
    return piece.encode(errors="surrogateescape")


def verify_endpoint(arguments: Sequence[str]) -> int:
    """Run ``python -m specexp.verify --endpoint URL``; return the report's exit code, or 2 if it cannot run."""
    about = "Compare a server's answers with speculation and without, at temperature 0."
    parser = endpoint_parser("verify", about, max_prompts=50)
    limit = near_tie_of("bfloat16", 16.0)  # as in a study of an engine; an answer does not tell its logits
    rounding = f"largest log-probability gap that counts as a near tie; the default, {limit:g}, suits bfloat16"
    parser.add_argument("--tolerance", type=amount, default=limit, metavar="GAP", help=rounding)
    among = "compare requests among N others with lone requests instead, with the server's own speculation"
    parser.add_argument("--concurrency", type=positive_integer, metavar="N", help=among)

    def act(given: argparse.Namespace) -> int:
        report = _compare_servers(given)
        result = current_result()
        file = Path(given.output, "endpoint.md")
        report.write(file)
        result.answer = report.counts()
        result.folder = given.output
        result.next = {
            0: command_line("why", "--endpoint", given.endpoint, why="what its drafts cost and gain")
            if given.concurrency
            else command_line("verify", "--endpoint", given.endpoint, *_AMONG, why="do answers depend on others?"),
            1: f"repeat it in float32 if the servers compute in 16 bits, or attach {file} to an issue of the server",
            3: "use a server that returns logprobs, so that near ties can be distinguished from errors",
        }[report.exit_code]
        return report.exit_code

    return run_endpoint_command(parser, arguments, act)


def _check_off(ask: Callable[[], Streamed], url: str, given: argparse.Namespace) -> None:
    """Raise an EngineError if a server drafts for a plain request."""
    read = Counter[str]()
    before = draft_counters(url, given.seconds, read)
    own = ask().speculation
    drafts = Drafts.of(own, draft_counters(url, given.seconds, read) - before)
    if drafts is None or not drafts.drafted:
        return
    drafted = f"drafted {counted(drafts.drafted, 'token')}"
    if not given.plain_body:
        raise EngineError(f"--plain must be a server without speculation, but {url} {drafted}")
    raise EngineError(
        f"--plain-body must switch the speculation of {url} off, but with {json.dumps(given.plain_body)} it {drafted}: "
        "name a server without speculation with --plain"
    )


def _compare_servers(given: argparse.Namespace) -> EndpointReport:
    url, plain_url = (one.rstrip("/").removesuffix("/v1") for one in (given.endpoint, given.plain or given.endpoint))
    if given.concurrency and (given.plain or given.plain_body):
        raise EngineError("--concurrency compares a server with itself: leave --plain and --plain-body out")
    same = len({one.replace("//localhost", "//127.0.0.1") for one in (url, plain_url)}) == 1
    if same and not given.plain_body and not given.concurrency:
        raise EngineError(NO_PLAIN)
    texts = prompts_of(given)
    models = {one: client.model_of(one, given.model, given.seconds, "--model") for one in {url, plain_url}}
    limits = {"max_tokens": given.max_tokens, "temperature": 0}
    # llama.cpp's answers depend on the prompts that its cache has kept
    kept = {"cache_prompt": False} if client.owner_of(url, given.seconds) == "llamacpp" else {}
    logprobs = {"logprobs": True, "top_logprobs": 5} if given.chat else {"logprobs": 5}
    path = client.CHAT if given.chat else client.COMPLETIONS

    def ask(
        address: str, body: Mapping[str, Any], prompt: str, stopped: Callable[[], bool] = lambda: False
    ) -> Streamed:
        sent = {"model": models[address], **client.prompt_fields(prompt, given.chat)}
        whole = {**sent, **limits, **logprobs, **kept, **body}
        return client.complete(address, whole, given.seconds, stopped, path)

    def ask_beside(prompt: str, body: Mapping[str, Any] | None = None, cancelled: bool = False) -> Streamed:
        pieces = iter(range(given.max_tokens // 2))
        return ask(url, body or {}, prompt, lambda: cancelled and next(pieces, None) is None)

    if not given.concurrency:
        _check_off(partial(ask, plain_url, given.plain_body, texts[0]), plain_url, given)
    limit = counted(given.max_tokens, "token")
    print(f"Each of {counted(len(texts), 'prompt')} is answered twice, with at most {limit}.", flush=True)
    speculative: Ask = partial(ask, url, {})
    plain = partial(ask, plain_url, given.plain_body)
    sides, reference = _SPECULATION, "plain decoding"
    if given.concurrency:
        sides, reference = _NEIGHBORS, "the lone request"
        speculative = answers_among_others(texts, ask_beside, given.concurrency).__getitem__
    compared = []
    found = compare_endpoints(texts, speculative, plain, given.tolerance, reference)
    for number, one in enumerate(found, 1):
        compared.append(one)
        if one.verdict != "equal":
            print(f"prompt {number} of {len(texts)}: {one.verdict}, {one.why}", flush=True)
    settings = {"on": url, "off": plain_url, "off_body": given.plain_body, "model": models[url], **limits}
    if given.concurrency:
        settings = {"server": url, "others": given.concurrency, "model": models[url], **limits}
    return EndpointReport(compared, {**settings, "path": path, "tolerance": given.tolerance}, sides)
