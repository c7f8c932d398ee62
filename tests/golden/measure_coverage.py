"""Measure the fast suite's line coverage and compare each package with coverage.json.

    SPECEXP_DATA=... python tests/golden/measure_coverage.py [arguments of pytest, such as -n 2]

Exits with 1 if a package is covered by more than half a point less than recorded. Lines that only run in processes that
tests start do not count. ``moved`` in coverage.json gives the package that holds the code of one that was renamed or
merged into another.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
TOLERANCE = 0.5  # points


def percent(counts: Iterable[tuple[str, float, float]]) -> dict[str, float]:
    """Percent of lines covered by package, from a package, covered lines and lines of each file."""
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for package, covered, lines in counts:
        sums[package][0] += covered
        sums[package][1] += lines
    return {package: 100 * covered / lines for package, (covered, lines) in sums.items() if lines}


def shortfalls(recorded: Mapping[str, Any], report: Mapping[str, Any]) -> list[str]:
    """One sentence for each package that is missing or covered less than recorded."""
    moved, old = recorded["moved"], recorded["packages"]
    expected = percent(
        (moved.get(p, p), one["percent"] * one["lines"] / 100, one["lines"]) for p, one in old.items()
    )
    now = percent(
        (Path(file).parts[1], one["summary"]["covered_lines"], one["summary"]["num_statements"])
        for file, one in report["files"].items()
    )
    return [
        f"coverage.json: specexp/{package} must be covered by {least:.1f} %, got {now.get(package, 0):.1f} %"
        for package, least in expected.items()
        if now.get(package, 0) < least - TOLERANCE
    ]


def main() -> int:
    """Run the suite and compare."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "coverage.json"
        cover = ["--cov=specexp", f"--cov-report=json:{report}"]
        suite = subprocess.run([sys.executable, "-m", "pytest", *cover, *sys.argv[1:]], cwd=ROOT)
        found = shortfalls(
            json.loads((Path(__file__).parent / "coverage.json").read_text()), json.loads(report.read_text())
        )
    print(*found, sep="\n")
    return suite.returncode or bool(found)


if __name__ == "__main__":
    sys.exit(main())
