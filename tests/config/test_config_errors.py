"""Every mistake in a configuration is one sentence that names the file, the key and what is allowed."""

import re
import subprocess
import sys
import time

import pytest

from specexp.config import ConfigError, apply_overrides, build_parts, check_key, load_config

TREE = "drafter: TokenRecycling\nbuilder: {class_path: ParametricTree, init_args: {nodes: 16}}\n"

MISTAKES = {
    "top level": ("bulder: Chain", "mine.yaml: bulder is unknown; did you mean 'builder'?"),
    "nested": (
        TREE + "generation: {max_tokens: 3}",
        "generation.max_tokens is unknown.*mean 'generation.max_new_tokens'",
    ),
    "argument": (
        "drafter: TokenRecycling\nbuilder: {class_path: Chain, init_args: {lenght: 3}}",
        "builder.init_args.lenght is unknown; did you mean 'builder.init_args.length'",
    ),
    "beside init_args": (
        "drafter: TokenRecycling\nbuilder: {class_path: Chain, length: 3}",
        "builder.length is unknown.*builder.init_args",
    ),
    "range": (
        "drafter: {class_path: TokenRecycling, init_args: {k: 0}}",
        "drafter.init_args.k must be >= 1, got 0",
    ),
    "max_new_tokens": (
        "generation: {max_new_tokens: 0}",
        "generation.max_new_tokens must be >= 1, got 0",
    ),
    "null where none": (
        "generation: {seed: null}",
        "generation.seed must be an integer, got null",
    ),
    "bool for int": ("generation: {samples: true}", "generation.samples must be an integer, got True"),
    "type": ("generation: {threads: many}", "generation.threads must be an integer, got 'many'"),
    "choice": (
        "pair: {target_dtype: bfloat}",
        "pair.target_dtype must be .*got 'bfloat'.*mean 'bfloat16'",
    ),
    "argument choice": (
        "drafter: {class_path: TokenRecycling, init_args: {update: frist}}",
        "drafter.init_args.update must be .*got 'frist'.*mean 'first'",
    ),
    "class": (
        "drafter: TokenRecycler",
        "drafter.class_path: no Drafter is called 'TokenRecycler'.*'TokenRecycling'",
    ),
    "dotted class": ("drafter: specexp.drafters.TokenRecycler", "cannot be imported.*mean 'TokenRecycling'"),
    "package": ("drafter: nowhere.Thing", "'nowhere.Thing' cannot be imported"),
    "family": ("drafter: specexp.builders.Chain", "'specexp.builders.Chain' is not a Drafter"),
    "contract": ("drafter: specexp.core.contracts.Drafter", "only the contract"),
    "no class": ("drafter: {init_args: {k: 3}}", "drafter.class_path is missing"),
    "not a part": ("drafter: 3", "drafter must be a Drafter given as class_path and init_args, got 3"),
    "required": ("data: {prompts: RawText}", "data.prompts.init_args.path is missing"),
    "data": ("data: {max_prompt: 3}", "data.max_prompt is unknown.*mean 'data.max_prompts'"),
    "trainer": ("trainer: {precison: 32}", "trainer.precison is unknown; did you mean 'trainer.precision'"),
    "constructor": (
        TREE + "controller: Fixed\n" + "arms: {a: {drafter: {init_args: {state: preloaded}}}}",
        "arms.a: drafter: TokenRecycling was given state 'preloaded'",
    ),
    "no builder": ("drafter: TokenRecycling", "drafter: the composition has no builder"),
    "too wide": (
        "drafter: PromptLookup\nbuilder: TokenRecyclingTree",
        "builder: the TokenRecyclingTree asks for 8 candidates",
    ),
    "arm": (TREE + "arms: {a: {buidler: Chain}}", "arms.a.buidler is unknown.*mean 'arms.a.builder'"),
    "arm key": (TREE + "arms: {a: {builder: {init_args: {node: 3}}}}", "arms.a: .*'builder.init_args.nodes'"),
    "grid": (
        TREE + "arms: {a: {grid: {builder.init_args.node: [3]}}}",
        "arms.a.grid: 'builder.init_args.node' .*mean 'builder.init_args.nodes'",
    ),
    "grid value": (TREE + "arms: {a: {grid: {builder.init_args.nodes: [0]}}}", "nodes must be >= 1, got 0"),
    "reference": (
        TREE + "arms: {a: {reference: hf-asisted}}",
        "arms.a.reference must be .*mean 'hf-assisted'",
    ),
    "reference key": (
        TREE + "arms: {a: {reference: hf-assisted, prompt_lookup_num_tokens: 3}}",
        "does not go with reference 'hf-assisted'",
    ),
    "sweep": (TREE + "sweep: {spaces: {}}", "sweep.spaces is unknown.*mean 'sweep.space'"),
    "space path": (
        TREE + "sweep: {space: {builder.init_args.node: {type: int, low: 1, high: 3}}}",
        "'builder.init_args.node' does not exist.*mean 'builder.init_args.nodes'",
    ),
    "space value": (
        TREE + "sweep: {space: {builder.init_args.nodes: {type: int, low: 0, high: 3}}}",
        "sweep.space.builder.init_args.nodes: builder.init_args.nodes must be >= 1, got 0",
    ),
    "space order": (
        TREE + "sweep: {space: {builder.init_args.nodes: {type: int, low: 9, high: 3}}}",
        "low 9 is above high 3",
    ),
    "space type": (
        TREE + "sweep: {space: {builder.init_args.nodes: {type: integer}}}",
        "type must be .* got 'integer'",
    ),
    "space key": (
        TREE + "sweep: {space: {builder.init_args.nodes: {type: int, low: 1, hihg: 3}}}",
        "hihg is unknown; did you mean",
    ),
    "trials": (
        TREE + "sweep: {n_trials: 0, space: {builder.init_args.nodes: {type: int, low: 1, high: 3}}}",
        "sweep.n_trials must be >= 1, got 0",
    ),
    "twice": ("name: a\nname: b", "mine.yaml, line 2: not valid YAML .*'name' is given twice"),
    "yaml": ("a: [1\nb: 2", "mine.yaml, line 2: not valid YAML"),
    "list": ("- 1", "holds list; a mapping of sections"),
}


@pytest.mark.parametrize(("text", "expected"), MISTAKES.values(), ids=MISTAKES)
def test_mistake(write, text: str, expected: str):
    path = write(text)
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    sentence = str(caught.value)
    assert re.search(expected, sentence)
    assert sentence.startswith(str(path))
    assert "\n" not in sentence


@pytest.mark.parametrize(
    ("word", "value", "expected"),
    [
        ("arms.a.builder.init_args.nodes", "0", "arms.a: builder.init_args.nodes must be >= 1, got 0"),
        ("arms.a.builder.init_args.noodles", "3", "arms.a: builder.init_args.noodles is unknown"),
        ("arms.a.num_assistant_tokens", "3", "arms.a.num_assistant_tokens needs a reference"),
        ("arms.a.seed", "3", "arms.a.seed is unknown"),
        ("sweep.enqueue.0.builder.init_args.nodes", "0", "sweep.enqueue.0: builder.init_args.nodes must be >= 1"),
        ("sweep.confirm.data.max_prompts", "0", "sweep.confirm: data.max_prompts must be >= 1, got 0"),
    ],
)  # fmt: skip
def test_a_value_of_the_command_line_is_refused_as_one(write, word: str, value: str, expected: str):
    path = write(
        TREE + "arms: {a: {title: A, builder: {init_args: {nodes: 4}}}}\n"
        "sweep: {space: {builder.init_args.nodes: {type: int, low: 1, high: 3}},\n"
        "        enqueue: [{name: b, builder: {init_args: {nodes: 2}}}], confirm: {data: {max_prompts: 2}}}"
    )
    load_config(path)
    with pytest.raises(ConfigError, match=f"^command line: {re.escape(expected)}"):
        load_config(path, [f"--{word}", value])


def test_missing_file(write):
    with pytest.raises(ConfigError, match=r"min\.yaml does not exist; did you mean '.*mine\.yaml'"):
        load_config(write("name: x").parent / "min.yaml")


def test_missing_composed_file_names_both(write):
    with pytest.raises(ConfigError, match=r"mine\.yaml: compose: .*other\.yaml does not exist"):
        load_config(write("compose: other.yaml"))


def test_composing_itself(write):
    write("compose: [mine.yaml]", "b.yaml")
    with pytest.raises(ConfigError, match=r"composes itself \(.*mine\.yaml -> .*b\.yaml -> .*mine\.yaml\)"):
        load_config(write("compose: [b.yaml]"))


def test_error_names_the_composed_file(write):
    write("generation: {seed: -1}", "block.yaml")
    with pytest.raises(ConfigError, match=r"block\.yaml: generation\.seed must be >= 0, got -1"):
        load_config(write("compose: [block.yaml]\ngeneration: {samples: 2}"))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--generation.seed", "-1"], "command line: generation.seed must be >= 0, got -1"),
        (["--generation.sed=1"], "command line: generation.sed is unknown.*'generation.seed'"),
        (
            ["--builder", "Chian"],
            "command line: builder.class_path: no TreeBuilder is called 'Chian'.*'Chain'",
        ),
        (["seed"], "'seed' is no override"),
        (["--generation.seed"], "--generation.seed has no value"),
        (["--generation.seed", "--name", "x"], "--generation.seed has no value"),
        (["--name", "[1"], "is no YAML value"),
    ],
)
def test_command_line(write, arguments: list[str], expected: str):
    with pytest.raises(ConfigError, match=expected):
        load_config(write(TREE), arguments)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            ["nodes.low", "0"],
            r"command line: sweep\.space\.builder\.init_args\.nodes: .*nodes must be >= 1, got 0",
        ),
        (
            ["nodes.high", "9999"],
            r"command line: sweep\.space\.builder\.init_args\.nodes: .*must be <= 4096, got 9999",
        ),
        (
            ["nodes.low", "12"],
            r"command line: sweep\.space\.builder\.init_args\.nodes: low 12 is above high 8",
        ),
    ],
)
def test_a_bound_set_on_the_command_line_is_not_blamed_on_the_file(
    write, arguments: list[str], expected: str
):
    path = write(TREE + "sweep: {space: {builder.init_args.nodes: {type: int, low: 4, high: 8}}}")
    with pytest.raises(ConfigError, match=expected):
        load_config(path, [f"--sweep.space.builder.init_args.{arguments[0]}", *arguments[1:]])


def test_what_a_constructor_refuses_names_all_that_set_its_arguments(write):
    text = TREE.replace("TokenRecycling", "{class_path: TokenRecycling, init_args: {k: 8}}")
    with pytest.raises(
        ConfigError, match=r"^.*mine\.yaml, command line: drafter: .*state 'preloaded' and no matrix"
    ):
        load_config(write(text), ["--drafter.init_args.state", "preloaded"])


def test_checked_keys_and_values(composition):
    check_key(composition, "builder.init_args.nodes")
    with pytest.raises(
        ConfigError, match=r"'builder\.nodes' does not exist.*mean 'builder\.init_args\.nodes'"
    ):
        check_key(composition, "builder.nodes")
    with pytest.raises(ConfigError, match=r"nodes must be >= 1, got 0"):
        apply_overrides(composition, {"builder.init_args.nodes": 0})


def test_impossible_composition_of_overrides(composition):
    with pytest.raises(ConfigError, match="asks for 3 candidates a node and PromptLookup ranks at most 1"):
        build_parts(apply_overrides(composition, {"drafter": {"class_path": "PromptLookup"}}))


def test_errors_come_without_torch_and_quickly(write):
    path = write(TREE + "sweep: {space: {builder.init_args.node: {type: int, low: 1, high: 3}}}")
    code = (
        "import sys\nfrom specexp.config import load_config\n"
        f"try: load_config({str(path)!r})\nexcept ValueError as error: print(error)\n"
        "heavy = {'torch', 'transformers', 'lightning', 'optuna', 'wandb', 'datasets'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    started = time.perf_counter()
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "did you mean 'builder.init_args.nodes'?" in said
    assert said.splitlines()[-1] == "[]"
    assert time.perf_counter() - started < 20  # about one second on an idle machine


LATENCY = "latency: {name: slow, target_ms: {1: 100}}\n"
CHAIN_OF_DRAFT = "pair: {draft: x}\ndrafter: DraftModel\nbuilder: Chain\n"


def test_a_draft_model_needs_its_milliseconds_in_a_latency_profile(write):
    with pytest.raises(ConfigError, match=r"latency: 'slow' states no draft_ms, but DraftModel runs a draft"):
        load_config(write(LATENCY + CHAIN_OF_DRAFT))
    with pytest.raises(ConfigError, match=r"latency: 'slow' states no draft_ms, but arm 'assisted' runs"):
        load_config(write(LATENCY + "arms: {assisted: {reference: hf-assisted}}"))
    load_config(write(LATENCY + "drafter: TokenRecycling\nbuilder: Chain\n"))
    load_config(write(LATENCY.replace("}}", "}, draft_ms: {1: 5}}") + CHAIN_OF_DRAFT))


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ("{name: x}", "target_ms of latency profile 'x' must hold milliseconds above 0"),
        ("{target_ms: {1: 5}}", "latency: a latency profile needs a name"),
        (
            "{name: x, target_ms: {1: 5}, overheads: {plain: {steps_ms: 1}}}",
            "did you mean 'latency.overheads.plain.step_ms'",
        ),
        (
            "{name: x, target_ms: {1: 5}, overheads: {DraftModel: {step_ms: 1}}}",
            "a drafter and a builder are allowed",
        ),
        ("{name: x, target_ms: {}}", "must hold milliseconds above 0"),
        ("{name: x, target_ms: {2: 5}}", "states no milliseconds for 1 token"),
        ("{name: x, target_ms: {0: 5, 1: 6}}", "is stated for 0 tokens; 1 or more are allowed"),
        ("{name: x, target_ms: {1: 0}}", "must hold milliseconds above 0"),
        ("{name: x, target_ms: {1: -3}}", "latency.target_ms"),
        (
            "{name: x, target_ms: {1: 5}, source: heard}",
            "latency.source must be 'measured', 'published' or",
        ),
        ("{name: x, target_ms: {1: 5}, drafts_ms: {1: 5}}", "did you mean 'latency.draft_ms'"),
    ],
)
def test_a_wrong_latency_profile_is_one_sentence(write, section, said):
    with pytest.raises(ConfigError) as raised:
        load_config(write(f"latency: {section}\ndrafter: TokenRecycling\nbuilder: Chain\n"))
    assert said in str(raised.value)
    assert "mine.yaml" in str(raised.value)
    assert "\n" not in str(raised.value)
