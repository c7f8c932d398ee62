"""The table of wrong inputs: files, command lines, prompts, studies and artifacts, each with its sentence."""

import gzip
import json
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from helpers.first_hour import FILE, QUESTIONS, SWEEP, Row, dry, file, study, table
from helpers.golden import GOLDEN

LENGTH = "builder.init_args.length"
RANGE, BACK, ZERO = (f"{{type: int, low: {low}, high: {high}}}" for low, high in ((1, 3), (9, 3), (0, 3)))
REPLAY = "--backend replay --recording nowhere"
REJECTS = "--verifier RejectionSampling"
SHARES = "shares what it learns between the sequences of Scheduled"
LEARNS_LENGTHS = "--controller Heuristic --controller.init_args.state carry --builder.init_args.candidates drawn"
COSTS = "--latency.target_ms '{1: 10}' --latency.draft_ms '{1: 1}'"


def kept(kind, name):
    """The files of a golden artifact, in another folder."""
    folder = GOLDEN / "artifacts" / kind
    return {f"{name}/{path.relative_to(folder)}": path.read_bytes() for path in folder.rglob("*.*")}


DAMAGED = {**kept("static-tree", "damaged"), "damaged/tree.json": b"[[0],[2],[0,0]] "}
CHANGED = kept("static-tree", "changed")
CHANGED["changed/artifact.json"] = CHANGED["changed/artifact.json"].replace(b'"static-tree"', b'"static-three"')
CONFIRMED = SWEEP.replace("confirm: null", "confirm: {data: {max_prompts: 2}}")
LOOKS = FILE.replace("TokenRecycling", "{class_path: PromptLookup, init_args: {max_ngram: 3}}")
LONGEST = "drafter.init_args.max_ngram: {type: int, low: 1, high: 3}"
SHORTEST = "drafter.init_args.min_ngram: {type: int, low: 1, high: 8, at_most: drafter.init_args.max_ngram}"
LAYERS = (
    FILE.replace("TokenRecycling", "{class_path: EarlyExit, init_args: {layers: 1}}")
    + "sweep: {space: {drafter.init_args.layers: {type: int, low: 1, high: 30}}, confirm: null}\n"
)
DRAFTERS = "{type: categorical, choices: [{name: a, class_path: TokenRecycling}, {name: b, class_path: PromptLookup}]}"
DRAFTED = SWEEP.replace("space: {", f"space: {{drafter: {DRAFTERS}, ")
KNOWN = SWEEP.replace("n_trials: 3", "n_trials: 3, enqueue: [{name: big, builder.init_args.length: 40}]")
NESTED = FILE + "sweep: {space: {builder: {init_args: {length: {type: int, low: 1, high: 4}}}}}\n"
LEARNS = FILE + "controller: QLearning\nfit: {epochs: 2}\n"
ROWS = (
    "model: {class_path: specexp.fit.suffix_corpus.SuffixCorpus, init_args: {tokens: 10}}\n"
    "data: {class_path: experiments.heads.text_rows.TextRows, init_args: {tokenizer_from: TOKENIZER, texts: TEXTS}}\n"
    "work_dir: work\n"
)
TEXTS = ROWS.replace("TOKENIZER", str(Path(__file__).parents[2] / "specexp/models/stdlib/target"))
RECORDED = FILE + "what_if: {files: [o.yaml]}\n"
FILES = [
    file("", "mine.yaml is empty ... sections such as builder"),
    file("- builder\n", "mine.yaml ... list ... a mapping of sections"),
    file("builder:\n\tclass_path: Chain\n", "mine.yaml, line 2: not valid YAML"),
    file(
        "builder: {class_path: Chain}\n  seed: 1\n",
        "mine.yaml, line 2 ... check the indentation of this line",
    ),
    file(
        "data:\n  max_prompts 3\n  offset: 1\n",
        "mine.yaml, line 2: not valid YAML (a colon is missing: write 'max_prompts: 3'",
    ),
    file(
        "drafter: A\nbuilder\n  class_path: B\nname: x\n", "mine.yaml, line 2 ... a colon is missing: write 'builder:'"
    ),
    file("builder:\n  class_path Chain\n", "builder.class_path ... a colon is missing: write 'class_path: Chain'"),
    file("generation:\n  seed 3\n", "generation must be a mapping, got 'seed 3'; a colon is missing: write 'seed: 3'"),
    file("baselines:\n  - plain\nname: a: b\n", "mine.yaml, line 3: not valid YAML (mapping values are not allowed"),
    dry("--drafter.class_path 'prompt lookup'", "no Drafter is called 'prompt lookup'; did you mean 'PromptLookup'?"),
    file("drafter A", "mine.yaml is a str ... a colon is missing: write 'drafter: A'"),
    file("name: !!python/object/apply:os.system [id]\n", "mine.yaml, line 1 ... not valid YAML"),
    file(b"\xff\xfe\x00", "mine.yaml cannot be read ... save the file as UTF-8"),
    Row("run folder --dry-run", "folder must be a YAML file, but it is a folder", {"folder/x": ""}),
    Row(
        "verify a/best",
        "a/best must be a YAML file, but it is an artifact; name the study's file",
        {"a/best.json": "{}"},
    ),
    Row(
        "sweep kept/artifact.json --dry-run",
        "kept/artifact.json must be a YAML file, but it is an artifact's; ... --artifact kept; serve and export take",
        kept("static-tree", "kept"),
    ),
    Row(
        "run a/best.json",
        "must be a YAML file, but it is an artifact's ... a/best",
        {"a/best.json": '{"version": "v1"}'},
    ),
    Row(
        "run mine.yaml --artifact kept/artifact.json",
        "kept/artifact.json: there is no such artifact folder, it is a file; name kept",
        kept("static-tree", "kept"),
    ),
    Row("export a/best --to hf", "'a/best' is an artifact: name the model's folder or hub id", {"a/best.json": "{}"}),
    Row("run runs/mine --dry-run", "did you mean 'runs/mine/config.yaml'?", {"runs/mine/config.yaml": FILE}),
    file(FILE.replace("tokens: 8", "tokens: 010"), "mine.yaml, line 5 ... YAML reads 010 as 8"),
    Row("run min.yaml", "min.yaml ... mine.yaml"),
    file(FILE + "compose: other.yaml\n", "other.yaml"),
    dry("--pair.target ./nowhere", "pair.target ... nowhere"),
    dry("--pair.draft /nowhere/model", "command line: pair.draft: draft '/nowhere/model'"),
    dry(f"{REPLAY} --latency.name a --latency.target_ms '{{1: 2.0}}'", "recording ... nowhere"),
    dry("--latency.name a --latency.target_ms '{2: 1}'", "latency ... target_ms"),
    dry("--artifact nowhere", "artifact ... nowhere"),
    Row("run mine.yaml --artifact damaged --dry-run", "damaged ... tree.json ... sha256", DAMAGED),
    Row("export changed --to vllm", "changed ... artifact.json ... sha256", CHANGED),
    Row("export table --to vllm", "vllm ... q-table", kept("q-table", "table")),
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
    file(FILE + "pair.target: stdlib\n", "pair.target is unknown; a file nests its keys: pair: {target: ...}"),
    file(
        FILE + "arms: {a: {builder: {init_args: {len: 4}}}}\n",
        "mine.yaml: arms.a: builder.init_args.len is unknown; did you mean 'builder.init_args.length'?",
    ),
    file(FILE + "bulder: Chain\n", "mine.yaml ... bulder ... builder"),
    dry("--generation.max_tokens 3", "generation.max_tokens ... max_new_tokens"),
    dry("--builder.init_args.lenght 3", "builder.init_args.lenght ... length"),
    file(FILE + "name: a\nname: b\n", "line 9 ... name"),
    Row("run mine.yaml --dryrun", "--dryrun ... --dry-run"),
    dry("--a-a --builder Chain", "--builder must be left out, because --a-a has plain decoding alone"),
    dry("--require-gain", "--require-gain is an option of python -m specexp.sweep only"),
    dry("--minutes 3", "--minutes is an option of python -m specexp.sweep only"),
    dry("--sweep.minutes 3", "--sweep.minutes must be left out, because it is used only by specexp.sweep"),
    dry("--figure pie", "figure must be one of speedup, curves, phases, got 'pie'"),
]
CLASSES = [
    file(
        "model: {class_path: Nope}\ndata: {class_path: X}\n",
        "mine.yaml: model.class_path ... LightningModule ... 'Nope'; write its module too",
        "fit",
    ),
    file(TEXTS.replace("TEXTS", "nowhere.jsonl"), "mine.yaml: data: nowhere.jsonl: no such file", "fit"),
    Row(
        "fit mine.yaml --dry-run",
        "mine.yaml: data: texts.jsonl: line 2 is not JSON",
        {"mine.yaml": TEXTS.replace("TEXTS", "texts.jsonl"), "texts.jsonl": '{"text": "a"}\n{"te'},
    ),
    file(
        ROWS.replace("TEXTS", "null").replace("TOKENIZER", "nowhere"),
        "data: tokenizer_from must be a folder or hub id with a tokenizer, got 'nowhere'",
        "fit",
    ),
    file(
        TEXTS.replace("TEXTS", "null").replace("work\n", "question.jsonl/w\n"),
        "mine.yaml: work_dir: question.jsonl",
        "fit",
    ),
    dry("--analyses '[Nope]'", "no Analysis is called 'Nope' ... Ablation"),
    dry("--controller ConfidenceThreshold", "ConfidenceThreshold ... TokenRecycling"),
    dry("--drafter TokenRecycler", "drafter ... TokenRecycler ... TokenRecycling"),
    dry("--drafter specexp.builders.Chain", "builders.Chain ... Drafter"),
    dry("--data.prompts RawText", "data.prompts.init_args.path"),
    file("drafter: TokenRecycling\n", "drafter ... builder"),
    file("drafter: {init_args: {k: 3}}\n", "drafter.class_path is missing"),
    file("drafter: 3\n", "drafter must be a Drafter given as class_path and init_args, got 3"),
    dry("--builder TokenRecyclingTree --drafter PromptLookup", "builder ... 8"),
    dry("--analyses [TreeSizes,TreeSizes]", "analyses.1 writes tree_sizes, which an earlier"),
    dry("--analyses [ReasoningTable]", "analyses.0 looks at groups of sequences"),
    dry("--reasoning.search BreadthFirst --reasoning.search.init_args.breadth 0", "must be >= 1, got 0"),
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
    dry("--question no", "question must be a text, got False (YAML reads off and no as false)"),
    dry("--tracking.mode off", "'online', 'offline' or 'disabled', got False (YAML reads off ... mean 'disabled'?"),
    dry("--tracking.mode '\"off\"'", "'online', 'offline' or 'disabled', got 'off'; did you mean 'disabled'?"),
    dry("--tracking.mode offline --tracking.project '\"\"'", "tracking.project ... got ''"),
    Row("dashboard sweep.yaml --entity a/b --dry-run", "--entity ... without any of / ... got 'a/b'"),
    file(FILE + "float32_prompts: many\n", "float32_prompts ... many"),
    dry("--drafter.init_args.k 65", "drafter.init_args.k ... 65 ... 64"),
    dry("--generation.samples 3 --verifier Greedy", "generation.samples must be 1 with the verifier Greedy ... got 3"),
    dry("--verifier.init_args.temperature=-1", "init_args.temperature ... -1"),
    dry("--generation.seed null", "generation.seed ... null"),
    dry("--generation.samples true", "generation.samples ... True"),
    dry("--pair.target_dtype bfloat", "target_dtype ... 'bfloat' ... bfloat16"),
    Row("run mine.yaml --data.max_prompts 99 --dry-run", "max_prompts is 99, but only 6 prompts remain.", code=0),
    Row("profile mine.yaml --profile.prompts 9 --dry-run", "profile.prompts is 9, but only 2 prompts remain.", code=0),
    dry("--profile '{prompts: 9}'", "--profile must be left out, because it is used only by specexp.profile"),
    dry("--profile.prompts 9", "--profile.prompts must be left out, because it is used only by specexp.profile"),
    Row(
        "run sweep.yaml --sweep.n_trials 9",
        "--sweep.n_trials must be left out, because it is used only by specexp.sweep",
    ),
    Row(
        "run mine.yaml --pair.target model --pair.draft_dtype float16 --dry-run",
        "command line: pair.draft_dtype must be left out without a draft model (pair.draft)",
    ),
    dry("--data.max_prompt_tokens 1", "command line: data.max_prompt_tokens: MTBench: prompt '0' has"),
    Row("verify mine.yaml --verify.level 2 --dry-run", "verify.level must be < 1, got 2"),
    Row("verify mine.yaml --data.offset 99 --dry-run", "offset must be at most"),
    Row("verify mine.yaml --verifier helpers.lossy.Lawless --dry-run", "Lawless declares no processors"),
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
    study(
        "--sweep.constraints '{max_p99_seconds_per_token: -1}'",
        "sweep.constraints.max_p99_seconds_per_token must be >= 0, got -1",
    ),
    study("--sweep.constraints.max_draft_nodes 0", "sweep.constraints.max_draft_nodes must be >= 1, got 0"),
    file(
        FILE + "sweep: {space: {builder.init_args.length: [1, 2]}}\n",
        "length must be a mapping, such as {type: categorical, choices: [1, 2]}, got a list",
        "sweep",
    ),
    study(
        "--data.prompts copies.jsonl",
        "1 of 2 prompts repeat the text of an earlier prompt",
        files={"copies.jsonl": '{"prompt": "a"}\n' * 2},
        code=0,
    ),
    Row(
        "sweep drafted.yaml --drafter PromptLookup --dry-run",
        "command line: --drafter must be left out or sweep.space changed, because every trial sets it anew",
        {"drafted.yaml": DRAFTED},
    ),
    Row("sweep drafted.yaml --drafter.init_args.k 4 --dry-run", "study drafted", {"drafted.yaml": DRAFTED}, 0),
    study("--builder.init_args.length 2", "--builder.init_args.length must be left out or sweep.space changed"),
    dry("--sweep '{n_trials: 3}'", "--sweep must be left out, because it is used only by specexp.sweep"),
    Row(
        "sweep stepped.yaml --dry-run",
        "study stepped",
        {"stepped.yaml": f"{LOOKS}sweep: {{space: {{{LONGEST}, {SHORTEST}}}, confirm: null}}\n"},
        0,
    ),
    study("--record.to place", "command line: --record.to must be left out, because it is used only by specexp.record"),
    file(LAYERS, "layers.high: EarlyExit: layers must be from 1 to 7, got 30 (the target has 8)", "sweep"),
    Row(
        "sweep confirmed.yaml --dry-run",
        "confirmed.yaml: sweep.confirm.data.max_prompts is 2, but a verdict needs at least 4 prompts.",
        {"confirmed.yaml": CONFIRMED},
        code=0,
    ),
    study("--minutes 0.01", "sweep.minutes is 0.01, but the end of a study alone may take 25 s.", code=0),
    study("--generation.max_new_tokens 1", "is 1, but decoding can be measured only from 8 tokens on.", code=0),
    study("--require-gain", "command line: sweep.require_gain is true ... set sweep.confirm"),
    study("--storage sqlite:////nope/x/study.db", "--storage ... /nope/x"),
    study(
        f"--sweep.sampler '{GRID}'",
        "sweep.sampler ... cannot be used in this study ... builder.init_args.length",
    ),
    study("--sweep.sampler optuna.samplers.GridSampler", "sweep.sampler.init_args.search_space is missing"),
    study(MEDIAN, "command line: sweep.pruner must be null ... set it to null, or objectives to [speedup]"),
    study(
        "--sweep.pruner optuna.pruners.MedianPruner --sweep.objectives '[spedup]'",
        "sweep.objectives: unknown key 'spedup'; did you mean 'speedup'?",
    ),
    study(
        "--sweep.constraints '{max_p99_seconds: 3}'",
        "sweep.constraints: unknown key 'max_p99_seconds'; did you mean 'max_p99_seconds_per_token'?",
    ),
    Row(
        "sweep confirmed.yaml --sweep.confirm.data.max_prompts 9 --dry-run",
        "sweep.confirm.data: max_prompts is 9, but only 4 prompts remain.",
        {"confirmed.yaml": CONFIRMED},
        code=0,
    ),
    study(
        "--sweep.export '{to: kept, kind: q-table}'",
        "sweep.export.kind ... 'q-table' ... composition, static-tree",
    ),
    study(
        f"--n-trials 1 --arms '{{a: {{}}}}' --sweep.enqueue '{TWO}'",
        "Not measured, because sweep.n_trials is 1: two. ... arms: is used by python -m specexp.run sweep.yaml",
        code=0,
    ),
    study(
        "--artifact smollm2:tree --pair.target smollm2 --dry-run",
        "--artifact names one setting, so nothing is searched",
    ),
    Row(
        "sweep confirmed.yaml --data.prompts few.jsonl --data.max_prompts 4 --dry-run",
        "sweep.confirm.data: no prompts are left of 4 prompts after the 4 of the search: set a lower data.max_prompts",
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
    file(FILE + f"sweep: {{space: {{{LENGTH}s: {RANGE}}}}}\n", "mine.yaml ... init_args.length", "sweep"),
    file(FILE + f"sweep: {{space: {{{LENGTH}: {BACK}}}}}\n", f"mine.yaml ... {LENGTH} ... 9 ... 3", "sweep"),
    file(FILE + f"sweep: {{space: {{{LENGTH}: {ZERO}}}}}\n", f"{LENGTH} must be >= 1, got 0", "sweep"),
    Row("sweep mine.yaml --dry-run", "mine.yaml ... sweep"),
    study("--storage ftp://x", "--storage ... ftp"),
    Row("run sweep.yaml --drafter null --dry-run", "no drafter"),
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
        "--endpoint must begin with http:// or https://, got '127.0.0.1:8000'",
    ),
    Row("results runs", "runs must be table.md of a run or confirm.md of a study, but it is a folder", {"runs/a": ""}),
    Row("serve smollm2", "smollm2: there is no such embedded artifact; allowed are smollm2:"),
    Row("serve smollm2:tree --trust numpyy", "trust must be installed packages, got 'numpyy'"),
    Row("serve smollm2:tre", "there is no such embedded artifact; did you mean 'smollm2:tree'?"),
    Row("export smollm2:tre --to vllm", "no such embedded artifact; did you mean 'smollm2:tree'?"),
    Row("profile smollm2", "smollm2 does not exist; name a YAML file first, and a model with --pair.target"),
    Row("demo --smollm2", "demo takes smollm2 or options, got '--smollm2'; did you mean 'smollm2'?"),
    Row("verify --plain http://x", "--plain needs --endpoint URL, the server with speculation"),
    Row(
        "init study --prompts long.jsonl",
        "warning: --prompts: 9 of 9 prompts ... set data.max_prompt_tokens: 1920 and data.too_long in experiment.yaml",
        {"long.jsonl": "".join(f'{{"prompt": "{n} {"word " * 999}"}}\n' for n in range(9))},
        code=0,
    ),
    Row(
        "init study --prompts my.txt",
        "--prompts: ... my.txt: line 1 must be a text in a .txt file, got a JSON object ... rename the file to .jsonl",
        {"my.txt": '{"prompt": "Why?"}\n' * 7},
    ),
    Row("init study --temperature warm", "--temperature must be a number, got 'warm'"),
    Row(
        "init study --template-arguments '{thinking: '",
        "--template-arguments must be a JSON object or a YAML mapping, such as '{\"enable_thinking\": false}', got",
    ),
    Row(
        "init study --template-arguments '{thinking: false}'",
        "--template-arguments: chat_template_kwargs must be left out, since the tokenizer has no chat template",
    ),
    Row("init study --target mine/model --draft mine/model", "--draft must be another model than --target"),
    Row("init study --for vlm", "--for must be one of 'vllm', ... got 'vlm'; did you mean 'vllm'?"),
    Row(
        "doctor none",
        "none has no records.jsonl or confirm.jsonl: name a folder that specexp.run or sweep wrote, or a model",
        {"none/report.md": ""},
    ),
    Row(
        "doctor run",
        "run/records.jsonl, line 1: not a prompt record (Invalid JSON",
        {"run/records.jsonl": "{\n"},
    ),
    Row("doctor nowhere", "model 'nowhere' is neither a local folder nor in the cache"),
    Row("doctor mine.yaml", "must be the folder of a saved model or a .gguf file, but it is another file"),
    Row(
        "init study --prompts my.jsonl",
        "--prompts: my.jsonl must have different prompts ... 6 of 7 repeat the text of an earlier one, such as 'Why?'",
        {"my.jsonl": '{"prompt": "Why?"}\n' * 7},
    ),
    Row(
        "run mine.yaml --shard 0/2 --on local --workers 2",
        "--shard must not be given with --on, which gives each worker its shard",
    ),
    Row("record mine.yaml --record.to r --engine HuggingFace --dry-run", "engine must be left out"),
    Row(
        "profile mine.yaml --engine HuggingFace --dry-run", "the passes of HuggingFace cannot be measured: leave it out"
    ),
    Row("export mine.yaml --to vllm --draft=", "--draft must not be empty"),
    Row("verify --endpoint http://x --plain http://x", "--plain must be another server of the same model"),
    Row("verify mine.yaml --endpoint http://x", "--endpoint takes no configuration file, got mine.yaml"),
    Row("why --endpoint http://x mine.yaml", "no configuration file, got mine.yaml: leave one of them out"),
    Row("why mine.yaml --endpoint http://x --data.offset 1", "no configuration file, got mine.yaml: leave one of"),
    Row("verify --endpoint http://x --data.offset 1", "unrecognized arguments: --data.offset 1"),
    Row(
        "verify --endpoint http://x --plain http://y --tolerance nan",
        "--tolerance must be a number >= 0, got 'nan'",
    ),
    Row(
        "verify --endpoint http://x --plain http://y --seconds=-5",
        "--seconds must be a number >= 0, got '-5'",
    ),
    Row("run --dry-run mine.yaml", "the configuration file must come first, got --dry-run"),
    Row("verify --endpont http://x", "must come first, got --endpont; did you mean '--endpoint'?"),
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
ARMS = [
    file(FILE + f"arms: {{a: {arm}}}\n", sentence)
    for arm, sentence in [
        ("{data: {max_prompts: 1}}", "arms.a.data may override only shuffle_seed"),
        ("{title: plain}", "arms.a.title must be unique, got 'plain', which another"),
        ("{generation: {max_new_tokens: 5}}", "arms.a.generation must be the experiment's"),
        (
            "{drafter: {init_args: {state: preloaded}}}",
            "arms.a: drafter: TokenRecycling: matrix must be given",
        ),
        ("{buidler: Chain}", "arms.a.buidler is unknown ... mean 'arms.a.builder'"),
        (f"{{grid: {{{LENGTH}s: [3]}}}}", f"arms.a.grid: '{LENGTH}s' ... mean '{LENGTH}'"),
        (f"{{grid: {{{LENGTH}: [0]}}}}", "length must be >= 1, got 0"),
        (
            "{reference: hf-assisted, prompt_lookup_num_tokens: 3}",
            "cannot be combined with reference 'hf-assisted'",
        ),
        ("{engine: HuggingFace}", "needs greedy decoding: set verifier to Greedy"),
        ("{engine: LlamaCpp9}", "engine ... LlamaCpp9"),
    ]
]
THEIRS = FILE.replace(FILE.partition("data:")[0], "verifier: Greedy\n")
MODEL = "{class_path: HuggingFace, init_args: {drafts: model"
ENGINES = [
    file(f"{THEIRS}arms: {{a: {{engine: {engine}}}}}\n", sentence)
    for engine, sentence in [
        (
            f"{MODEL}, settings: {{num_assistant_token: 3}}}}}}",
            "mean 'engine.init_args.settings.num_assistant_tokens'",
        ),
        (f"{MODEL}}}}}", "HuggingFace: the settings for drafts=model must be exactly"),
        ("HuggingFace, drafter: PromptLookup, builder: Chain", "drafter is a part of specexp's own loop"),
        (
            "HuggingFace, controller: {class_path: Fixed, init_args: {max_nodes: 3}}",
            "controller is a part of specexp's own loop",
        ),
    ]
]
ENDPOINT = "class_path: OpenAIEndpoint, init_args: {plain_body: {}, "
CHAIN = "class_path: OpenVINO, init_args: {drafts: model, settings: {num_assistant_tokens: 3}}"
EAGER = "class_path: VLLM, init_args: {eager: true, settings: {method: ngram, num_speculative_tokens: 3}}"
TOKENS = "engine.init_args.settings.tokens: {type: int, low: 1, high: 4}"
ENGINE_STUDIES = [
    file(f"{THEIRS}engine: {engine}\nsweep: {{space: {{{space}}}}}\n", sentence, "sweep")
    for engine, space, sentence in [
        (
            f"{{{ENDPOINT}command: 'serve {{port}} {{\"k\": {{tokens}}}}', settings: {{tokens: 3}}}}}}",
            TOKENS,
            "engine: OpenAIEndpoint: command must have {NAME} or doubled braces, got '{k:': write {{ and }}",
        ),
        (f"{{{ENDPOINT}url: 'http://x', settings: {{tokens: 3}}}}}}", TOKENS, "settings must be left out with url"),
        (
            f"{{{CHAIN}}}",
            "engine.init_args.settings.max_ngram_size: {type: int, low: 1, high: 2}",
            "settings.max_ngram_size: no engine of this space sets it, so it would never be drawn",
        ),
        (
            "VLLM",
            f"engine: {{type: categorical, choices: [{{name: n-grams, {EAGER}}}]}}",
            "sweep.space.engine: n-grams: engine.init_args.eager must be False, as for plain decoding ... got True",
        ),
        (
            "null",
            f"engine: {{type: categorical, choices: [{{name: chain, {CHAIN}}}]}}",
            "sweep.space.engine: chain: engine must be set outside of sweep too",
        ),
        (
            "OpenVINO",
            f"engine: {{type: categorical, choices: [{{name: a, {CHAIN}}}, {{name: b, {CHAIN}}}]}}",
            "sweep.space.engine.choices must differ, got the same for 'a' and 'b'",
        ),
    ]
]
TWO_TURNS = QUESTIONS.replace('(a, b):"', '(a, b):", "and?"')
GROUPS = [
    dry(f"--execution Scheduled {options}", sentence, **files)
    for options, sentence, files in [
        (
            "--execution.init_args.n 2 --execution.init_args.verify_batch 3",
            "verify_batch must be at most n=2",
            {},
        ),
        ("--drafter null --builder null", "execution: Scheduled needs a drafter", {}),
        (f"{REJECTS} --drafter.init_args.state carry", f"TokenRecycling {SHARES}", {}),
        (f"{REJECTS} --drafter DraftModel {LEARNS_LENGTHS}", f"Heuristic {SHARES}", {}),
        (f"--latency.name made {COSTS}", "cannot be modelled by latency 'made'", {}),
        ("--analyses [TreeSizes]", "analyses.0 watches single steps", {}),
        ("", "has 2 turns, but execution decodes prompts of one turn", {"question.jsonl": TWO_TURNS}),
    ]
]
SPACE = "execution.init_args.n: {type: int, low: 1, high: 2}, execution: {type: categorical, choices: [Scheduled]}"
GROUPS += [
    Row(
        "sweep mine.yaml --dry-run",
        "has 2 turns, but execution decodes prompts of one turn",
        {"mine.yaml": f"{FILE}sweep: {{space: {{{SPACE}}}}}\n", "question.jsonl": TWO_TURNS},
    ),
    file(
        FILE + "execution: Scheduled\narms: {hf: {reference: hf-prompt-lookup}}\n",
        "arms.hf: 'hf-prompt-lookup' decodes single sequences",
    ),
]

GOOD = '{"prompt": "Why?"}\n'
IMAGE = {"type": "image_url", "image_url": {"url": "x"}}
TOOL = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "tool_calls": [{}]}]}


def message(**message: object) -> dict[str, object]:
    """A row of one message."""
    return {"messages": [message]}


def prompts(content: str | bytes | dict[str, object], sentence: str, name: str = "my.jsonl", code: int = 2) -> Row:
    """A file of prompts that is typed after ``--data.prompts``."""
    text = f"{json.dumps(content)}\n" if isinstance(content, dict) else content
    return Row(f"run mine.yaml --data.prompts {name} --dry-run", sentence, {name: text}, code)


def typed(prompts: str, sentence: str) -> Row:
    """Other options, next to a right file ``my.jsonl``."""
    return Row(f"run mine.yaml --data.prompts {prompts} --dry-run", sentence, {"my.jsonl": GOOD})


PROMPTS = [
    prompts(GOOD + '{"prompt": "Wh', "my.jsonl: line 2 is not JSON"),
    prompts('["a"]\n["b"]\n', """line 1 must be a JSON object, such as {"prompt": "..."}, got ['a']"""),
    prompts({"prompt": "a", "text": "b"}, "row 1 has the fields prompt, text, but ... --data.field prompt"),
    prompts(
        {"input_text": "a"},
        "row 1 has the fields input_text ... prompt, text, question ... field input_text",
    ),
    prompts({"promt": "a"}, "row 1 has the field 'promt'; did you mean 'prompt'? ... or set --data.field promt"),
    prompts(f'{GOOD}{{"text": "b"}}\n', "row 2 must have the field 'prompt', got text"),
    prompts(f'{GOOD}{{"prompt": ""}}\n', "my.jsonl: row 2, key 'prompt': must be a text ... got ''"),
    prompts('{"prompt": "\\ud800"}\n', "my.jsonl: line 1 cannot be read ... surrogates not allowed"),
    prompts('{"id": 1, "prompt": "a"}\n' * 2, "rows 1 and 2 share '1'"),
    prompts(message(role="wizard", content="a"), "messages.0.role must be 'developer'"),
    prompts(message(role="user", content=[IMAGE]), "messages.0.content.0.type must be 'text' ... got 'image_url'"),
    prompts(TOOL, "messages.1.tool_calls.0.function is missing"),
    prompts({"body": {"prompt": [1, 2]}}, "key 'body.prompt': must be a text (token ids are not supported)"),
    prompts('{"prompt": "a", "prompt": "b"}', "my.jsonl: line 1 cannot be read ... key 'prompt' is given twice"),
    prompts("id,prompt\n1\n", "my.csv: row 1, key 'prompt': must be a text ... got ''", "my.csv"),
    prompts("id;prompt\n1;a\n", "my.csv: columns must be separated by commas, got 'id;prompt'", "my.csv"),
    prompts(
        '{"data": [{"prompt": "a"}]}',
        "my.json: the rows must be the file's own list ... field 'data'",
        "my.json",
    ),
    prompts(gzip.compress(GOOD.encode())[:20], "my.jsonl.gz: cannot be read", "my.jsonl.gz"),
    prompts(GOOD, "my.docx: the file name must end in ... .jsonl", "my.docx"),
    Row(
        "run mine.yaml --data.prompts model --dry-run",
        "model: cannot be read (No (supported) data files found",
        {"model/config.json": "{}", "model/model.safetensors": ""},
    ),
    prompts(f'{{"prompt": "{"a " * 9000}"}}\n', "command line: data.prompts: prompt '0' may need", "long.jsonl"),
    prompts(
        {"prompt": "a", "structured_outputs": {"json": {"properties": {"x": {"type": "strin"}}}}},
        "prompt '0': structured_outputs.json.properties.x: Invalid type: strin",
    ),
    prompts(
        {"prompt": "a", "structured_outputs": {"choices": ["b"]}},
        "my.jsonl: prompt '0': structured_outputs: a constraint must have exactly one of the keys",
    ),
    prompts({"prompt": "a", "structured_outputs": "json"}, "must be an object such as {json: SCHEMA}, got 'json'"),
    typed(
        "my.jsonl --data.prompts.init_args.split test",
        "data.prompts.init_args.split ... split must be left out for a file",
    ),
    typed("'*.jsonl'", "patterns are not expanded: name one file or a folder"),
    typed("nope.json", "no such file ... .json, .jsonl ... a hub name (owner/name)"),
    typed("mu.jsonl", "mu.jsonl: no such file ... did you mean 'my.jsonl'?"),
    typed("StdlibFunctions --data.field text", "field is only for OwnPrompts"),
    typed(
        "my.jsonl --data.field txt",
        "command line: data.field: ... row 1 must have the field 'txt', got prompt",
    ),
    typed("my.jsonl --data.offset 9", "data.offset: offset must be at most 0"),
    # read with a remark
    prompts('[{"prompt": "Why?"}]', "my.jsonl: prompts are read from 'prompt'.", code=0),
    prompts(b"\xef\xbb\xbf" + GOOD.encode(), "prompts are read from 'prompt'.", code=0),
    prompts({"body": {"prompt": "a", "max_tokens": 3}}, "max_tokens (1)", code=0),
]
TAKEN = {"taken": ""}
NOTES = {"notes.txt": "what I saw on Monday, at length\n"}
PLACES = [
    dry("--output taken", "output ... taken is not a folder", taken=""),
    Row("run mine.yaml --name taken", "output ... runs/taken is not a folder", {"runs/taken": ""}),
    study("--sweep.export.to taken", "sweep.export.to ... taken is not a folder", files=TAKEN),
    file(FILE + "output: /var/x\n", "mine.yaml: output must be in ... got '/var/x': pass --output /var/x"),
    Row("run mine.yaml --dry-run", "question.jsonl", {"question.jsonl": '{"question_id": 1, "ca'}),
    dry("--latency.artifact gone/best", "gone/best: there is no such artifact folder; python -m specexp.profile FILE"),
    dry(
        "--controller QLearning --controller.init_args.state carry --controller.init_args.table gone/best",
        "gone/best: there is no such artifact folder; python -m specexp.fit FILE writes",
    ),
    study("--storage sqlite:///notes.txt", "--storage ... notes.txt is not an SQLite database", files=NOTES),
    study("--storage sqlite:///folder", "--storage ... folder is not an SQLite", files={"folder/x": ""}),
    study("--storage sqlite://", "--storage ... is forgotten when the process ends"),
    study("--storage postgresql://me:***@host/x", "--storage ... give --storage the URL"),
]
RUNS = [  # without a dry run before
    Row("run mine.yaml --generation.max_new_tokens 1000000000000", "2048 tokens, got 1000000000000"),
]


@table(
    [
        *FILES,
        *KEYS,
        *CLASSES,
        *VALUES,
        *TRAINER,
        *STUDIES,
        *COMMANDS,
        *ARMS,
        *ENGINES,
        *ENGINE_STUDIES,
        *GROUPS,
        *PROMPTS,
        *PLACES,
        *RUNS,
    ]
)
def test_a_wrong_input_is_answered_in_one_sentence(row, answered):
    answered(row)


def test_a_database_without_its_driver(answered, monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)  # as if it were not installed
    missing = "its driver psycopg is not installed: pip install psycopg"
    answered(study("--storage postgresql://me@localhost/studies", missing))


@pytest.mark.skipif(find_spec("psycopg") is None, reason="no driver of PostgreSQL")
def test_a_database_that_does_not_answer(answered):
    storage = "postgresql://me@127.0.0.1:9/studies"
    answered(study(f"--storage {storage}", f"{storage} ... the database cannot be used"))
