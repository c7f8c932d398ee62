"""What of a space cannot be built is told once, before the first trial, and is never drawn."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from helpers.fake_bench import FakeBench, opened, settings
from helpers.first_hour import FILE

from specexp.config import ConfigError, build_sweep, load_config
from specexp.sweep.rehearsal import Possible, without_impossible
from specexp.sweep.search import run_study
from specexp.sweep.study_config import StudyConfig

SPACE = """\
sweep:
  n_trials: 4
  space:
    drafter:
      type: categorical
      choices:
        - {name: recycled, class_path: TokenRecycling}
        - {name: looked up, class_path: PromptLookup}
    builder:
      type: categorical
      choices:
        - {name: chain, class_path: Chain}
        - {name: wide, class_path: ParametricTree}
        - {name: grown, class_path: DySpecGreedy}
    builder.init_args.length: {type: int, low: 1, high: 4}
  enqueue:
    - {name: ours, drafter: {class_path: TokenRecycling}, builder: {class_path: Chain}}
"""


def branches_of(tmp_path: Path, *refused: tuple[str, str]) -> tuple[Possible, list[dict[str, Any]]]:
    """What is left of the space where these drafters do not go with these builders; ``*`` is any."""
    path = tmp_path / "mine.yaml"
    path.write_text(FILE + SPACE)
    config = load_config(path)
    sweep = build_sweep(config)
    assert sweep is not None
    asked = []

    def compose(overrides: Mapping[str, Any]) -> None:
        asked.append(dict(overrides))
        drafter, builder = (overrides[part]["class_path"] for part in ("drafter", "builder"))
        for pair in refused:
            if pair[0] in (drafter, "*") and pair[1] in (builder, "*"):
                raise ValueError(f"{pair[0]} and {pair[1]} do not go together")

    return without_impossible(StudyConfig(config), sweep, compose), asked


def choices_of(possible: Possible, key: str) -> list[str]:
    return [choice["name"] for choice in possible.sweep.space[key].choices]  # type: ignore[union-attr]


def test_a_choice_that_goes_with_no_other_is_left_out_once(tmp_path: Path) -> None:
    possible, _ = branches_of(tmp_path, ("*", "DySpecGreedy"))
    assert possible.left_out == {"builder 'grown'": "* and DySpecGreedy do not go together"}
    assert choices_of(possible, "builder") == ["chain", "wide"]
    assert possible.pairs == ()


def test_a_pair_that_is_impossible_only_together_is_told_with_both_choices(tmp_path: Path) -> None:
    possible, _ = branches_of(tmp_path, ("PromptLookup", "ParametricTree"))
    assert possible.left_out == {
        "drafter 'looked up' with builder 'wide'": "PromptLookup and ParametricTree do not go together"
    }
    assert possible.pairs == ({"drafter": "looked up", "builder": "wide"},)
    assert choices_of(possible, "builder") == ["chain", "wide", "grown"]


def test_what_is_measured_first_and_cannot_be_built_is_left_out(tmp_path: Path) -> None:
    possible, _ = branches_of(tmp_path, ("TokenRecycling", "Chain"))
    assert possible.left_out["ours"] == "TokenRecycling and Chain do not go together"
    assert possible.sweep.enqueue == []


def test_a_space_of_which_nothing_is_left_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"mine.yaml: sweep.space.drafter: no choice can be built: "):
        branches_of(tmp_path, ("*", "*"))


def test_numbers_are_tried_at_both_ends(tmp_path: Path) -> None:
    _, asked = branches_of(tmp_path, ("*", "Chain"))
    lengths = {overrides.get("builder.init_args.length") for overrides in asked}
    assert lengths >= {1, 4}


def test_what_cannot_be_built_together_is_not_drawn(tmp_path: Path) -> None:
    chosen = settings(enqueue=[], n_trials=8)
    study = opened(chosen, tmp_path)
    run_study(study, chosen, FakeBench(), impossible=[{"builder": "chain"}])
    assert {trial.params["builder"] for trial in study.trials} == {"bush"}
