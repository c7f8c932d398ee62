"""Choices that cannot be built are named once, before the first trial, and never drawn."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from helpers.first_hour import FILE

from specexp.config import ConfigError, build_sweep, load_config
from specexp.config.sweep import Sweep
from specexp.sweep.dry_run import without_impossible
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


def left_of(tmp_path: Path, *refused: tuple[str, str]) -> tuple[Sweep, dict[str, str], list[Any]]:
    """The rest of the space if these drafters do not go with these builders (``*`` is any), the reasons for what was
    left out, and the lengths of chain that were tried.
    """
    path = tmp_path / "mine.yaml"
    path.write_text(FILE + SPACE)
    config = load_config(path)
    sweep = build_sweep(config)
    assert sweep is not None
    lengths = []

    def compose(overrides: Mapping[str, Any]) -> None:
        lengths.append(overrides.get("builder.init_args.length"))
        drafter, builder = (overrides[part]["class_path"] for part in ("drafter", "builder"))
        for pair in refused:
            if pair[0] in (drafter, "*") and pair[1] in (builder, "*"):
                raise ValueError(f"{pair[0]} and {pair[1]} do not go together")

    return *without_impossible(StudyConfig(config), sweep, compose), lengths


def choices_of(sweep: Sweep, key: str) -> list[str]:
    return [choice["name"] for choice in sweep.space[key].choices]  # type: ignore[union-attr]


def test_a_choice_that_goes_with_no_other_is_left_out(tmp_path: Path) -> None:
    sweep, left_out, _ = left_of(tmp_path, ("*", "DySpecGreedy"))
    assert left_out == {"builder 'grown'": "* and DySpecGreedy do not go together"}
    assert choices_of(sweep, "builder") == ["chain", "wide"]


def test_a_known_configuration_that_cannot_be_built_is_left_out(tmp_path: Path) -> None:
    sweep, left_out, _ = left_of(tmp_path, ("TokenRecycling", "Chain"))
    assert left_out["ours"] == "TokenRecycling and Chain do not go together"
    assert sweep.enqueue == []


def test_a_space_of_which_nothing_is_left_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"mine.yaml: sweep.space.drafter: no choice can be built: "):
        left_of(tmp_path, ("*", "*"))


def test_numbers_are_tried_at_both_ends(tmp_path: Path) -> None:
    *_, lengths = left_of(tmp_path, ("*", "Chain"))
    assert {1, 4} <= set(lengths)
