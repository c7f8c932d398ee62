"""Output of all commands before they act: help, keys explained, the resolved file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage

import pytest

from specexp.base.checked import keys_below
from specexp.config import Config, ConfigError, load_config
from specexp.config.command import run_command
from specexp.config.explain import explain
from specexp.config.schema import Experiment

ROOT = Path(__file__).parents[2]
TREE_SHAPE = ROOT / "experiments" / "demo.yaml"
TREE = "drafter: TokenRecycling\nbuilder: {class_path: ParametricTree, init_args: {nodes: 12}}\n"


def never(config: Config, dry_run: bool) -> int:
    raise AssertionError("the command must not act")


def command(*arguments: object) -> int:
    return run_command(
        "usage: python -m specexp.sweep", [str(one) for one in arguments], never, {"n-trials": "sweep.n_trials"}
    )


def test_help_shows_the_usage_and_the_sections(capsys):
    assert command("--help") == 0
    out = capsys.readouterr().out
    assert out.startswith("usage: python -m specexp.sweep\n")
    assert "  generation  Length limit, number of samples, seed and when to stop." in out


def test_help_of_a_key_shows_type_bounds_default_and_meaning(capsys):
    assert command("--help", "generation.max_new_tokens") == 0
    assert capsys.readouterr().out == (
        "generation.max_new_tokens of Generation: an integer >= 1\n"
        "  Hard limit on the number of tokens generated per turn.\n"
        "  default: 128\n"
    )


def test_help_of_a_key_after_a_file_shows_the_value_of_the_file(write, capsys):
    path = write(TREE)
    assert command(path, "--help", "builder.init_args.nodes") == 0
    shown = capsys.readouterr().out
    assert shown.count("builder.init_args.nodes of") == 1
    assert f"  here: 12, from {path}\n" in shown
    assert command(path, "--builder.init_args.nodes", "7", "--help", "builder.init_args.nodes") == 0
    assert "  here: 7, from command line\n" in capsys.readouterr().out
    assert command(path, "--help", "--n-trials") == 0
    assert capsys.readouterr().out.startswith("sweep.n_trials of Sweep: an integer >= 1\n")
    assert command(path, "--help", "builder.init_args.depth") == 0
    assert "  here: 4, from default\n" in capsys.readouterr().out


def test_help_of_a_choice_and_of_a_part_lists_the_alternatives():
    assert "one of top-k, drawn" in explain("Chain")
    shown = explain("builder")
    assert "Chain: A chain of single candidates" in shown
    assert "DySpecGreedy:" in shown
    shown = explain("builder.init_args.nodes")
    assert "of ParametricTree" in shown
    assert "of FittedTree" in shown
    assert "of DySpecGreedy" not in shown


def test_help_goes_into_lists_and_into_the_space():
    key = "drafter.init_args.drafters.0.init_args.k"
    assert f"{key} of TokenRecycling" in explain(key)
    shown = explain("sweep.space.builder.init_args.nodes.low")
    assert "of IntRange: an integer\n" in shown
    assert "of FloatRange: a number\n" in shown


@pytest.mark.parametrize("key", ["generation.max_tokens", "max_new_tokens", "builder.init_args.node", "Chian"])
def test_help_of_an_unknown_key_names_the_nearest(key):
    with pytest.raises(ConfigError, match=r"is called .*; did you mean '.*(max_new_tokens|args.nodes|Chain)'"):
        explain(key)


@pytest.mark.variants(20)
@pytest.mark.parametrize("key", list(keys_below(Experiment)))
def test_every_key_of_the_sections_has_a_meaning(key):
    lines = explain(key).splitlines()
    assert "default: " not in lines[1], f"{key} is not described"


def test_print_config_is_the_same_configuration_with_the_source_of_each_value(write, capsys, tmp_path):
    assert command(TREE_SHAPE, "--print-config", "--n-trials", "7") == 0
    printed = capsys.readouterr().out
    assert "  n_trials: 7  # command line\n" in printed
    assert f"      nodes: 120  # {TREE_SHAPE}\n" in printed
    assert "  stop_at_eos: true  # default\n" in printed
    again = write(printed, "again.yaml")
    assert load_config(again).to_dict() == load_config(TREE_SHAPE, ["--sweep.n_trials", "7"]).to_dict()


@pytest.mark.parametrize(
    ("option", "meant"),
    [
        ("--n_trails", "--n-trials"),
        ("--n_trials", "--n-trials"),
        ("--print_config", "--print-config"),
        ("--max_new_tokens", "--generation.max_new_tokens"),
        ("--bulder", "--builder"),
    ],
)
def test_a_misspelt_option_suggests_the_option_or_the_key_that_is_meant(write, capsys, option, meant):
    assert command(write(TREE), option, "3") == 2
    assert capsys.readouterr().err == f"error: command line: {option} is unknown; did you mean {meant!r}?\n"


@pytest.mark.parametrize(
    ("part", "given", "meant"),
    [("DySpecGreedy", "nodes", "budget"), ("Chain", "gamma", "length"), ("Chain", "depth", "length")],
)
def test_another_word_for_an_argument_suggests_the_argument(write, part, given, meant):
    text = f"drafter: TokenRecycling\nbuilder: {{class_path: {part}, init_args: {{{given}: 8}}}}"
    with pytest.raises(ConfigError, match=f"did you mean 'builder.init_args.{meant}'"):
        load_config(write(text))


@pytest.mark.variants(3)
@pytest.mark.parametrize(
    "arguments",
    [
        [str(TREE_SHAPE), "--pair.target", "./nowhere"],
        ["--help"],
        ["--help", "generation.seed"],
        [str(TREE_SHAPE), "--builder.init_args.nods", "3"],
        [str(TREE_SHAPE), "--data.prompts", "nope.jsonl"],
        [str(TREE_SHAPE), "--engine", "VLLM", "--engine.init_args.concurrency", "many"],
        [str(TREE_SHAPE), "--engine", "OpenVINO", "--engine.init_args.threads", "many"],
        [str(TREE_SHAPE), "--drafter", "Nope"],
        [str(TREE_SHAPE), "--analyses", "[Nope]"],
    ],
)
def test_it_answers_without_the_heavy_libraries(arguments):
    code = (
        "import sys; from specexp.sweep.command import main; main(sys.argv[1:]); "
        "heavy = {'torch', 'transformers', 'lightning', 'wandb', 'datasets'} & set(sys.modules); "
        "sys.exit(str(heavy) if heavy else 0)"
    )
    before = getrusage(RUSAGE_CHILDREN).ru_utime
    subprocess.run([sys.executable, "-c", code, *arguments], check=True, capture_output=True, cwd=ROOT)
    assert getrusage(RUSAGE_CHILDREN).ru_utime - before < 3  # about half a second on an idle machine
