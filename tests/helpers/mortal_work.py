"""Workers that wait to be killed, and tell how often they began."""

from __future__ import annotations

import sys
from pathlib import Path

from helpers.waiting import wait_for
from specexp.cluster.fleet import Fleet, Work

PROGRAM = """
import os, sys, time
from pathlib import Path
folder, number, lives = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
begun = folder / f"{number}.begun"
with begun.open("a") as file:
    file.write(f"{os.getpid()} {os.environ['PGPASSWORD']} {os.nice(0)}\\n")
if len(begun.read_text().splitlines()) < lives:
    time.sleep(600)
(folder / f"{number}.ended").touch()
"""


def work(folder: Path, number: int, lives: int = 1) -> Work:
    """One that waits to be killed in all its lives but the last."""
    return Work(
        f"{folder.name} {number}", (sys.executable, "-c", PROGRAM, str(folder), str(number), str(lives))
    )


def begun(folder: Path, number: int) -> list[int]:
    path = folder / f"{number}.begun"
    return [int(line.split()[0]) for line in path.read_text().splitlines()] if path.exists() else []


def ended(fleet: Fleet) -> list[str]:
    wait_for(lambda: all(one.state in ("ended", "failed") for one in fleet.statuses()))
    return [one.state for one in fleet.statuses()]
