"""Workers that wait to be killed, and the process that starts them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import os, sys, time
from pathlib import Path
folder, number, lives = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
begun = folder / f"{number}.begun"
with begun.open("a") as file:
    known = os.environ.get("PGPASSWORD"), os.nice(0), os.environ.get("CUDA_VISIBLE_DEVICES") or None
    print(os.getpid(), *known, file=file)
if len(begun.read_text().splitlines()) < lives:
    time.sleep(600)
(folder / f"{number}.ended").touch()
"""

STARTER = """
import json, signal, sys
from pathlib import Path
from specexp.cluster.launch import run_workers
from specexp.cluster.options import ClusterOptions
from specexp.config.command import answered
from specexp.core.start import begin
signal.signal(signal.SIGINT, signal.default_int_handler)  # a test run in the background ignores it
begin()
folder, options, commands, gpus, threads = json.loads(sys.argv[1])
act = lambda: run_workers(ClusterOptions(**options), commands, Path(folder), gpus, threads)
sys.exit(answered(act))
"""


def work(folder: Path, number: int, lives: int = 1) -> list[str]:
    """The command of a worker that waits to be killed in all its lives but the last."""
    return [sys.executable, "-c", PROGRAM, str(folder), str(number), str(lives)]


def start(
    folder: Path, on: str, *commands: list[str], gpus: int = 0, threads: int = 1, **slurm: str | int
) -> subprocess.Popen[str]:
    """A process that starts workers ``w 0``, ``w 1``, ... and waits for them."""
    named = {f"w {number}": command for number, command in enumerate(commands)}
    given = json.dumps((str(folder / "logs"), {"on": on, "slurm": slurm}, named, gpus, threads))
    return subprocess.Popen(
        (sys.executable, "-c", STARTER, given),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
    )


def begun(folder: Path, number: int) -> list[list[str]]:
    """Process, password, niceness and GPUs of each life of a worker."""
    path = folder / f"{number}.begun"
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def processes(folder: Path, *numbers: int) -> list[int]:
    """The latest process of each worker, once all have begun."""
    lives = [begun(folder, number) for number in numbers]
    return [int(one[-1][0]) for one in lives] if all(lives) else []
