"""Whether a server's speculation is lossless: its answers with it and without, at temperature 0, side by side.

``python -m specexp.verify --endpoint URL`` and the verification of an ``engine:`` share the verdicts and the report.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

from specexp.config.command import SHOWING, current_result, fail, telling
from specexp.core.messages import counted, first_line, shown
from specexp.engines.engine import EngineError
from specexp.engines.openai_client import Streamed, complete, model_of

Verdict = Literal["equal", "near tie", "wrong", "cannot tell"]
_AROUND = 40
"""Characters shown around a divergence."""

Ask = Callable[[str], Streamed]


@dataclass(frozen=True)
class Compared:
    """One prompt.

    Attributes:
        prompt: Its text.
        verdict: The verdict.
        at: Characters that both answers have in common.
        gap: Log-probability by which plain decoding prefers its own token there; None if it is unknown.
        why: The reason for the verdict.
        plain: The answer without speculation, around the place.
        speculative: The answer with it.
        tokens: Number of compared tokens.
    """

    prompt: str
    verdict: Verdict
    at: int = 0
    gap: float | None = None
    why: str = ""
    plain: str = ""
    speculative: str = ""
    tokens: int = 0


@dataclass(frozen=True)
class EndpointReport:
    """All prompts.

    Attributes:
        compared: Prompt by prompt.
        asked: Addresses, model and settings, so that the comparison can be repeated.
    """

    compared: Sequence[Compared]
    asked: Mapping[str, Any] = field(default_factory=dict)

    def count(self, verdict: Verdict) -> int:
        """Number of prompts with a verdict."""
        return sum(one.verdict == verdict for one in self.compared)

    @property
    def exit_code(self) -> int:
        """0: no answer is wrong; 1: one is; 3: an answer cannot be judged."""
        if self.count("wrong"):
            return 1
        return 3 if self.count("cannot tell") else 0

    def counts(self) -> str:
        """Number of prompts by verdict."""
        verdicts: tuple[Verdict, ...] = get_args(Verdict)
        return ", ".join(f"{self.count(verdict)} {verdict}" for verdict in verdicts)

    def write(self, file: Path) -> None:
        """Write markdown that can be attached to an issue, and print it."""
        tokens = sum(one.tokens for one in self.compared)
        lines = [
            f"# Speculation on against off, temperature 0: {counted(len(self.compared), 'prompt')}, {tokens} tokens",
            "",
            self.counts(),
            "",
            f"Asked: `{json.dumps(dict(self.asked))}`",
        ]
        for one in self.compared:
            if one.verdict != "equal":
                lines += [
                    "",
                    f"## {one.verdict}: {shown(one.prompt)}",
                    f"The answers part after {counted(one.at, 'character')}: {one.why}.",
                    f"- off: `{one.plain!r}`",
                    f"- on: `{one.speculative!r}`",
                ]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")
        print(*lines, f"in {file}", sep="\n")


def judged(
    prompt: str,
    at: int,
    plain: str,
    speculative: str,
    tokens: int,
    *,
    repeats: bool,
    gap: float | None,
    source: str,
    tolerance: float,
) -> Compared:
    """The verdict on two answers that differ.

    Args:
        prompt: The prompt.
        at: Characters that they have in common.
        plain: The answer without speculation.
        speculative: The answer with it.
        tokens: Number of compared tokens.
        repeats: Whether plain decoding gave the same answer again.
        gap: Log-probability by which plain decoding prefers its own token; None if it is unknown.
        source: Where the gap comes from.
        tolerance: Largest gap at which rounding may decide otherwise.
    """
    verdict: Verdict = "cannot tell"
    if not repeats:
        gap, why = None, "plain decoding does not give its own answer twice"
    elif gap is None:
        why = "there are no log-probabilities of the token, so a near tie cannot be told from a mistake"
    elif gap < -tolerance:
        why = f"{source} prefers the speculative token by {-gap:.3g}, so it is not the model that decodes plainly"
    else:
        verdict = "near tie" if gap <= tolerance else "wrong"
        why = f"plain decoding prefers its own token by {gap:.3g} in log-probability there, by {source}"
    around = slice(max(0, at - _AROUND), at + _AROUND)
    return Compared(prompt, verdict, at, gap, why, plain[around], speculative[around], tokens)


def compare_endpoints(
    prompts: Iterable[str],
    speculative: Ask,
    plain: Ask,
    tolerance: float,
    tell: Callable[[Compared], None] = lambda one: None,
) -> list[Compared]:
    """Ask both for every prompt.

    A different answer is wrong only if plain decoding repeats itself and clearly prefers its own token, by the
    server's log-probabilities. Without these it cannot be judged.

    Args:
        prompts: Texts.
        speculative: Asks with speculation.
        plain: Asks without.
        tolerance: Largest gap of log-probabilities at which rounding may decide otherwise.
        tell: Called with every prompt's verdict.

    Raises:
        EngineError: A server does not answer.
    """
    found = []
    for prompt in prompts:
        off, on = plain(prompt), speculative(prompt)
        one = _compared(prompt, off, on, plain, tolerance)
        tell(one)
        found.append(one)
    return found


def _compared(prompt: str, off: Streamed, on: Streamed, plain: Ask, tolerance: float) -> Compared:
    tokens = off.tokens or len(off.pieces) or len(off.times)
    if off.text == on.text:
        return Compared(prompt, "equal", tokens=tokens)
    at = next(
        (place for place, pair in enumerate(zip(off.text, on.text, strict=False)) if pair[0] != pair[1]),
        min(len(off.text), len(on.text)),
    )
    repeats = plain(prompt).text == off.text
    gap, source = _gap(off, on, at), "the server's own log-probabilities"
    given = (prompt, at, off.text, on.text, tokens)
    return judged(*given, repeats=repeats, gap=gap, source=source, tolerance=tolerance)


def _gap(off: Streamed, on: Streamed, at: int) -> float | None:
    """The gap of plain decoding's log-probabilities at the token in which the answers differ.

    It is a lower bound if the other token is not among the best that the server returned. None if the server did not
    return them for every token, or where an answer has ended: no text shows the token that ended it.
    """
    if "".join(off.pieces) != off.text or len(off.logprobs) != len(off.pieces):
        return None
    if at == len(off.text) or at == len(on.text):
        return None
    begin = 0
    for piece, best in zip(off.pieces, off.logprobs, strict=True):
        if at < begin + len(piece):
            if piece not in best or not best:
                return None
            rest = on.text[begin:]
            others = [
                value for text, value in best.items() if text and text != piece and rest.startswith(text)
            ]
            return best[piece] - max(others, default=min(best.values()))
        begin += len(piece)
    return None


def verify_endpoint(arguments: Sequence[str]) -> int:
    """Run ``python -m specexp.verify --endpoint URL``.

    Returns:
        Its exit code: 0 no answer is wrong, 1 one is, 2 the server cannot be asked, 3 an answer cannot be judged.
    """
    with telling(arguments) as found:
        found.exit_code = _act([one for one in arguments if one not in SHOWING])
    return found.exit_code


def _act(arguments: Sequence[str]) -> int:
    try:
        given = _parser().parse_args(arguments)
        report = _compare(given)
        file = Path(given.output, "endpoint.md")
        report.write(file)
    except (EngineError, ValueError, argparse.ArgumentError) as error:
        return fail(first_line(error).removeprefix("argument "))
    except OSError as error:
        return fail(f"--output: {given.output} cannot be written ({error.strerror or error})")
    known = current_result()
    known.answer, known.folder = report.counts(), given.output
    known.next = {
        0: "experiments/engines/compare.yaml measures a server against others",
        1: f"{file} belongs into an issue of the server",
    }.get(report.exit_code, "a server that returns logprobs tells a near tie from a mistake")
    return report.exit_code


def _compare(given: argparse.Namespace) -> EndpointReport:
    from specexp.data import StdlibFunctions, Workload
    from specexp.data.own_prompts import OwnPrompts

    url, plain_url = (
        one.rstrip("/").removesuffix("/v1") for one in (given.endpoint, given.plain or given.endpoint)
    )
    if given.plain is None and not given.plain_body:
        raise EngineError(
            "nothing says how speculation is left out: give --plain URL, a server of the same model without it, or "
            "--plain-body JSON, such as '{\"speculative\": false}'"
        )
    prompts = StdlibFunctions("test") if given.prompts is None else OwnPrompts(given.prompts)
    rows = Workload(prompts, max_prompts=given.max_prompts).rows()
    model = model_of(url, given.model, given.seconds, "--model")
    asked = {
        "on": url, "off": plain_url, "off_body": given.plain_body, "model": model, "max_tokens": given.max_tokens,
        "tolerance": given.tolerance, "temperature": 0,
    }  # fmt: skip
    count = 0

    def tell(one: Compared) -> None:
        nonlocal count
        count += 1
        if one.verdict != "equal":
            print(f"prompt {count} of {len(rows)}: {one.verdict}, {one.why}", flush=True)

    def ask(address: str, body: Mapping[str, Any], prompt: str) -> Streamed:
        fixed = {"max_tokens": given.max_tokens, "temperature": 0, "logprobs": 5}
        return complete(address, {"model": model, "prompt": prompt, **fixed, **body}, given.seconds)

    speculative, plain = partial(ask, url, {}), partial(ask, plain_url, given.plain_body)
    texts = [row["turns"][0] for row in rows]
    return EndpointReport(compare_endpoints(texts, speculative, plain, given.tolerance, tell), asked)


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more, got {value}")
    return value


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"must be JSON, got {text!r}") from error
    if not isinstance(found, dict):
        raise argparse.ArgumentTypeError(f"must be a JSON object, got {text!r}")
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m specexp.verify",
        description="Compare a server's answers with speculation and without, at temperature 0.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        exit_on_error=False,
    )
    add = parser.add_argument
    add("--endpoint", required=True, metavar="URL", help="the server, e.g. http://127.0.0.1:8000")
    add("--plain", metavar="URL", help="a server of the same model without speculation")
    add(
        "--plain-body", type=_object, default={}, metavar="JSON",
        help="fields that switch a request's speculation off, e.g. '{\"speculative\": false}'",
    )  # fmt: skip
    add("--model", metavar="NAME", help="name in requests; by default the only one that the server has")
    add("--prompts", metavar="FILE", help="your own prompts; by default functions of Python's library")
    add("--max-prompts", type=_positive, default=50, metavar="N", help="prompts at most")
    add("--max-tokens", type=_positive, default=64, metavar="N", help="tokens of an answer at most")
    add(
        "--tolerance", type=float, default=0.125, metavar="GAP",
        help="log-probability within which rounding may decide, by default bfloat16's",
    )  # fmt: skip
    add("--seconds", type=float, default=120, metavar="S", help="time limit of an answer")
    add("--output", default="runs/verify", metavar="FOLDER", help="folder of the report")
    return parser
