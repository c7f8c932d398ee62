"""A command at a paper's own size has the paper's values: those of ``published.yaml``, key by key."""

from pathlib import Path
from typing import Any

import pytest

from specexp.config.layers import read_layers

ROOT = Path(__file__).parents[3]
EXPERIMENTS = ROOT / "experiments/papers"
ABLATION = "post_use_pre_cut/ablation.yaml"
COMMANDS = [str(path.relative_to(EXPERIMENTS)) for path in sorted(EXPERIMENTS.glob("*/paper*.yaml"))]
PARTIAL = ("tasks", "grid")
"""Keys of which a command may have a part of the published values."""
OTHERWISE: dict[str, dict[str, Any]] = {
    ABLATION: {"arms.ours_published.title": "+ controller", "arms.algorithm_1": None},
    # Table 4 has another threshold and cap (appendix B.1), and no greedy trees
    "dyspec/paper_offloaded_768.yaml": {
        "arms.dyspec_published": None,
        "arms.dyspec_threshold_published.title": "DySpec, threshold 0.001, at most 768 nodes",
        "arms.dyspec_threshold_published.builder.init_args.threshold": 0.001,
        "arms.dyspec_threshold_published.builder.init_args.max_nodes": 768,
    },
}
"""Values of a command's table that differ from the rest of its paper."""


def _leaves(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values by dotted key. Lists stay whole."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        found |= _leaves(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return found


def _differences(path: str, overrides: tuple[str, ...] = ()) -> list[str]:
    paper, own = path.partition("/")[0], OTHERWISE.get(path, {})
    found = _leaves(read_layers(EXPERIMENTS / path, overrides).values)
    wrong = []
    for key, value in _leaves(read_layers(ROOT / "configs" / paper / "published.yaml").values).items():
        place = next((one for one in own if f"{key}.".startswith(f"{one}.")), key)
        expected, has = own.get(place, value), found.get(place)
        partial = bool(has) and set(PARTIAL) & set(key.split(".")) and all(one in value for one in has or ())
        if has != expected and not partial and not key.startswith("arms.token_recycling_ours."):
            wrong.append(f"{place} is {has!r}, published {expected!r}")
    return wrong


@pytest.mark.parametrize("path", [*COMMANDS, ABLATION])
def test_a_command_at_the_papers_own_size_has_every_published_value(path):
    assert _differences(path) == []


@pytest.mark.parametrize(
    ("path", "override", "key"),
    [
        ("dyspec/paper.yaml", "--data.too_long=keep-last", "data.too_long"),
        ("dyspec/paper_offloaded_768.yaml", "--arms.dyspec_threshold_published.builder.init_args.threshold=0.01", ""),
        ("seed/paper.yaml", "--arms.seed_published.grid=null", "arms.seed_published.grid"),
        ("seed/paper_suite.yaml", "--verifier=KeyedSampling", "verifier.class_path"),
        (ABLATION, "--arms.ours_published.drafter.init_args.shortest_match=0", "arms.ours_published.drafter"),
    ],
)  # fmt: skip
def test_another_value_than_the_published_one_is_found(path, override, key):
    assert any(one.startswith(key) for one in _differences(path, (override,)))


def test_every_level_of_the_ablation_reuses_phrases_as_published():
    levels = read_layers(EXPERIMENTS / ABLATION).values
    preset = levels["arms"]["ours_published"]
    assert levels["drafter"] == preset["drafter"]
    assert levels["builder"] == preset["builder"]
    assert not any(key in levels["arms"]["reuse_at_target"] for key in ("drafter", "builder", "preload"))
    assert "drafter" not in levels["arms"]["reuse_at_draft"]
