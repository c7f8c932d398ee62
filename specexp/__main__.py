"""Entry point for all commands: ``python -m specexp COMMAND`` or ``specexp COMMAND``."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import NoReturn

from specexp.base.start import begin

COMMANDS = {
    "demo": ("specexp.commands.demo", "find the fastest tree for the embedded pair here, in a minute"),
    "sweep": ("specexp.sweep.command", "search with Optuna, confirm the best few, export an artifact"),
    "run": ("specexp.commands.run", "compare compositions with plain decoding on the same prompts"),
    "fit": ("specexp.fit.command", "learn a controller, or train draft heads"),
    "verify": ("specexp.commands.verify", "test whether a composition, an engine or an endpoint is lossless"),
    "profile": ("specexp.profile.command", "measure what a step costs on this device"),
    "record": ("specexp.replay.record.command", "record the outputs of target and draft for replay"),
    "what_if": ("specexp.replay.advice.what_if", "find the best tree on many devices from one recording"),
    "why": ("specexp.servers.why", "show where speculation, or a server's, loses time and what would help"),
    "results": ("specexp.commands.results", "join tables of several machines into one page"),
    "export": ("specexp.deploy.export.command", "write an artifact in an engine's format"),
    "serve": ("specexp.deploy.server.command", "serve an artifact behind an OpenAI-compatible API"),
    "init": ("specexp.commands.init", "write a study for your own model and prompts"),
    "doctor": ("specexp.commands.doctor", "show what this machine can do"),
    "dashboard": ("specexp.commands.dashboard", "save a W&B workspace for an experiment"),
}
"""Module and description of each command, in the order in which ``--help`` lists them."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    name, *rest = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if name in COMMANDS:
        code: int = import_module(COMMANDS[name][0]).main(rest)
        return code
    if name in ("-h", "--help"):
        print("usage: specexp COMMAND ...; --help after a command explains it.\n")
        print(*(f"  {command:<10} {does}" for command, (_, does) in COMMANDS.items()), sep="\n")
        print("\nNext: specexp demo")
        return 0
    near = get_close_matches(name, COMMANDS, 1)
    hint = f"; did you mean {near[0]!r}?" if near else f"; commands are {', '.join(COMMANDS)}"
    print(f"error: there is no command {name!r}{hint}", file=sys.stderr)
    return 2


def start(*command: str) -> NoReturn:
    """Set up signal handling, run a command, and exit the process with the command's exit code."""
    begin()
    try:
        sys.exit(main([*command, *sys.argv[1:]]))
    except ModuleNotFoundError as error:
        from importlib.metadata import requires

        package = (error.name or "").partition(".")[0]
        if package not in {re.split(r"[^\w-]", one)[0] for one in requires("specexp") or ()}:
            raise
        print(
            f"error: {sys.executable} has no {package}, which specexp needs: use the Python of specexp's own "
            "environment, or install specexp there with its dependencies",
            file=sys.stderr,
        )
        sys.exit(2)


def script() -> NoReturn:
    """Run the ``specexp`` script. As with ``python -m``, modules can be imported from the current folder."""
    sys.path.insert(0, "")
    start()


if __name__ == "__main__":
    start()
