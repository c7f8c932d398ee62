"""Options of the commands that watch a server, and how such a command runs."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from math import inf
from typing import Any

from specexp.base.messages import first_line, option_message
from specexp.config.command import SHOWING, Options, collected_result, fail
from specexp.engines.engine import EngineError
from specexp.engines.openai_client import KEY, wrong_address

ENDPOINT = "--endpoint"


def watches_server(arguments: Sequence[str]) -> bool:
    """Return whether a command's arguments name a server with ``--endpoint``."""
    return any(one.partition("=")[0] == ENDPOINT for one in arguments)


def run_endpoint_command(
    parser: argparse.ArgumentParser, arguments: Sequence[str], act: Callable[[argparse.Namespace], int]
) -> int:
    """Parse the options, call ``act`` and print its result or error. Return the exit code, 2 after an error."""
    with collected_result(arguments) as result:
        output = ""
        try:
            given, rest = parser.parse_known_args([one for one in arguments if one not in SHOWING])
            if rest and not rest[0].startswith("-"):
                raise ValueError(f"{ENDPOINT} takes no configuration file, got {rest[0]}: leave one of them out")
            if rest:
                parser.error(f"unrecognized arguments: {' '.join(rest)}")
            output = given.output
            result.exit_code = act(given)
        except (EngineError, ValueError, argparse.ArgumentError) as error:
            result.exit_code = fail(option_message(first_line(error)))
        except OSError as error:
            result.exit_code = fail(f"--output: {output} cannot be written ({error.strerror or error})")
    return result.exit_code


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
    if why := wrong_address(text):
        raise argparse.ArgumentTypeError(why)
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
