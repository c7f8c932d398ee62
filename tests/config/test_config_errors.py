"""Each mistake in a configuration is one sentence with the file, the key and the allowed values."""

import re

import pytest

from specexp.config import ConfigError, load_config

pytestmark = pytest.mark.unit

TREE = "drafter: TokenRecycling\nbuilder: {class_path: ParametricTree, init_args: {nodes: 16}}\n"


@pytest.mark.parametrize(
    ("word", "value", "expected"),
    [
        ("arms.a.builder.init_args.nodes", "0", "arms.a: builder.init_args.nodes must be >= 1, got 0"),
        ("arms.a.builder.init_args.noodles", "3", "arms.a: builder.init_args.noodles is unknown"),
        ("arms.a.num_assistant_tokens", "3", "arms.a.num_assistant_tokens needs a reference"),
        ("arms.a.seed", "3", "arms.a.seed is unknown"),
        ("backend", "offline", "backend must be 'live' or 'replay', got 'offline'"),
        ("sweep.enqueue.0.builder.init_args.nodes", "0", "sweep.enqueue.0: builder.init_args.nodes must be >= 1"),
        ("sweep.confirm.data.max_prompts", "0", "sweep.confirm: data.max_prompts must be >= 1, got 0"),
    ],
)  # fmt: skip
def test_a_value_of_the_command_line_is_refused_as_one(write, word, value, expected):
    path = write(
        TREE + "arms: {a: {title: A, builder: {init_args: {nodes: 4}}}}\n"
        "sweep: {space: {builder.init_args.nodes: {type: int, low: 1, high: 3}},\n"
        "        enqueue: [{name: b, builder: {init_args: {nodes: 2}}}], confirm: {data: {max_prompts: 2}}}"
    )
    load_config(path)
    with pytest.raises(ConfigError, match=f"^command line: {re.escape(expected)}"):
        load_config(path, [f"--{word}", value])


def test_a_file_that_composes_itself_is_refused(write):
    write("compose: [mine.yaml]", "b.yaml")
    with pytest.raises(ConfigError, match=r"composes itself \(.*mine\.yaml -> .*b\.yaml -> .*mine\.yaml\)"):
        load_config(write("compose: [b.yaml]"))


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("low", "0", ".*nodes must be >= 1, got 0"),
        ("high", "9999", ".*must be <= 4096, got 9999"),
        ("low", "12", "low must be <= high, got low 12 and high 8"),
    ],
)
def test_a_bound_of_the_command_line_is_not_attributed_to_the_file(write, key, value, expected):
    path = write(TREE + "sweep: {space: {builder.init_args.nodes: {type: int, low: 4, high: 8}}}")
    space = "sweep.space.builder.init_args.nodes"
    with pytest.raises(ConfigError, match=f"command line: {re.escape(space)}: {expected}"):
        load_config(path, [f"--{space}.{key}", value])


def test_an_error_of_a_constructor_names_all_sources_of_its_arguments(write):
    text = TREE.replace("TokenRecycling", "{class_path: TokenRecycling, init_args: {k: 8}}")
    with pytest.raises(ConfigError, match=r"mine\.yaml, command line: drafter: .*state 'preloaded' without a matrix"):
        load_config(write(text), ["--drafter.init_args.state", "preloaded"])


def test_an_unknown_key_and_a_wrong_value_are_refused(composition):
    with pytest.raises(ConfigError, match=r"'builder\.nodes' does not exist.*mean 'builder\.init_args\.nodes'"):
        composition.get("builder.nodes")
    with pytest.raises(ConfigError, match=r"nodes must be >= 1, got 0"):
        composition.with_overrides({"builder.init_args.nodes": 0})


LATENCY = "latency: {name: slow, target_ms: {1: 100}}\n"
CHAIN_OF_DRAFT = "pair: {draft: x}\ndrafter: DraftModel\nbuilder: Chain\n"


def test_a_draft_model_needs_its_milliseconds_in_a_latency_profile(write):
    with pytest.raises(ConfigError, match=r"latency: 'slow' has no draft_ms, but DraftModel runs a draft"):
        load_config(write(LATENCY + CHAIN_OF_DRAFT))
    with pytest.raises(ConfigError, match=r"latency: 'slow' has no draft_ms, but arm 'assisted' runs"):
        load_config(write(LATENCY + "arms: {assisted: {reference: hf-assisted}}"))
    load_config(write(LATENCY + "drafter: TokenRecycling\nbuilder: Chain\n"))
    load_config(write(LATENCY.replace("}}", "}, draft_ms: {1: 5}}") + CHAIN_OF_DRAFT))


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ("name: x", "target_ms of latency profile 'x' must hold milliseconds above 0"),
        ("target_ms: {1: 5}", "latency: a latency profile needs a name"),
        ("name: x, target_ms: {1: 5}, overheads: {plain: {steps_ms: 1}}", "'latency.overheads.plain.step_ms'"),
        ("name: x, target_ms: {2: 5}", "must have an entry for 1 token"),
        ("name: x, target_ms: {0: 5, 1: 6}", "latency.target_ms.0 must be >= 1, got 0"),
        ("name: x, target_ms: {1: 0}", "must hold milliseconds above 0"),
        ("name: x, target_ms: {1: 5}, source: heard", "latency.source must be 'measured', 'published' or"),
        ("name: x, target_ms: {1: 5}, drafts_ms: {1: 5}", "did you mean 'latency.draft_ms'"),
    ],
)
def test_a_wrong_latency_profile_is_one_sentence(write, section, message):
    with pytest.raises(ConfigError) as raised:
        load_config(write(f"latency: {{{section}}}\ndrafter: TokenRecycling\nbuilder: Chain\n"))
    assert message in str(raised.value)
    assert "mine.yaml" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_error_names_the_composed_file(write):
    write("generation: {seed: -1}", "block.yaml")
    with pytest.raises(ConfigError, match=r"block\.yaml: generation\.seed must be >= 0, got -1"):
        load_config(write("compose: [block.yaml]\ngeneration: {samples: 2}"))
