"""Measure the fast suite's line coverage and compare each package with coverage.json.

    SPECEXP_DATA=... python tests/golden/measure_coverage.py [arguments of pytest, such as -n 2]

Exits with 1 if a package is covered by more than half a point less than recorded. Lines that only run in processes that
tests start do not count. A package that was renamed or merged into another keeps its entry; ``moved`` in coverage.json
gives the package that holds its code now, and packages merged into one are compared together, weighted by their lines.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
TOLERANCE = 0.5  # points


def measured(report: Mapping[str, Any]) -> dict[str, float]:
    """Percent of lines covered by package, from a JSON report of coverage.py."""
    lines: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for file, entry in report["files"].items():
        package = Path(file).parts[1]  # specexp/<package>/...
        lines[package][0] += entry["summary"]["covered_lines"]
        lines[package][1] += entry["summary"]["num_statements"]
    return {package: 100 * covered / total for package, (covered, total) in lines.items() if total}


def expected(recorded: Mapping[str, Any]) -> dict[str, float]:
    """Percent recorded by present package."""
    lines: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for package, entry in recorded["packages"].items():
        present = recorded["moved"].get(package, package)
        lines[present][0] += entry["percent"] * entry["lines"]
        lines[present][1] += entry["lines"]
    return {package: covered / total for package, (covered, total) in lines.items()}


def shortfalls(recorded: Mapping[str, Any], report: Mapping[str, Any]) -> list[str]:
    """One sentence for each package that is missing or covered less than recorded."""
    now, sentences = measured(report), []
    for package, percent in expected(recorded).items():
        if package not in now:
            sentences.append(
                f"coverage.json: specexp/{package} must exist, got no line of it: name the package that holds its code "
                "under moved, or delete the entry if the code is gone"
            )
        elif now[package] < percent - TOLERANCE:
            sentences.append(
                f"coverage.json: specexp/{package} must be covered by {percent:.1f} %, got {now[package]:.1f} %"
            )
    return sentences


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
