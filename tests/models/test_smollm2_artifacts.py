"""The artifacts shipped for SmolLM2 load by name, and their card has the figures of their manifests."""

import pytest

import specexp
from specexp.models.sources import PAIRS

FOLDER = PAIRS / "smollm2"
CARD = (FOLDER / "ARTIFACTS.md").read_text()
NAMES = sorted(path.parent.name for path in FOLDER.glob("*/artifact.json"))


@pytest.mark.parametrize("name", NAMES)
def test_the_card_has_the_command_commit_and_speedup_of_the_manifest(name):
    artifact = specexp.load_artifact(f"smollm2:{name}")
    row = next(line for line in CARD.splitlines() if line.startswith(f"| `smollm2:{name}`"))
    # the second name is that of older artifacts
    found = artifact.metrics.get("speedup_over_plain") or artifact.metrics["speedup_over_engine"]
    for stated in (artifact.provenance["command"], artifact.provenance["git_commit"][:8]):
        assert f"`{stated}`" in row
    assert f"{found['value']:.2f}x [{found['low']:.2f}, {found['high']:.2f}]" in row


def test_the_tree_has_the_nodes_that_the_card_states():
    nodes = specexp.load_artifact("smollm2:tree").builder.max_nodes
    assert f"`smollm2:tree`, static tree of {nodes} nodes" in CARD


def test_the_table_decides_before_the_first_draft():
    controller = specexp.load_artifact("smollm2:q_table").controller
    assert controller.first_decision == "before"


def test_another_model_is_refused():
    with pytest.raises(ValueError, match="belongs to another"):
        specexp.load_artifact("smollm2:tree").decoder(specexp.load_pair("stdlib").target)
