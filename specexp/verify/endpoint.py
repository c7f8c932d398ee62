"""Tests a server's or engine's speculation by comparing its answers with and without speculation at temperature 0."""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from specexp.base.messages import counted, first_line, option_message, shown
from specexp.config.command import SHOWING, Options, collected_result, current_result, fail
from specexp.core.context import common_prefix
from specexp.engines.engine import EngineError
from specexp.engines.openai_client import CHAT, COMPLETIONS, KEY, Streamed, complete, model_of, prompt_fields

if TYPE_CHECKING:
    from specexp.config import Config
    from specexp.data import Prompt
    from specexp.engines.engine import ForeignEngine
    from specexp.models.pair import ModelPair

Verdict = Literal["equal", "near tie", "wrong", "cannot tell"]
NO_PLAIN = (
    "--plain must be another server of the same model without speculation, or --plain-body must switch it off, such as "
    "'{\"speculative\": false}'"
)
_AROUND = 40
"""The number of characters shown on each side of a divergence."""
_INCOMPLETE = "\ufffd".encode()
"""The end of a text whose last character is cut by the token limit."""
_ROUNDING = 1e-3
"""A gap between float32 logits that rounding can reverse in passes of different widths. Real errors are larger."""
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
            why = f"{reference} prefers its own token by {gap:.3g} in log-probability, according to {source}"
        around = slice(max(0, at - _AROUND), at + _AROUND)
        return cls(prompt, verdict, at, gap, why, plain[around], speculative[around], tokens)


@dataclass(frozen=True)
class EndpointReport:
    """The verdicts on all prompts, and the settings with which they were compared."""

    compared: Sequence[Compared]
    settings: Mapping[str, Any] = field(default_factory=dict)  # addresses, model and limits
    sides: tuple[str, str] = _SPECULATION  # how the two answers of each prompt were made

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
            *("", self.counts(), "", f"Settings: `{json.dumps(dict(self.settings))}`"),
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
    cancelled half way.

    Args:
        ask: called with a prompt and, for an unverified request, with its fields and whether it is cancelled.

    Raises:
        EngineError: the server fails.
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
    rounding = "largest log-probability gap that counts as a near tie; the default suits bfloat16"
    parser.add_argument("--tolerance", type=amount, default=0.25, metavar="GAP", help=rounding)
    among = "compare requests among N others with lone requests instead, with the server's own speculation"
    parser.add_argument("--concurrency", type=positive_integer, metavar="N", help=among)

    def act(given: argparse.Namespace) -> int:
        report = _compare_servers(given)
        result = current_result()
        file = Path(given.output, "endpoint.md")
        report.write(file)
        result.answer, result.folder = report.counts(), given.output
        result.next = {
            0: "run experiments/engines/compare.yaml to compare the speed of servers",
            1: f"attach {file} to an issue of the server",
            3: "use a server that returns logprobs, so that near ties can be distinguished from errors",
        }[report.exit_code]
        return report.exit_code

    return run_endpoint_command(parser, arguments, act)


def run_endpoint_command(
    parser: argparse.ArgumentParser, arguments: Sequence[str], act: Callable[[argparse.Namespace], int]
) -> int:
    """Parse the options, call ``act`` and print its result or error. Return the exit code, 2 after an error."""
    with collected_result(arguments) as result:
        output = ""
        try:
            given = parser.parse_args([one for one in arguments if one not in SHOWING])
            output = given.output
            result.exit_code = act(given)
        except (EngineError, ValueError, argparse.ArgumentError) as error:
            result.exit_code = fail(option_message(first_line(error)))
        except OSError as error:
            result.exit_code = fail(f"--output: {output} cannot be written ({error.strerror or error})")
    return result.exit_code


def _compare_servers(given: argparse.Namespace) -> EndpointReport:
    url, plain_url = (one.rstrip("/").removesuffix("/v1") for one in (given.endpoint, given.plain or given.endpoint))
    if given.concurrency and (given.plain or given.plain_body):
        raise EngineError("--concurrency compares a server with itself: leave --plain and --plain-body out")
    if plain_url == url and not given.plain_body and not given.concurrency:
        raise EngineError(NO_PLAIN)
    texts = prompts_of(given)
    model = model_of(url, given.model, given.seconds, "--model")
    limits = {"max_tokens": given.max_tokens, "temperature": 0}
    logprobs = {"logprobs": True, "top_logprobs": 5} if given.chat else {"logprobs": 5}
    path = CHAT if given.chat else COMPLETIONS

    def ask(
        address: str, body: Mapping[str, Any], prompt: str, stopped: Callable[[], bool] = lambda: False
    ) -> Streamed:
        whole = {"model": model, **prompt_fields(prompt, given.chat), **limits, **logprobs, **body}
        return complete(address, whole, given.seconds, stopped, path)

    def ask_beside(prompt: str, body: Mapping[str, Any] | None = None, cancelled: bool = False) -> Streamed:
        pieces = iter(range(given.max_tokens // 2))
        return ask(url, body or {}, prompt, lambda: cancelled and next(pieces, None) is None)

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
    settings = {"on": url, "off": plain_url, "off_body": given.plain_body, "model": model, **limits}
    if given.concurrency:
        settings = {"server": url, "others": given.concurrency, "model": model, **limits}
    return EndpointReport(compared, {**settings, "path": path, "tolerance": given.tolerance}, sides)


def positive_integer(text: str) -> int:
    """Parse a positive integer. ``option_message`` words an error by this function's name."""
    if int(text) < 1:
        raise ValueError(text)
    return int(text)


def amount(text: str) -> float:
    """Parse an amount. ``option_message`` words an error by this function's name."""
    if not 0 <= float(text) < inf:
        raise ValueError(text)
    return float(text)


def server_url(text: str) -> str:
    """Check the address of a server."""
    if not text.startswith(("http://", "https://")):
        raise argparse.ArgumentTypeError(f"must begin with http:// or https://, got {text!r}")
    return text


def json_object(text: str) -> dict[str, Any]:
    """Parse a JSON object. ``option_message`` words an error by this function's name."""
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError(text)
    return found


def endpoint_parser(command: str, description: str, max_prompts: int) -> argparse.ArgumentParser:
    """Return a parser for commands that measure a server."""
    parser = Options(
        prog=f"python -m specexp.{command}",
        description=description,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        exit_on_error=False,
        epilog=f"If {KEY} is set, requests send it as API key.",
    )
    add = parser.add_argument
    body = "fields that switch a request's speculation off, e.g. '{\"speculative\": false}'"
    prompts = "file of your own prompts; by default functions of Python's library"
    add("--endpoint", type=server_url, required=True, metavar="URL", help="the server, e.g. http://127.0.0.1:8000")
    without = "the same for a server of the same model without speculation"
    add("--plain", type=server_url, metavar="URL", help=without)
    add("--plain-body", type=json_object, default={}, metavar="JSON", help=body)
    add("--chat", action="store_true", help="send prompts as chats, with the server's template")
    add("--model", metavar="NAME", help="model name in requests; by default the server's only model")
    add("--prompts", metavar="FILE", help=prompts)
    add("--max-prompts", type=positive_integer, default=max_prompts, metavar="N", help="number of prompts")
    add("--max-tokens", type=positive_integer, default=64, metavar="N", help="number of tokens per answer")
    add("--seconds", type=amount, default=120, metavar="S", help="time limit per answer in seconds")
    add("--output", default=f"runs/{command}", metavar="FOLDER", help="folder of the report")
    return parser


def prompts_of(given: argparse.Namespace) -> list[str]:
    """Return the first turn of each prompt that the options select."""
    from specexp.data import StdlibFunctions, Workload
    from specexp.data.own_prompts import OwnPrompts

    prompts = StdlibFunctions("test") if given.prompts is None else OwnPrompts(given.prompts)
    return [row["turns"][0] for row in Workload(prompts, max_prompts=given.max_prompts).rows()]


def engine_to_verify(config: Config) -> ForeignEngine:
    """Return the configured engine. Raises ConfigError if it cannot be built or does not speculate."""
    from specexp.config import build_engine

    engine: ForeignEngine = build_engine(config)
    if engine.deployed_settings() == engine.plain().deployed_settings():
        raise config.checker.error(
            ("engine",),
            f": {type(engine).__name__} does not speculate with these settings, so there is nothing to verify: enable "
            "its speculation",
        )
    return engine


def verify_engine(config: Config) -> EndpointReport:
    """Compare an engine's answers with and without speculation, and write ``<output>/verify/<name>/engine.md``.

    Raises ConfigError if models or prompts cannot be used, or the engine does not start or answer.
    """
    import torch

    from specexp.bench.arm import eos_of
    from specexp.bench.equality import first_difference, near_tie_of
    from specexp.bench.experiment import load_prompts, use_threads
    from specexp.config import apply_overrides, build_pair
    from specexp.core.runtime import Runtime
    from specexp.engines.served_arm import EnginePool

    engine = engine_to_verify(config)
    use_threads(config)
    pair = build_pair(config)
    prompts = load_prompts(config, pair).prompts
    exact: ModelPair | None = pair
    if isinstance(pair.target, Runtime):  # llama.cpp's
        exact = None  # its logits cannot be read
    elif config.pair.target_dtype != "float32":
        exact = build_pair(apply_overrides(config, {"pair.target_dtype": "float32"}, "verify"))
    generation = config.generation
    eos = eos_of(pair.tokenizer, pair.target) if generation.stop_at_eos else frozenset()
    pool = EnginePool(pair)
    plain = engine.plain()
    decode = pair.tokenizer.decode

    def answer(one: ForeignEngine, prompt: Prompt) -> list[int]:
        running = pool.take(one, id(one))
        return running.answer(one, prompt.token_ids, generation.max_new_tokens, eos).token_ids

    def compared(prompt: Prompt) -> Compared:
        on, off = answer(engine, prompt), answer(plain, prompt)
        place = first_difference(on, off)
        text = decode(list(prompt.token_ids))
        end = next((number for number, token in enumerate(on, 1) if token in eos), len(on))
        if end < len(on):
            why = f"{counted(len(on) - end, 'token')} follow the token that ends the answer"
            return Compared(text, "wrong", len(decode(on[:end])), None, why, decode(off), decode(on), len(off))
        if place is None:
            return Compared(text, "equal", tokens=len(off))
        repeats, gap, tolerance = answer(plain, prompt) == off, None, _ROUNDING
        if repeats and exact is not None and place < min(len(off), len(on)):
            with torch.inference_mode():
                logits = exact.target(torch.tensor([[*prompt.token_ids, *off[:place]]])).logits[0, -1].float()
            gap = float(logits[off[place]] - logits[on[place]])
            tolerance = max(near_tie_of(config.pair.target_dtype, float(logits.max())), _ROUNDING)
        given = (text, len(decode(off[:place])), decode(off), decode(on), len(off), repeats, gap)
        return Compared.judge(*given, source="the target in float32", tolerance=tolerance)

    try:
        found = [compared(prompt) for prompt in prompts]
    except EngineError as error:
        raise config.checker.error(("engine",), f": {first_line(error)}") from error
    finally:
        pool.close()
    settings = {
        **{"engine": type(engine).__name__, "version": engine.version},
        **{"on": engine.deployed_settings(), "off": plain.deployed_settings()},
        **{"target": config.pair.target, "max_tokens": generation.max_new_tokens},
    }
    report = EndpointReport(found, settings)
    report.write(Path(config.output, "verify", config.name, "engine.md"))
    return report
