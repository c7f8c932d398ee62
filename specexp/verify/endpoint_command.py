"""``python -m specexp.verify --endpoint URL``: what it takes, and what it prints and writes."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from specexp.config.command import fail
from specexp.config.told import SHOWING, telling, told
from specexp.core.messages import first_line
from specexp.engines.engine import EngineError
from specexp.verify.endpoint import Compared, EndpointReport, asking, compare_endpoints


def verify_endpoint(arguments: Sequence[str]) -> int:
    """Run the command.

    Returns:
        Its exit code: 0 no answer is wrong, 1 one is, 2 the server cannot be asked, 3 an answer cannot be judged.
    """
    with telling(arguments) as found:
        found.exit_code = _act(_parser().parse_args([one for one in arguments if one not in SHOWING]))
    return found.exit_code


def _act(given: argparse.Namespace) -> int:
    try:
        _check(given)
        report = _compare(given)
        folder = Path(given.output)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "endpoint.md").write_text(report.text(), encoding="utf-8")
    except (EngineError, ValueError) as error:
        return fail(first_line(error))
    except OSError as error:
        return fail(f"--output: {given.output} cannot be written ({error.strerror or error})")
    print(report.text(), end="")
    print(f"in {folder / 'endpoint.md'}")
    known = told()
    known.answer, known.folder = report.counts(), str(folder)
    known.next = {
        0: "experiments/engines/compare.yaml measures a server against others",
        1: f"{folder / 'endpoint.md'} belongs into an issue of the server",
    }.get(report.exit_code, "a server that returns logprobs tells a near tie from a mistake")
    return report.exit_code


def _compare(given: argparse.Namespace) -> EndpointReport:
    from specexp.data import StdlibFunctions, Workload
    from specexp.data.own_prompts import OwnPrompts
    from specexp.engines.openai_client import model_of

    url, plain_url = (
        one.rstrip("/").removesuffix("/v1") for one in (given.endpoint, given.plain or given.endpoint)
    )
    plain_body = _object(given.plain_body)
    if given.plain is None and not plain_body:
        raise EngineError(
            "nothing says how speculation is left out: give --plain URL, a server of the same model without it, or "
            "--plain-body JSON, such as '{\"speculative\": false}'"
        )
    prompts = StdlibFunctions("test") if given.prompts is None else OwnPrompts(given.prompts)
    rows = Workload(prompts, max_prompts=given.max_prompts).rows()
    texts = [row["turns"][0] for row in rows]
    model = model_of(url, given.model, given.seconds, "--model")
    asked = {
        "on": url, "off": plain_url, "off_body": plain_body, "model": model, "max_tokens": given.max_tokens,
        "tolerance": given.tolerance, "temperature": 0,
    }  # fmt: skip
    count = 0

    def tell(one: Compared) -> None:
        nonlocal count
        count += 1
        if one.verdict != "equal":
            print(f"prompt {count} of {len(texts)}: {one.verdict}, {one.why}", flush=True)

    found = compare_endpoints(
        texts,
        asking(url, model, given.max_tokens, {}, given.seconds),
        asking(plain_url, model, given.max_tokens, plain_body, given.seconds),
        given.tolerance,
        tell,
    )
    return EndpointReport(found, asked)


def _check(given: argparse.Namespace) -> None:
    """Refuse numbers that nothing can be asked with."""
    for name in ("max_prompts", "max_tokens"):
        value = getattr(given, name)
        if value < 1:
            raise EngineError(f"--{name.replace('_', '-')} is {value}; 1 or more is allowed")


def _object(text: str | None) -> dict[str, Any]:
    try:
        found = json.loads(text or "{}")
    except ValueError as error:
        raise EngineError(f"--plain-body is {text!r}, which is no JSON") from error
    if not isinstance(found, dict):
        raise EngineError(f"--plain-body is {text!r}; a JSON object is allowed")
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m specexp.verify",
        description="Compare a server's answers with speculation and without, at temperature 0.",
    )
    parser.add_argument(
        "--endpoint", required=True, metavar="URL", help="of the server, e.g. http://127.0.0.1:8000"
    )
    parser.add_argument("--plain", metavar="URL", help="of a server of the same model without speculation")
    parser.add_argument(
        "--plain-body",
        metavar="JSON",
        help="fields that switch a request's speculation off, e.g. '{\"speculative\": false}'",
    )
    parser.add_argument(
        "--model", metavar="NAME", help="in requests; the only one that the server has unless given"
    )
    parser.add_argument(
        "--prompts", metavar="FILE", help="of your own; functions of Python's library unless given"
    )
    parser.add_argument("--max-prompts", type=int, default=50, metavar="N", help="50 unless given")
    parser.add_argument(
        "--max-tokens", type=int, default=64, metavar="N", help="of an answer; 64 unless given"
    )
    parser.add_argument(
        "--tolerance", type=float, default=0.125, metavar="GAP",
        help="log-probability within which rounding may decide; 0.125, bfloat16's, unless given",
    )  # fmt: skip
    parser.add_argument(
        "--seconds", type=float, default=120, metavar="S", help="for an answer; 120 unless given"
    )
    parser.add_argument("--output", default="runs/verify", metavar="FOLDER", help="runs/verify unless given")
    return parser
