"""The site: every page is a click from the first one, and the reference has every name that a file or command takes."""

import re
import sys
from pathlib import Path

import pytest

from specexp.artifacts import kinds
from specexp.artifacts.plugins import names_in
from specexp.bench.metrics import METRICS
from specexp.config.explain import contracts
from specexp.config.families import parts_of
from specexp.config.schema import Experiment
from specexp.core.annotations import arguments_of
from specexp.export import formats

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("reference")
    sys.path.insert(0, str(DOCS))
    try:
        from reference import write_reference  # type: ignore[import-not-found]
    finally:
        sys.path.remove(str(DOCS))
    write_reference(folder)
    return {page.stem: page.read_text() for page in folder.glob("*.md")}


def test_the_first_page_leads_to_every_other() -> None:
    listed = set(re.findall(r"^([\w/]+)$", (DOCS / "index.md").read_text(), re.MULTILINE))
    pages = {page.stem for page in DOCS.glob("*.md")} - {"index"}
    assert pages <= listed
    assert listed - pages == {"reference/index"}


def test_every_link_of_the_readme_is_there() -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", (ROOT / "README.md").read_text())
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_the_readme_is_one_page() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


def test_every_part_is_told_with_its_arguments(reference: dict[str, str]) -> None:
    told = "\n".join(reference.values())
    for contract in contracts():
        for name, source in parts_of(contract).items():
            assert f"\n## {name}\n\n`{source.module}.{name}`" in told, f"{name} is missing"


def test_every_key_metric_kind_format_and_command_is_told(reference: dict[str, str]) -> None:
    assert all(f"| `{key}` |" in reference["keys"] for key in arguments_of(Experiment) or ())
    assert all(f"| {metric.name} |" in reference["metrics"] for metric in METRICS)
    assert all(f"\n## {kind}\n" in reference["artifacts"] for kind in names_in(kinds))
    assert all(f"\n## {name}\n" in reference["formats"] for name in names_in(formats))
    commands = [file.parent.name for file in (ROOT / "specexp").glob("*/__main__.py")]
    assert all(f"\n## specexp.{command}\n" in reference["commands"] for command in commands)
    assert set(re.findall(r"^([\w-]+)$", reference["index"], re.MULTILINE)) == reference.keys() - {"index"}
