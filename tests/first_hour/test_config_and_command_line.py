"""Wrong configuration files and command lines; forty more are in the golden set."""

import sys
from importlib.util import find_spec

import pytest
from helpers.first_hour import FILE, SWEEP, Row, dry, file, study, table

CONFIRMED = SWEEP.replace("confirm: null", "confirm: {data: {max_prompts: 2}}")
KNOWN = SWEEP.replace("n_trials: 3", "n_trials: 3, enqueue: [{name: big, builder.init_args.length: 40}]")
NESTED = FILE + "sweep: {space: {builder: {init_args: {length: {type: int, low: 1, high: 4}}}}}\n"
LEARNS = FILE + "controller: QLearning\nfit: {epochs: 2}\n"
RECORDED = FILE + "what_if: {files: [o.yaml]}\n"
FILES = [
    file("", "mine.yaml is empty ... sections such as builder"),
    file("- builder\n", "mine.yaml ... list ... a mapping of sections"),
    file("builder:\n\tclass_path: Chain\n", "mine.yaml, line 2: not valid YAML"),
    file(
        "builder: {class_path: Chain}\n  seed: 1\n",
        "mine.yaml, line 2 ... check the indentation of this line",
    ),
    file("name: !!python/object/apply:os.system [id]\n", "mine.yaml, line 1 ... not valid YAML"),
    file(b"\xff\xfe\x00", "mine.yaml cannot be read ... save the file as UTF-8"),
    Row("run folder --dry-run", "folder must be a YAML file, but it is a folder", {"folder/x": ""}),
    Row("run runs/mine --dry-run", "did you mean 'runs/mine/config.yaml'?", {"runs/mine/config.yaml": FILE}),
    file(FILE.replace("tokens: 8", "tokens: 010"), "mine.yaml, line 5 ... YAML reads 010 as 8"),
]
KEYS = [
    file(FILE + "yes: 3\n", "mine.yaml: True is unknown"),
    dry("--generation.seed 1 --generation.seed 2", "--generation.seed must be given once, got 1 and 2"),
    dry("--baselines [plain, hf-eager]", "'[plain,' ... quote a value that has spaces"),
    dry("--data.max_prompts=", "--data.max_prompts has no value; write null"),
    file(FILE + "target: x\n", "mine.yaml: target is unknown ... mean 'pair.target'"),
    Row("sweep sweep.yaml --dry-run", "sweep.space.builder ... one dotted key", {"sweep.yaml": NESTED}),
    file(
        FILE + "arms: {a: {builder.init_args.length: 4}}\n",
        "arms.a.builder.init_args.length is unknown; a file nests its keys: builder: {init_args: {length: ...}}",
    ),
    file(
        FILE + "pair.target: stdlib\n", "pair.target is unknown; a file nests its keys: pair: {target: ...}"
    ),
    file(
        FILE + "arms: {a: {builder: {init_args: {len: 4}}}}\n",
        "mine.yaml: arms.a: builder.init_args.len is unknown; did you mean 'builder.init_args.length'?",
    ),
]
CLASSES = [
    file(
        "model: {class_path: Nope}\ndata: {class_path: X}\n",
        "mine.yaml: model.class_path ... LightningModule ... 'Nope'; write its module too",
        "fit",
    ),
    dry("--analyses '[Nope]'", "no Analysis is called 'Nope' ... Ablation"),
    dry("--controller ConfidenceThreshold", "ConfidenceThreshold ... TokenRecycling"),
]
VALUES = [
    dry("--output=~/runs", "output must be a path without ~ ... got '~/runs'"),
    dry("--generation.threads 10000", "generation.threads ... 10000 ... cores"),
    dry("--execution Serial --execution.init_args.threads 10000", "execution.init_args.threads ... cores"),
    dry("--pair.device cuda:77", "pair.device ... 'cuda:77' cannot be used"),
    dry(
        "--verifier RejectionSampling --baselines '[plain, hf-eager]'",
        "baselines ... hf-eager cannot follow RejectionSampling ... [plain]",
    ),
    dry(
        "--pair.mode packd",
        "command line: pair.mode: mode must be one of ... got 'packd'; did you mean 'packed'?",
    ),
    dry(
        "--generation.temperature 0.7",
        "generation.temperature is unknown; sampling is set by verifier: KeyedSampling, with "
        "verifier.init_args.temperature",
    ),
    dry("--pair.dtype float32", "command line: pair.dtype is unknown; did you mean 'pair.target_dtype'?"),
    dry("--output /proc/x", "command line: output: /proc/x/mine cannot be written"),
    dry("--baselines [plain,plain]", "baselines must name each baseline once ... ['plain', 'plain']"),
    dry("--published '[{method: x, speedup: fast}]'", "published.0.speedup ... 'fast'"),
    dry("--tracking.mode offline --tracking.project '\"\"'", "tracking.project ... got ''"),
    Row("dashboard sweep.yaml --entity a/b --dry-run", "tracking.entity ... without any of / ... got 'a/b'"),
]
TRAINER = [
    dry("--trainer.precision 8-bit", "command line: trainer.precision: Precision '8-bit'"),
    dry("--trainer.accelerator npu", "command line: trainer.accelerator: ... cpu"),
    dry("--trainer.limit_test_batches 0", "trainer.limit_test_batches ... 0 ... data.max_prompts"),
    dry("--trainer.logger csv", "trainer.logger ... 'csv' ... class_path and init_args"),
    Row(
        "fit mine.yaml --trainer.max_epochs 3 --dry-run",
        "trainer.max_epochs ... fit.epochs",
        {"mine.yaml": LEARNS},
    ),
]
GRID = "{class_path: optuna.samplers.GridSampler, init_args: {search_space: {x: [1]}}}"
MEDIAN = "--sweep.pruner optuna.pruners.MedianPruner --sweep.objectives '[speedup, tokens_per_step]'"
TWO = "[{name: one, builder.init_args.length: 1}, {name: two, builder.init_args.length: 2}]"
STUDIES = [
    Row("sweep", "specexp.sweep needs a configuration file"),
    Row(
        "sweep composed.yaml --dry-run",
        "composed.yaml: sweep.constraints",
        {"composed.yaml": "compose: [sweep.yaml]\nsweep: {constraints: {max_latency: 3}}\n"},
    ),
    file(
        FILE + "sweep: {space: {builder.init_args.length: [1, 2]}}\n",
        "sweep.space.builder.init_args.length must be a mapping, got [1, 2]",
        "sweep",
    ),
    study(
        "--data.prompts copies.jsonl",
        "1 of 2 prompts repeat the text of an earlier prompt",
        files={"copies.jsonl": '{"prompt": "a"}\n' * 2},
        code=0,
    ),
    study("--require-gain", "command line: sweep.require_gain is true ... set sweep.confirm"),
    study("--storage sqlite:////nope/x/study.db", "sweep.storage ... /nope/x"),
    study(
        f"--sweep.sampler '{GRID}'",
        "sweep.sampler ... cannot be used in this study ... builder.init_args.length",
    ),
    study("--sweep.sampler optuna.samplers.GridSampler", "sweep.sampler.init_args.search_space is missing"),
    study(MEDIAN, "command line: sweep.pruner must be null ... set it to null, or objectives to [speedup]"),
    study(
        "--sweep.export '{to: kept, kind: q-table}'",
        "sweep.export.kind ... 'q-table' ... composition, static-tree",
    ),
    study(
        f"--n-trials 1 --arms '{{a: {{}}}}' --sweep.enqueue '{TWO}'",
        "Not measured, because sweep.n_trials is 1: two. ... arms: is used by python -m specexp.run sweep.yaml",
        code=0,
    ),
    study("--artifact smollm2:tree --dry-run", "--artifact names one setting, so nothing is searched"),
    Row(
        "sweep confirmed.yaml --data.prompts few.jsonl --data.max_prompts 4 --dry-run",
        "sweep.confirm.data: no prompts are left of 4 prompts: set a lower data.max_prompts",
        {"confirmed.yaml": CONFIRMED, "few.jsonl": "".join(f'{{"prompt": "a{n}"}}\n' for n in range(4))},
    ),
    Row(
        "sweep confirmed.yaml --sweep.confirm.data.offset 0 --data.max_prompts 4 --dry-run",
        "confirmed.yaml: sweep.confirm.data: prompt ... is one of the search's",
        {"confirmed.yaml": CONFIRMED},
    ),
    Row(
        "sweep known.yaml --dry-run",
        "big: builder.init_args.length is 40, outside the space (int 1 to 4) ... measured and compared only",
        {"known.yaml": KNOWN},
        code=0,
    ),
]
COMMANDS = [
    Row("demo smolm2", "demo takes smollm2 or options, got 'smolm2'; did you mean 'smollm2'?"),
    Row("demo smollm2 --minuts 3", "--minuts is unknown; did you mean '--minutes'?"),
    Row(
        "verify artifacts/q --dry-run",
        "a folder; name the study's file first, then --artifact artifacts/q",
        {"artifacts/q/best.json": "{}"},
    ),
    Row(
        "export runs/q --to vllm",
        "runs/q: artifact.json is missing; did you mean 'artifacts/q/best'?",
        {"runs/q/report.md": "", "artifacts/q/best.json": "{}"},
    ),
    Row(
        "why --endpoint 127.0.0.1:8000",
        "--endpoint: must begin with http:// or https://, got '127.0.0.1:8000'",
    ),
    Row("serve smollm2", "smollm2: there is no such embedded artifact; allowed are smollm2:"),
    Row("serve smollm2:tre", "there is no such embedded artifact; did you mean 'smollm2:tree'?"),
    Row("export smollm2:tre --to vllm", "no such embedded artifact; did you mean 'smollm2:tree'?"),
    Row("profile smollm2", "smollm2 does not exist; name a YAML file first, and a model with --pair.target"),
    Row("demo --smollm2", "demo takes smollm2 or options, got '--smollm2'; did you mean 'smollm2'?"),
    Row("verify --plain http://x", "--plain needs --endpoint URL, the server with speculation"),
    Row("init study --temperature warm", "--temperature must be a number, got 'warm'"),
    Row("init study --for vlm", "--for must be one of 'vllm', ... got 'vlm'; did you mean 'vllm'?"),
    Row(
        "doctor none",
        "none has no records.jsonl: name a folder that specexp.run wrote, or a model",
        {"none/report.md": ""},
    ),
    Row(
        "run mine.yaml --shard 0/2 --on local --workers 2",
        "--shard must not be given with --on, which gives each worker its shard",
    ),
    Row("record mine.yaml --record.to r --engine HuggingFace --dry-run", "engine must be left out"),
    Row("export mine.yaml --to vllm --draft=", "--draft must not be empty"),
    Row("verify --endpoint http://x --plain http://x", "--plain must be another server of the same model"),
    Row("verify mine.yaml --endpoint http://x", "--endpoint takes no configuration file, got mine.yaml"),
    Row("verify --endpoint http://x http://y", "error: unrecognized arguments: http://y"),
    Row(
        "verify --endpoint http://x --plain http://y --tolerance nan",
        "--tolerance must be a number >= 0, got 'nan'",
    ),
    Row(
        "verify --endpoint http://x --plain http://y --seconds=-5",
        "--seconds must be a number >= 0, got '-5'",
    ),
    Row("run --dry-run mine.yaml", "the configuration file must come first, got --dry-run"),
    Row("what_if mine.yaml", "what_if.files.0: o.yaml does not exist", {"mine.yaml": RECORDED}),
    Row("what_if mine.yaml", "what_if.files.0: o.yaml, line 2", {"mine.yaml": RECORDED, "o.yaml": "a: [\n"}),
    Row("record mine.yaml --record.to folder --dry-run", "it holds notes.md", {"folder/notes.md": ""}),
    Row(
        "export nowhere --to vllm --output mine.yaml/x",
        "--output: mine.yaml cannot be written (mine.yaml is not a",
    ),
    Row("export mine.yaml --to vllm", "no such artifact folder, it is a file"),
    Row("verify mine.yaml --dry-run", "token equality", code=0),
]
RUNS = [  # without a dry run before
    Row("run mine.yaml --generation.max_new_tokens 1000000000000", "2048 tokens, got 1000000000000"),
]


@table([*FILES, *KEYS, *CLASSES, *VALUES, *TRAINER, *STUDIES, *COMMANDS, *RUNS])
def test_one_sentence(row, answered):
    answered(row)


def test_a_database_without_its_driver(answered, monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)  # as if it were not installed
    missing = "its driver psycopg is not installed: pip install psycopg"
    answered(study("--storage postgresql://me@localhost/studies", missing))


@pytest.mark.skipif(find_spec("psycopg") is None, reason="no driver of PostgreSQL")
def test_a_database_that_does_not_answer(answered):
    storage = "postgresql://me@127.0.0.1:9/studies"
    answered(study(f"--storage {storage}", f"{storage} ... the database cannot be used"))
