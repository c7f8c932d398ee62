"""``specexp demo``: runs a search without a checkout, either on the embedded pair (half a minute) or on SmolLM2."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from specexp.base.cores import usable_cores
from specexp.base.messages import did_you_mean
from specexp.commands.init import shipped
from specexp.config.command import HELP, fail, say

USAGE = """usage: specexp demo [smollm2] [--key value ...]

Searches a small number of draft trees for Token Recycling on the embedded pair, measures the best few again on other
prompts and prints the fastest, with its speedup over plain decoding on this machine. It needs no files and no network.
It writes runs/demo and artifacts/demo in the current folder, and takes the options of specexp sweep.

With smollm2 it runs experiments/tree_shape.yaml: the search for SmolLM2-135M-Instruct, which is fetched once (93 MB).
That takes about four minutes on two cores and writes runs/tree_shape and artifacts/tree_shape."""
_SMALL = {
    "name": "demo",
    "n-trials": 8,
    "data.max_prompts": 8,
    "sweep.confirm.data.max_prompts": 12,
    "sweep.count_acceptances.data.max_prompts": 6,
    "generation.threads": min(2, usable_cores().number),
    "tracking.mode": "disabled",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    from specexp.sweep.command import main as sweep

    typed = list(sys.argv[1:] if arguments is None else arguments)
    if not HELP.isdisjoint(typed):
        return say(USAGE)
    if typed[:1] == ["smollm2"]:
        return sweep([str(shipped("experiments/tree_shape.yaml")), *typed[1:]])
    if typed and (not typed[0].startswith("-") or typed[0] == "--smollm2"):
        return fail(f"demo takes smollm2 or options, got {typed[0]!r}{did_you_mean(typed[0], ['smollm2'])}")
    known = {one.removeprefix("--").partition("=")[0] for one in typed}
    small = [f"--{key}={value}" for key, value in _SMALL.items() if key not in known]
    return sweep([str(shipped("experiments/demo.yaml")), *small, *typed])
