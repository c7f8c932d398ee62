"""Composing, overriding and building configurations."""

import json
from pathlib import Path

import pytest

from specexp.builders import Chain, ParametricTree
from specexp.config import (
    Config,
    ConfigError,
    arms_of,
    build_parts,
    load_config,
)
from specexp.config.load import with_prompts_of
from specexp.drafters import TokenRecycling, Union


def test_later_wins_and_mappings_merge(write):
    write("generation: {seed: 1, samples: 2}\nname: block", "a/block.yaml")
    write("compose: block.yaml\nverifier: KeyedSampling\ngeneration: {seed: 3}", "a/outer.yaml")
    config = load_config(write("compose: [a/outer.yaml]\ngeneration: {samples: 4}"), ["--generation.threads=2"])
    assert config.get("generation") == {
        "max_new_tokens": 128, "seed": 3, "samples": 4, "stop_at_eos": True,
        "stop_at_repetition": True, "threads": 2}  # fmt: skip
    assert config.get("name") == "block"


def test_another_class_replaces_the_same_class_merges(composition):
    merged = composition.with_overrides({"builder": {"class_path": "ParametricTree", "init_args": {"depth": 3}}})
    assert merged.get("builder.init_args.nodes") == 16
    assert merged.get("builder.init_args.depth") == 3
    spelled_out = {"class_path": "specexp.builders.ParametricTree", "init_args": {"depth": 3}}
    assert composition.with_overrides({"builder": spelled_out}).get("builder.init_args.nodes") == 16
    chain = composition.with_overrides({"builder.class_path": "Chain"})
    assert chain.get("builder") == {"class_path": "Chain", "init_args": {"length": 4, "candidates": "top-k"}}
    assert composition.get("builder.class_path") == "ParametricTree"


def test_whole_parts_are_applied_before_the_keys_inside(composition):
    chain = {"name": "chain", "class_path": "Chain"}
    chosen = composition.with_overrides({"builder.init_args.length": 6, "builder": chain})
    assert chosen.get("builder") == {"class_path": "Chain", "init_args": {"length": 6, "candidates": "top-k"}}


def test_command_line_values_are_yaml(write):
    arguments = ["--drafter", "TokenRecycling", "--drafter.init_args.k=4", "--builder=Chain"]
    arguments += ["--builder.init_args", "{length: 2}", "--data.max_prompts", "3"]
    arguments += ["--verifier={class_path: KeyedSampling, init_args: {temperature: 1e-1}}"]
    config = load_config(write("{}"), arguments)
    parts = build_parts(config)
    assert isinstance(parts.drafter, TokenRecycling)
    assert parts.drafter.k == 4
    assert isinstance(parts.builder, Chain)
    assert parts.builder.max_nodes == 2
    assert parts.verifier.temperature == 0.1
    assert config.workload.max_prompts == 3


def test_keys_reach_inside_lists(write):
    text = (
        "drafter: {class_path: Union, init_args: {drafters: [PromptLookup, {class_path: TokenRecycling}]}}\n"
        "builder: {class_path: ParametricTree, init_args: {nodes: 4}}"
    )
    config = load_config(write(text), ["--drafter.init_args.drafters.1.init_args.k", "3"])
    drafter = build_parts(config).drafter
    assert isinstance(drafter, Union)
    assert drafter.inner[1].max_candidates == 3
    assert config.get("drafter.init_args.drafters.0.init_args.max_ngram") == 3


def test_a_grid_becomes_an_arm_for_each_combination(write):
    text = (
        "drafter: TokenRecycling\nbuilder: {class_path: ParametricTree, init_args: {nodes: 16}}\n"
        "arms:\n  same: {title: As it is}\n  plain: {drafter: null, builder: null}\n"
        "  chain: {builder: Chain}\n"
        "  sizes: {grid: {builder.init_args.nodes: [4, 8]}}\n"
        "  hf: {reference: hf-assisted, num_assistant_tokens: 6}\n"
    )
    arms = {arm.name: arm for arm in arms_of(load_config(write(text)))}
    assert list(arms) == ["same", "plain", "chain", "sizes[nodes=4]", "sizes[nodes=8]", "hf"]
    assert arms["same"].title == "As it is"
    assert arms["plain"].config.get("builder") is None
    assert isinstance(build_parts(arms["chain"].config).builder, Chain)
    assert build_parts(arms["sizes[nodes=8]"].config).builder.max_nodes == 8
    assert (arms["hf"].reference, arms["hf"].arguments) == ("hf-assisted", {"num_assistant_tokens": 6})


@pytest.mark.parametrize(("arms", "names"), [("{other: null}", ["one"]), ("{new: null}", ["one", "other", "new"])])
def test_null_removes_an_arm_of_a_lower_file_and_a_new_arm_is_the_composition_itself(write, arms, names):
    below = "drafter: TokenRecycling\nbuilder: Chain\narms: {one: {}, other: {reference: hf-assisted}}\n"
    write(below, "below.yaml")
    assert [arm.name for arm in arms_of(load_config(write(f"compose: below.yaml\narms: {arms}")))] == names


def test_space_over_whole_parts(write):
    text = (
        "drafter: TokenRecycling\n"
        "sweep:\n  count_acceptances: {builder: {class_path: ParametricTree, init_args: {nodes: 60}}}\n"
        "  enqueue: [{name: chain, builder: Chain}, {name: fitted, builder: {class_path: FittedTree}}]\n"
        "  space:\n    builder.init_args.nodes: {type: int, low: 4, high: 64, log: true}\n"
        "    builder.init_args.rank_decay: {type: float, low: 0.5, high: 3}\n"
        "    builder: {type: categorical, choices: [{name: fitted, class_path: FittedTree}, "
        "{name: parametric, class_path: ParametricTree}]}\n"
    )
    config = load_config(write(text), ["--sweep.space.builder.init_args.nodes.high", "32", "--sweep.n_trials=3"])
    nodes = {"type": "int", "low": 4, "high": 32, "log": True, "step": None, "at_most": None}
    assert config.get("sweep.space.builder.init_args.nodes") == nodes
    assert config.get("sweep.n_trials") == 3


def test_resolved_configuration_is_the_same_configuration(write, tmp_path):
    text = (
        "drafter: TokenRecycling\nbuilder: ParametricTree\n"
        "arms: {chain: {builder: Chain}, plain: {drafter: null, builder: null}}\n"
        "sweep: {space: {builder.init_args.nodes: {type: int, low: 4, high: 64}}}"
    )
    config = load_config(write(text), ["--generation.seed", "5"])
    config.save(tmp_path / "run", command=["specexp.run"])
    found = json.loads((tmp_path / "run" / "environment.json").read_text())
    assert found["command"] == ["specexp.run"]
    assert {"torch", "transformers", "specexp"} <= set(found["packages"])
    assert {"git_commit", "git_dirty", "python", "platform", "device_name", "threads", "time"} <= set(found)
    again = load_config(tmp_path / "run" / "config.yaml")
    assert again.to_dict() == config.to_dict()
    assert isinstance(build_parts(again).builder, ParametricTree)


@pytest.mark.parametrize("count", [40, 60])
def test_the_confirmation_takes_the_last_prompts_of_a_set_that_is_too_small_for_all_stages(tmp_path, count):
    mine = tmp_path / "mine.txt"
    mine.write_text("".join(f"text {number}\n" for number in range(count)))
    file = Path(__file__).parents[2] / "experiments/tree_shape.yaml"
    config = load_config(file, [f"--data.prompts={mine}", "--data.max_prompts=15"])
    taken = {
        stage: [row["index"] for row in with_prompts_of(config, stage).workload.rows()]
        for stage in (None, "count_acceptances", "confirm")
    }
    assert taken == {
        None: [*range(15)], "count_acceptances": [*range(15, 25)], "confirm": [*range(25, min(60, count))],
    }  # fmt: skip


def test_a_file_composed_on_the_command_line_lies_on_top_of_the_file(write, monkeypatch, tmp_path):
    write("latency: {name: slow, target_ms: {1: 100, 64: 110}}\ngeneration: {seed: 4}", "latency.yaml")
    monkeypatch.chdir(tmp_path)
    file = write("generation: {seed: 3}")
    config = load_config(file, ["--compose", "latency.yaml", "--latency.target_ms.64", "120"])
    assert config.get("generation.seed") == 4
    assert config.get("latency.target_ms") == {1: 100, 64: 120}
    assert load_config(file, ["--compose=latency.yaml", "--generation.seed=5"]).get("generation.seed") == 5
    with pytest.raises(ConfigError, match=r"command line: compose: none\.yaml does not exist"):
        load_config(file, ["--compose", "none.yaml"])
    with pytest.raises(ConfigError, match="command line: --compose must be a list of file names, got 3"):
        load_config(file, ["--compose", "3"])


@pytest.mark.parametrize(
    "overrides",
    [
        {"builder.init_args.nodes": 7},
        {"builder": {"class_path": "Chain"}, "drafter.init_args.k": 4},
        {"generation": {"seed": 3}, "pair.target_dtype": "float32", "data": {"max_prompts": 2}},
        {"arms.a.title": "A", "trainer.precision": 32},
        {"sweep.space.builder.init_args.nodes.high": 12, "name": "other"},
    ],
)
def test_checking_the_touched_sections_alone_is_checking_the_file(write, overrides):
    text = (
        "drafter: TokenRecycling\nbuilder: {class_path: ParametricTree, init_args: {nodes: 16}}\n"
        "arms: {a: {builder: {init_args: {nodes: 4}}}}\n"
        "sweep: {space: {builder.init_args.nodes: {type: int, low: 4, high: 64}}}"
    )
    config = load_config(write(text))
    before = config.to_dict()
    changed = config.with_overrides(overrides)
    assert changed.to_dict() == Config(changed.layers, changed.file).to_dict() != before
    assert config.to_dict() == before == Config(config.layers, config.file).to_dict()
