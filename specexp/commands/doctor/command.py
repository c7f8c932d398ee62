"""``python -m specexp.doctor``: what this machine can do, what would be slow, and what to do about it."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict

from specexp.commands.doctor.diagnosis import Diagnosis


def checks() -> list[Callable[[], Iterator[Diagnosis]]]:
    """All that is looked at, in the order it is told."""
    from specexp.commands.doctor import machine, passes, software

    return [
        software.packages,
        software.extras,
        machine.processor,
        machine.memory,
        machine.devices,
        passes.compiled,
        software.tracking,
        software.caches,
    ]


def examine() -> Iterator[Diagnosis]:
    """Every diagnosis; after a package that is missing nothing that would import it is tried."""
    for check in checks():
        problem = False
        for diagnosis in check():
            problem |= diagnosis.verdict == "problem" and diagnosis.topic != "disk"
            yield diagnosis
        if problem:
            return


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code: 0, or 1 where something keeps specexp from working."""
    parser = argparse.ArgumentParser(
        prog="python -m specexp.doctor",
        description="Say what this machine can do for specexp, what would be slow on it, and what to do about it. "
        "Nothing is sent anywhere; paste it into a report of a bug.",
    )
    parser.add_argument("--json", action="store_true", help="a line of JSON for each")
    given = parser.parse_args(arguments)
    worst = 0
    for diagnosis in examine():
        worst |= diagnosis.verdict == "problem"
        if given.json:
            print(json.dumps(asdict(diagnosis)), flush=True)
            continue
        mark = {"ok": "  ", "note": "- ", "problem": "! "}[diagnosis.verdict]
        print(f"{mark}{diagnosis.topic}: {diagnosis.said}", flush=True)
        if diagnosis.advice:
            print(f"    {diagnosis.advice}", flush=True)
    if not given.json:
        print("Next: mend what is marked !" if worst else "Next: python -m specexp.init my-study --help")
    return worst
