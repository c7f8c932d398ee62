"""Every YAML that is shipped is read against the real signatures."""

from pathlib import Path

import pytest

from specexp.config import arms_of, build_workload, load_config

ROOT = Path(__file__).parents[2]
TRAINING = {"stdlib_target.yaml", "stdlib_draft.yaml"}  # configurations of specexp.fit: tests/training
BLOCKS = sorted(path for path in ROOT.glob("configs/*/*.yaml") if path.name not in TRAINING)
COMPANION = {"drafter": "configs/builder/chain.yaml", "builder": "configs/drafter/token_recycling.yaml"}
NEEDED = {"builder/graft": "configs/drafter/phrase_cache.yaml"}


@pytest.mark.parametrize("path", BLOCKS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_building_block(path: Path, tmp_path: Path):
    companion = NEEDED.get(f"{path.parent.name}/{path.stem}", COMPANION.get(path.parent.name))
    blocks = [str(path)] + ([str(ROOT / companion)] if companion else [])
    whole = tmp_path / "whole.yaml"
    whole.write_text(f"compose: {blocks}")
    build_workload(load_config(whole))


@pytest.mark.parametrize("path", sorted(ROOT.glob("experiments/*.yaml")), ids=lambda path: path.stem)
def test_experiment(path: Path):
    config = load_config(path)
    assert config.get("question")
    assert arms_of(config)
