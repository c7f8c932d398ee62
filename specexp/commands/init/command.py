"""``python -m specexp.init FOLDER``: an experiment for a model and prompts of one's own, ready to run."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from specexp.config.command import answered


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    given = _parser().parse_args(arguments)
    return answered(lambda: _act(given))


def _act(given: argparse.Namespace) -> int:
    from specexp.commands.init.folder import Start, from_anywhere, write_folder
    from specexp.config.layers import ConfigError
    from specexp.config.next_step import command_line
    from specexp.models.sources import PairError, check_source

    for role, source in (("target", given.target), ("draft", given.draft)):
        if source not in (None, "stdlib"):
            try:
                check_source(role, source)
            except PairError as error:
                raise ConfigError(f"--{role}: {error}") from error
    if not re.fullmatch(r"(cpu|cuda|mps|xpu|hpu|xla)(:\d+)?", given.device):  # importing torch takes seconds
        raise ConfigError(f"--device must be a torch device such as cpu or cuda:1, got {given.device!r}")
    if not 0 <= given.temperature <= 10:
        raise ConfigError(f"--temperature is {given.temperature}; allowed is 0 (greedy) to 10")
    folder = Path(given.folder)
    target, draft = (source and from_anywhere(source) for source in (given.target, given.draft))
    start = Start(target, draft, given.device, given.dtype, given.prompts, given.temperature)
    for file in write_folder(folder, start):
        print(file)
    print(f"Next: cd {shlex.quote(str(folder))} && {command_line('sweep', 'experiment.yaml', '--dry-run')}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m specexp.init",
        description="Write a folder that finds the fastest lossless decoding of a model: an experiment, the methods it "
        "searches, prompts, and what to type.",
    )
    parser.add_argument("folder", metavar="FOLDER", help="new folder")
    parser.add_argument(
        "--target",
        default="stdlib",
        help="hub id, folder or GGUF file of the model; the embedded one unless given",
    )
    parser.add_argument(
        "--draft", help="its draft model, with the same vocabulary; the target's own if it is embedded"
    )
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1, ...")
    parser.add_argument(
        "--dtype", default="bfloat16", choices=("bfloat16", "float16", "float32"), help="of the weights"
    )
    parser.add_argument(
        "--prompts",
        metavar="FILE",
        help=".jsonl, .json, .txt, .csv, .parquet, a folder or hub id; examples unless given",
    )
    parser.add_argument(
        "--temperature", type=float, default=0.0, help="of the sampling; 0, greedy, unless given"
    )
    return parser
