"""The suite catches planted faults: each is one line of a copy of the package."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
import yaml

pytestmark = pytest.mark.unit

TESTS = Path(__file__).parents[1]
PACKAGE = TESTS.parent / "specexp"


@dataclass(frozen=True)
class Mutant:
    fault: str
    file: str
    was: str
    now: str
    tests: tuple[str, ...]

    def places(self, package: Path) -> list[tuple[Path, int, int]]:
        """Each file, start and end of the text to replace, however it is wrapped."""
        wanted = _squeezed(self.was)
        pattern = re.compile(r"(?<!\w)" + r"\s*".join(map(re.escape, wanted)) + r"(?!\w)")
        return [
            (file, *match.span())
            for file, text, squeezed in _sources(package)
            if wanted in squeezed
            for match in pattern.finditer(text)
        ]


def _squeezed(text: str) -> str:
    return "".join(text.split())


@cache
def _sources(package: Path) -> list[tuple[Path, str, str]]:
    texts = (
        (file, file.read_text(encoding="utf-8"))
        for file in sorted((*package.rglob("*.py"), *package.rglob("*.cpp"), *package.rglob("*.h")))
    )
    return [(file, text, _squeezed(text)) for file, text in texts]


MUTANTS = [
    Mutant(**{**entry, "tests": tuple(entry["tests"])})
    for entry in yaml.safe_load((Path(__file__).parent / "mutants.yaml").read_text(encoding="utf-8"))
]
each_mutant = pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.fault)


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package to plant faults in."""
    folder = tmp_path_factory.mktemp("mutated")
    (folder / "experiments").symlink_to(TESTS.parent / "experiments")
    return Path(shutil.copytree(PACKAGE, folder / "specexp"))


def run(package: Path, tests: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    """Run these test files on a copy of the package, up to the first failure."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    environment |= {"PYTHONPATH": str(package.parent), "PYTHONDONTWRITEBYTECODE": "1"}
    # -P and pythonpath: the working directory holds the package without the fault
    command = [sys.executable, "-P", "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider"]
    command += ["-o", f"pythonpath={TESTS}"]
    files = [str(TESTS / test) for test in tests]
    return subprocess.run(
        [*command, "--timeout", "120", *files], env=environment, cwd=TESTS.parent, capture_output=True, text=True
    )


@cache
def passes(package: Path, test: str) -> bool:
    """Whether a test file passes without a fault."""
    return run(package, (test,)).returncode == 0


def test_every_mutant_can_be_planted() -> None:
    assert len(MUTANTS) >= 30
    wrong = []
    for mutant in MUTANTS:
        if (count := len(mutant.places(PACKAGE))) != 1:
            wrong.append(
                f"mutants.yaml: the text of {mutant.fault!r} must be in one place of specexp/, got {count}: plant the "
                f"same fault in the code that replaced specexp/{mutant.file}"
            )
        wrong += [
            f"mutants.yaml: tests of {mutant.fault!r} must be files in tests/, got {test}: name the file that catches "
            "the fault now"
            for test in mutant.tests
            if not (TESTS / test).is_file()
        ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
@pytest.mark.timeout(900)
@each_mutant
def test_the_suite_catches_a_mutant(mutant: Mutant, package: Path) -> None:
    for test in mutant.tests:
        assert passes(package, test), f"tests/{test} must pass before a fault is planted"
    [(file, start, end)] = mutant.places(package)
    text = file.read_text(encoding="utf-8")
    file.write_text(text[:start] + mutant.now + text[end:], encoding="utf-8")
    try:
        result = run(package, mutant.tests)
    finally:
        file.write_text(text, encoding="utf-8")
    assert result.returncode == 1, f"the tests must fail (code 1), got {result.returncode}\n{result.stdout[-3000:]}"
