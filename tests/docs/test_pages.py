"""All pages are linked from the first, and the reference has all names of files and commands."""

import re
import sys
from pathlib import Path

import pytest

import specexp
from specexp.__main__ import COMMANDS
from specexp.artifacts import all_kinds
from specexp.base.checked import arguments_of
from specexp.bench.metrics import METRICS
from specexp.config.check import parts_of
from specexp.config.explain import contracts
from specexp.config.schema import Experiment
from specexp.deploy.export.export_format import all_formats

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reference")
    sys.path.insert(0, str(DOCS))
    try:
        from reference import write_reference  # type: ignore[import-not-found]
    finally:
        sys.path.remove(str(DOCS))
    write_reference(folder)
    return {page.stem: page.read_text() for page in folder.glob("*.md")}


def test_the_first_page_leads_to_every_other():
    listed = set(re.findall(r"^([\w/]+)$", (DOCS / "index.md").read_text(), re.MULTILINE))
    pages = {page.stem for page in DOCS.glob("*.md")} - {"index"}
    assert pages <= listed
    assert listed - pages == {"reference/index"}


@pytest.mark.parametrize("page", [ROOT / "README.md", *sorted(DOCS.glob("*.md"))], ids=lambda page: page.stem)
def test_every_link_of_a_page_is_there(page):
    without_code = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    links = re.findall(r"\]\(([^)#:]+)[^):]*\)", without_code)
    missing = [link for link in links if not (page.parent / link).exists()]
    assert [link for link in missing if not link.startswith("reference/")] == []


def test_every_picture_is_small_and_shown():
    pages = "".join(page.read_text() for page in DOCS.glob("*.md"))
    pictures = list((DOCS / "pictures").iterdir())
    assert pictures
    for picture in pictures:
        assert picture.stat().st_size <= 120_000, f"{picture.name} is too large"
        assert f"pictures/{picture.name}" in pages, f"{picture.name} is shown nowhere"


def test_every_public_name_is_in_the_reference(reference):
    contracts_of_tests = {
        name
        for file in (ROOT / "specexp" / "testing").glob("*.py")
        for name in re.findall(r"^class (\w+Contract)\b", file.read_text(), re.MULTILINE)
    }
    for name in {*specexp.__all__, *contracts_of_tests, "custom_generate"}:
        assert f"\n## {name}\n" in reference["python"], f"{name} is missing"


def test_the_readme_is_read_in_three_minutes():
    text = (ROOT / "README.md").read_text()
    assert len(text.split()) <= 800
    assert len(text.splitlines()) <= 125
    assert max(len(line) for line in text.splitlines() if not line.startswith("|")) <= 120  # rows cannot be wrapped


PAGES = sorted({*DOCS.glob("*.md")} - {DOCS / f"{name}.md" for name in ("changelog", "results", "reproduction")})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_is_short_and_opens_with_a_command_or_code(page):
    lines = page.read_text().splitlines()
    assert len(lines) <= 250
    assert any(line.startswith("```") for line in lines[:8])


def test_every_part_is_in_the_reference(reference):
    text = "\n".join(reference.values())
    parts = [part for contract in contracts() for part in parts_of(contract).items()]
    assert len(parts) > 50
    for name, source in parts:
        assert f"\n## {name}\n\n`{source.__module__}.{name}`" in text, f"{name} is missing"


def test_every_key_metric_kind_format_and_command_is_in_the_reference(reference):
    assert all(reference[page].count("\n## ") > 5 for page in ("artifacts", "formats", "commands"))
    assert all(f"| `{key}` |" in reference["keys"] for key in arguments_of(Experiment) or ())
    assert all(f"| {metric.name} |" in reference["metrics"] for metric in METRICS)
    assert all(f"\n## {kind}\n" in reference["artifacts"] for kind in all_kinds())
    assert all(f"\n## {name}\n" in reference["formats"] for name in all_formats())
    assert all(f"\n## specexp.{command}\n" in reference["commands"] for command in COMMANDS)
    assert set(re.findall(r"^([\w-]+)$", reference["index"], re.MULTILINE)) == reference.keys() - {"index"}
