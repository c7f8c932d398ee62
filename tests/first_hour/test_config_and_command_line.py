"""Wrong configuration files and command lines."""

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from helpers.first_hour import FILE, SWEEP, Row, check, make, table

BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{b}: &{b} [{','.join(['*' + a] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)
DYSPEC = FILE.replace(
    "{class_path: Chain, init_args: {length: 3}}", "{class_path: DySpecGreedy, init_args: {nodes: 8}}"
)
REJECTION = "verifier: {class_path: RejectionSampling, init_args: {temperature: 0.7}}\n"
CONFIRMED = SWEEP.replace("confirm: null", "confirm: {data: {max_prompts: 2}}")
BIG = "{name: big, builder.init_args.length: 40}"
SAMPLED = FILE.replace("verifier: {class_path: KeyedSampling, init_args: {temperature: 0.7}}\n", REJECTION)


def yaml(name: str, text: str, *answered: str, command: str = "run mine.yaml --dry-run") -> Row:
    """A wrong file."""
    return Row(name, command, answered, {"mine.yaml": text})


def dry(name: str, options: str, *answered: str, file: str = "mine.yaml") -> Row:
    """Wrong options, looked at by a dry run."""
    return Row(name, f"{'sweep' if file == 'sweep.yaml' else 'run'} {file} {options} --dry-run", answered)


FILES = [
    yaml("an empty file", "", "mine.yaml is empty", "sections such as builder"),
    yaml("a file of comments", "# nothing yet\n", "mine.yaml is empty"),
    yaml("a list", "- builder\n", "mine.yaml: holds list", "a mapping of sections"),
    yaml("a text", "builder\n", "mine.yaml: holds str", "a mapping of sections"),
    yaml("a tab", "builder:\n\tclass_path: Chain\n", "mine.yaml, line 2: not valid YAML"),
    yaml("an open bracket", "builder: {class_path: Chain\n", "mine.yaml, line 2: not valid YAML"),
    yaml("a key given twice", FILE + "name: a\nname: b\n", "mine.yaml, line 9", "'name' is given twice"),
    yaml("aliases that explode", BOMB, "mine.yaml, line 1", "more than 100000 values"),
    yaml(
        "a Python object",
        "name: !!python/object/apply:os.system [id]\n",
        "mine.yaml, line 1",
        "not valid YAML",
    ),
    Row(
        "no text at all",
        "run mine.yaml --dry-run",
        ("mine.yaml cannot be read", "save the file as UTF-8"),
        {"mine.yaml": b"\xff\xfe\x00"},
    ),
    Row("a file that is not there", "run min.yaml", ("min.yaml does not exist", "did you mean 'mine.yaml'?")),
    Row("a folder in place of a file", "run folder --dry-run", ("folder cannot be read",), {"folder/x": ""}),
    Row(
        "the folder of a run",
        "run runs/mine --dry-run",
        ("runs/mine cannot be read: it is a folder", "did you mean 'runs/mine/config.yaml'?"),
        {"runs/mine/config.yaml": FILE},
    ),
    yaml(
        "a number that YAML reads as octal",
        FILE.replace("max_new_tokens: 8", "max_new_tokens: 010"),
        "mine.yaml, line 5",
        "YAML reads 010 as 8",
    ),
    yaml(
        "a file composed that is not there", "compose: configs/x.yaml\n", "mine.yaml: compose: configs/x.yaml"
    ),
    yaml("a file that composes itself", "compose: mine.yaml\n", "composes itself (mine.yaml -> mine.yaml)"),
]
KEYS = [
    dry("a key of nothing", "--=3", "command line:  is unknown", "allowed are --analyses, --arms"),
    yaml("a key that YAML reads as true", FILE + "yes: 3\n", "mine.yaml: True is unknown"),
    dry(
        "an option given twice",
        "--generation.seed 1 --generation.seed 2",
        "--generation.seed is given twice, 1 and 2",
    ),
    dry(
        "a lone equals sign",
        "--generation.seed = 1",
        "--generation.seed is followed by a lone =; write --gen",
    ),
    dry(
        "a list that the shell cut",
        "--baselines [engine, hf-eager]",
        "'[engine,'",
        "quote a value that holds",
    ),
    Row(
        "help on misspelt steps",
        "run --help bulder.init_args.lenght",
        ("'bulder.init_args.lenght'; did you mean 'bu",),
    ),
    dry(
        "a class of a large family",
        "--analyses '[Nope]'",
        "no Analysis is called 'Nope'; allowed are Ablation",
    ),
    dry(
        "a gain that nothing confirms",
        "--require-gain",
        "command line: sweep.require_gain is true",
        "set sweep.confirm",
        file="sweep.yaml",
    ),
    yaml("a misspelt section", FILE + "bulder: Chain\n", "mine.yaml: bulder is unknown", "mean 'builder'"),
    yaml("a key at the top", FILE + "target: x\n", "mine.yaml: target is unknown", "mean 'pair.target'"),
    yaml(
        "another word for a key",
        DYSPEC,
        "builder.init_args.nodes is unknown",
        "'builder.init_args.budget'",
    ),
    yaml("no key at all", FILE.replace("max_prompts", "foo"), "mine.yaml: data.foo is unknown"),
    yaml("no section", FILE + "evaluation: 3\n", "mine.yaml: evaluation is unknown"),
    yaml(
        "an argument beside init_args",
        FILE + "controller: {class_path: Fixed, nodes: 3}\n",
        "controller.nodes is unknown",
        "may belong in init_args",
    ),
    yaml(
        "no argument of Trainer",
        FILE.replace("enable_progress_bar", "progress"),
        "trainer.progress is unknown",
    ),
    dry(
        "a key of a section",
        "--generation.max_tokens 3",
        "command line: generation.max_tokens is unknown",
        "generation.max_new_tokens",
    ),
    dry(
        "a key without its section",
        "--max_new_tokens 3",
        "command line: generation.max_tokens is unknown",
        "generation.max_new_tokens",
    ),
    dry(
        "a key of no composition",
        "--sweep.space '{builder.init_args.nodes: {type: int, low: 1, high: 2}}'",
        "'builder.init_args.nodes' does not exist in any composition",
        file="sweep.yaml",
    ),
    Row(
        "a space of nested keys",
        "sweep sweep.yaml --dry-run",
        ("sweep.yaml: sweep.space.builder holds mappings; write one dotted key",),
        {
            "sweep.yaml": FILE
            + "sweep: {space: {builder: {init_args: {length: {type: int, low: 1, high: 4}}}}}\n"
        },
    ),
    dry(
        "what no study varies",
        "--sweep.space '{generation.seed: {type: int, low: 1, high: 2}}'",
        "sweep.space.generation.seed cannot be searched",
        file="sweep.yaml",
    ),
]
CLASSES = [
    dry("a misspelt class", "--builder Chian", "command line: builder.class_path", "mean 'Chain'"),
    dry("a class of another family", "--builder specexp.drafters.PromptLookup", "is not a TreeBuilder"),
    dry(
        "a class that is a number",
        "--builder '{class_path: 3}'",
        "class_path must be the name of a Tree",
    ),
    Row(
        "a class of a family without short names",
        "fit mine.yaml --dry-run",
        ("mine.yaml: model.class_path: no LightningModule is called 'Nope'; name it with its module",),
        {"mine.yaml": "model: {class_path: Nope}\ndata: {class_path: X}\n"},
    ),
    Row(
        "a class that its module does not have",
        "fit mine.yaml --dry-run",
        ("'experiments.pair.module.Nope' cannot be imported", "; allowed are "),
        {"mine.yaml": "model: {class_path: experiments.pair.module.Nope}\ndata: {class_path: X}\n"},
    ),
    dry("a contract", "--builder specexp.core.contracts.TreeBuilder", "only the contract of its family"),
    dry("a module that is not there", "--builder my_parts.Tree", "'my_parts.Tree' cannot be imported"),
    dry(
        "parts that do not go together",
        "--controller ConfidenceThreshold",
        "ConfidenceThreshold",
        "TokenRecycling",
    ),
]
VALUES = [
    dry(
        "no verifier",
        "--verifier null",
        "command line: verifier must be a Verifier given as class_path and init_args, got null",
    ),
    dry("no data", "--data null", "command line: data must be a mapping, got null"),
    dry("a name that leads out", "--name ../../escaped", "name is '../../escaped'", "a plain folder name"),
    dry("a name of two folders", "--name a/b", "name is 'a/b'", "a plain folder name"),
    dry("a name that is null", "--name null", "command line: name is null", "a plain folder name"),
    dry("an output that leads out", "--record.to ../x", "record.to is '../x'"),
    dry(
        "a home that the shell did not expand",
        "--output=~/runs",
        "output is '~/runs', in which nothing is expand",
    ),
    dry(
        "a variable that the shell did not expand",
        "--output '$HOME/runs'",
        "output is '$HOME/runs'",
        "whole path",
    ),
    dry("an output of Windows", "--output 'C:\\runs'", "output is 'C:", "nothing is expanded"),
    dry("a time", "--generation.seed 1:30", "YAML reads 1:30 as 90"),
    dry(
        "threads that are a text",
        "--generation.threads many",
        "generation.threads must be an integer, got 'many'",
    ),
    dry("more threads than cores", "--generation.threads 10000", "generation.threads is 10000", "cores"),
    dry("no tokens", "--generation.max_new_tokens 0", "max_new_tokens must be >= 1, got 0"),
    dry(
        "more tokens than the context",
        "--generation.max_new_tokens 1000000000000",
        "generation.max_new_tokens is 1000000000000",
        "holds 2048",
    ),
    dry(
        "a dtype that is none",
        "--pair.target_dtype bfloat",
        "got 'bfloat'",
        "mean 'bfloat16'",
    ),
    dry("a device that is none", "--pair.device tpu", "pair.device: device 'tpu' cannot be used"),
    dry("a device that is not here", "--pair.device cuda:77", "pair.device: device 'cuda:77' cannot be used"),
    dry(
        "a temperature below zero",
        "--verifier.init_args.temperature -1",
        "verifier.init_args.temperature must be >= 0, got -1",
    ),
    dry("no trials", "--n-trials 0", "sweep.n_trials must be >= 1, got 0", file="sweep.yaml"),
    dry(
        "a baseline that cannot follow",
        "--verifier RejectionSampling --baselines '[engine, hf-eager]'",
        "baselines",
        "hf-eager cannot follow RejectionSampling",
        "[engine]",
    ),
]
STORAGES = [
    dry(
        "a storage that is no URL",
        "--storage junk",
        "sweep.storage is 'junk'",
        "sqlite:///",
        file="sweep.yaml",
    ),
    dry(
        "a storage of the web",
        "--storage http://x",
        "sweep.storage is 'http://x'",
        "sqlite:///",
        file="sweep.yaml",
    ),
    dry(
        "a database in no folder",
        "--storage sqlite:////nope/x/study.db",
        "sweep.storage",
        "/nope/x",
        file="sweep.yaml",
    ),
]
DRIVERS = [
    Row(
        driver,
        f"sweep sweep.yaml --storage {url} --dry-run",
        (f"its driver {driver} is not installed: pip install {package}",),
    )
    for driver, package, url in (
        ("psycopg", "psycopg", "postgresql://me@localhost/studies"),
        ("MySQLdb", "mysqlclient", "mysql://me@localhost/studies"),
        ("redis", "redis", "redis://localhost"),
    )
]
ARMS = [
    yaml("an arm without a name", FILE + "arms: {'': {}, b: {}}\n", "mine.yaml: arms has one called ''"),
    yaml(
        "a grid that is no list",
        FILE + "arms: {a: {grid: {builder.init_args.length: 3}}}\n",
        "arms.a.grid.builder.init_args.length must be a list, got 3",
    ),
    yaml(
        "a latency of words",
        FILE + "latency: {name: a, target_ms: {one: 9}}\n",
        "latency.target_ms.one must be an integer, got 'one'",
    ),
    dry("a paper's row without a name", "--published '[{speedup: 2.0}]'", "published.0.method is missing"),
    dry(
        "a paper's figure in words",
        "--published '[{method: x, speedup: fast}]'",
        "published.0.speedup is 'fast'; allowed is a number, or null",
    ),
    dry("a device without numbers", "--pair.device meta", "pair.device", "device 'meta' cannot be used here"),
    dry(
        "a project without a name",
        "--tracking.mode offline --tracking.project '\"\"'",
        "command line: tracking.project must be a name",
        "got ''",
    ),
    Row(
        "an owner that W&B refuses",
        "dashboard sweep.yaml --entity a/b --dry-run",
        ("tracking.entity must be a name without any of /", "got 'a/b'"),
    ),
    dry(
        "a project that W&B refuses",
        "--tracking.mode offline --tracking.project a/b",
        "tracking.project must be a name without any of /",
        "got 'a/b'",
    ),
]
TRAINER = [
    dry(
        "a precision of nobody",
        "--trainer.precision 8-bit",
        "command line: trainer.precision: Precision '8-bit'",
    ),
    dry(
        "an accelerator that is none",
        "--trainer.accelerator npu",
        "command line: trainer.accelerator: ",
        "cpu",
    ),
    dry(
        "a flag of the Trainer in words",
        "--trainer.barebones maybe",
        "trainer.barebones must be true or false, got 'maybe'",
    ),
    dry(
        "no batches", "--trainer.limit_test_batches 0", "trainer.limit_test_batches is 0", "data.max_prompts"
    ),
    dry(
        "one batch to try", "--trainer.fast_dev_run true", "trainer.fast_dev_run is True", "data.max_prompts"
    ),
    dry("two devices", "--trainer.devices 2", "trainer.devices is 2; allowed is 1"),
    dry(
        "a logger by its name", "--trainer.logger csv", "trainer.logger is 'csv'", "class_path and init_args"
    ),
    dry(
        "callbacks by name",
        "--trainer.callbacks '[x]'",
        "trainer.callbacks is ['x']",
        "class_path and init_args",
    ),
]
GRID = "{class_path: optuna.samplers.GridSampler, init_args: {search_space: {x: [1]}}}"
STUDIES = [
    dry(
        "an objective given twice",
        "--sweep.objectives '[speedup, speedup]'",
        "sweep.objectives names 'speedup' twice",
        file="sweep.yaml",
    ),
    dry(
        "a limit below zero",
        "--sweep.constraints.max_draft_nodes -1",
        "sweep.constraints.max_draft_nodes must be >= 0, got -1",
        file="sweep.yaml",
    ),
    dry(
        "a sampler of another space",
        f"--sweep.sampler '{GRID}'",
        "sweep.sampler: it cannot be used in this study",
        "builder.init_args.length",
        file="sweep.yaml",
    ),
    dry(
        "a sampler without its argument",
        "--sweep.sampler optuna.samplers.GridSampler",
        "sweep.sampler.init_args.search_space is missing",
        file="sweep.yaml",
    ),
    dry(
        "a pruner that cannot count",
        "--sweep.pruner '{class_path: optuna.pruners.HyperbandPruner, init_args: {min_resource: -1}}'",
        "sweep.pruner: it cannot be used in this study (math domain error)",
        file="sweep.yaml",
    ),
]
MEDIAN = "--sweep.pruner optuna.pruners.MedianPruner --sweep.objectives '[speedup, tokens_per_step]'"
LEFT_OUT = [
    dry(
        "a pruner that could not prune",
        MEDIAN,
        "command line: sweep.pruner is set",
        "set it to null, or objectives to [speedup]",
        file="sweep.yaml",
    ),
    dry(
        "an export that no candidate is",
        "--sweep.export '{to: kept, kind: q-table}'",
        "sweep.export.kind is 'q-table'",
        "allowed are composition, static-tree",
        file="sweep.yaml",
    ),
    Row(
        "more known configurations than trials, and arms",
        "sweep sweep.yaml --n-trials 1 --arms '{a: {}}' --sweep.enqueue '[{name: one, builder.init_args.length: 1},"
        "{name: two, builder.init_args.length: 2}]' --dry-run",
        ("Not measured, for sweep.n_trials is 1: two.", "arms: is for python -m specexp.run sweep.yaml"),
        code=0,
    ),
]
RECORDED = FILE + "what_if: {files: [o.yaml]}\n"
OTHERS = [
    yaml("a device's file that is not there", RECORDED, "mine.yaml: what_if.files.0: o.yaml does not exist",
         command="what_if mine.yaml"),
    Row("a device's file that is no YAML", "what_if mine.yaml", ("mine.yaml: what_if.files.0: o.yaml, line 2",),
        {"mine.yaml": RECORDED, "o.yaml": "a: [\n"}),
    Row("a recording among other files", "record mine.yaml --record.to folder --dry-run",
        ("recording: folder holds notes.md", "record.to"), {"folder/notes.md": ""}),
    Row("a prefix past the context", "profile mine.yaml --profile.prefixes [100000] --dry-run",
        ("profile.prefixes.0 is 100000", "has room for")),
    Row(
        "an export below a file",
        "export nowhere --to vllm --output mine.yaml/x",
        ("--output: mine.yaml cannot be written (mine.yaml is not a folder)",),
    ),
    Row("a file as artifact", "export mine.yaml --to vllm", ("no such artifact folder, it is a file",)),
    Row(
        "a flag of another command",
        "run mine.yaml --confirm-again --dry-run",
        ("--confirm-again is an option of python -m specexp.sweep alone",),
    ),
    Row(
        "an export below a home",
        "export nowhere --to vllm --output=~/x.json",
        ("--output is '~/x.json', in which nothing is expanded",),
    ),
    yaml("a path of Windows in quotes", FILE + 'output: "C:\\runs"\n', "output is 'C:", "nothing is expanded"),
    dry("a value left empty", "--data.max_prompts=", "--data.max_prompts is given no value", "write null"),
    dry("a pattern of files", "--data.prompts '*.jsonl'", "a pattern is not expanded, name one file or a folder"),
    dry("trials of a run", "--n-trials 3", "--n-trials is an option of python -m specexp.sweep alone"),
    Row(
        "a long prompt from the command line",
        "run mine.yaml --data.prompts long.jsonl --dry-run",
        ("command line: data.prompts: prompt '0' may take",),
        {"long.jsonl": f'{{"prompt": "{"a " * 9000}"}}\n'},
    ),
    Row(
        "no prompts left to confirm",
        "sweep confirmed.yaml --data.prompts few.jsonl --data.max_prompts 4 --dry-run",
        ("sweep.confirm.data: the search and what follows it take all prompts", "lower data.max_prompts"),
        {"confirmed.yaml": CONFIRMED, "few.jsonl": "".join(f'{{"prompt": "a{n}"}}\n' for n in range(4))},
    ),
    Row(
        "a known setting outside the space",
        "sweep known.yaml --dry-run",
        ("big: builder.init_args.length is 40, outside the space (int 1 to 4)", "not searched from"),
        {"known.yaml": SWEEP.replace("n_trials: 3", f"n_trials: 3, enqueue: [{BIG}]")},
        code=0,
    ),
    dry(
        "a second confirmation of no study",
        "--confirm-again --name nosuch",
        "--confirm-again: there is no study in runs/nosuch",
        file="sweep.yaml",
    ),
    Row("no baselines named", "verify mine.yaml --dry-run", ("token equality",), code=0),
]  # fmt: skip
LEARNS = FILE + "controller: QLearning\nfit: {epochs: 2}\n"
COMMANDS = [
    Row("a flag misspelt", "run mine.yaml --dryrun", ("unknown option --dryrun; did you mean --dry-run?",)),
    Row("a flag of another spelling", "run mine.yaml --print_config", ("did you mean --print-config?",)),
    Row(
        "help on nothing",
        "run --help nokey",
        ("no part is called 'nokey'; allowed are analyses, ", "builder"),
    ),
    Row("a flag with a value", "run mine.yaml --print-config=1", ("--print-config=1", "it takes none")),
    Row("a flag that is true", "sweep sweep.yaml --dry-run=true", ("--dry-run=true", "it takes none")),
    Row(
        "epochs of the Trainer beside those of fit",
        "fit mine.yaml --trainer.max_epochs 3 --dry-run",
        ("command line: trainer.max_epochs", "fit.epochs"),
        {"mine.yaml": LEARNS},
    ),
    Row(
        "a file for a set that has none",
        "run mine.yaml --data.prompts.init_args.pth x --dry-run",
        ("data.prompts.init_args.pth is unknown", "allowed are data.prompts.init_args.split"),
        {"mine.yaml": "data: {prompts: StdlibFunctions}\n"},
    ),
    Row("an option in place of the file", "run --dry-run mine.yaml", ("--dry-run stands where", "first")),
    Row("an option without its value", "run mine.yaml --name", ("command line: --name has no value",)),
    Row(
        "a study without a sweep", "sweep mine.yaml --dry-run", ("no sweep: section", "specexp.run mine.yaml")
    ),
]

ROWS = [*FILES, *KEYS, *CLASSES, *VALUES, *STORAGES, *ARMS, *TRAINER, *STUDIES, *LEFT_OUT, *OTHERS, *COMMANDS]


@table(ROWS)
def test_one_sentence(
    row: Row, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make(row.files, tmp_path)
    monkeypatch.chdir(tmp_path)
    check(row, capsys)


@table(DRIVERS)
def test_a_database_without_its_driver(
    row: Row, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, row.name, None)  # as if it were not installed, whether it is or not
    make({}, tmp_path)
    monkeypatch.chdir(tmp_path)
    check(row, capsys)


@pytest.mark.skipif(find_spec("psycopg") is None, reason="no driver of PostgreSQL")
def test_a_database_with_its_driver_where_nobody_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make({}, tmp_path)
    monkeypatch.chdir(tmp_path)
    storage = "postgresql://me@127.0.0.1:9/studies"
    check(
        dry("", f"--storage {storage}", storage, "the database cannot be used: ", file="sweep.yaml"), capsys
    )
