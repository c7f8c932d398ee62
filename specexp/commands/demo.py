"""``specexp demo``: the main job in about half a minute, without a clone: an answer for the embedded pair here."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from specexp.config.command import HELP, say

USAGE = """usage: specexp demo [--key value ...]

Searches a small number of draft trees for Token Recycling on the embedded pair, measures the best few again on other
prompts and prints the fastest, with its speedup over plain decoding on this machine. It needs no files and no network.
It writes runs/demo and artifacts/demo in the current folder, and takes the options of specexp sweep."""
_SMALL = {
    "name": "demo",
    "n-trials": 8,
    "data.max_prompts": 8,
    "sweep.confirm.data.max_prompts": 12,
    "sweep.count_acceptances.data.max_prompts": 6,
    "generation.threads": min(2, os.cpu_count() or 1),
    "tracking.mode": "disabled",
}


def experiment() -> Path:
    """Return the file of the main job; a wheel has it and the files that it composes next to this module."""
    below = Path("experiments", "demo.yaml")
    return next(one for folder in Path(__file__).parents if (one := folder / below).exists())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    from specexp.sweep.command import main as sweep

    typed = list(sys.argv[1:] if arguments is None else arguments)
    if not HELP.isdisjoint(typed):
        return say(USAGE)
    known = {one.removeprefix("--").partition("=")[0] for one in typed}
    small = [f"--{key}={value}" for key, value in _SMALL.items() if key not in known]
    return sweep([str(experiment()), *small, *typed])
