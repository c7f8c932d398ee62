"""``python -m specexp.init FOLDER``: creates an experiment for your own model and prompts, ready to run."""

from __future__ import annotations

import argparse
import json
import re
import shlex
import shutil
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import TYPE_CHECKING, Any

import yaml

from specexp.base.messages import counted, restated, shown
from specexp.commands.engine_study import STUDIED, EngineStudy, engine_study, vllm_python
from specexp.config.command import Options, answered, check_writable
from specexp.config.config import check_folder_name
from specexp.config.layers import ConfigError
from specexp.config.next_step import command_line
from specexp.engines.settings import ENGINES, runs_in
from specexp.models.sources import (
    PairError,
    check_reachable,
    check_source,
    sources_of,
    stated_context,
    stated_layers,
)

if TYPE_CHECKING:
    from specexp.data import Prompt

# with fewer, a search on half of the prompts and a confirmation on the rest measure only noise
FEWEST_PROMPTS = 6
_SEARCHED, _CONFIRMED = 16, 24  # prompts for a search and its confirmation, if there are enough
_EXAMPLES = 50
_SHUFFLE_SEED = 0
_MINUTES = 10
_NEW_TOKENS = 128
_SHIPPED = ("stdlib", "smollm2", "smollm2.gguf")
_DTYPES = ("bfloat16", "float16", "float32")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    given = _parser().parse_args(arguments)
    return answered(lambda: _act(given))


def _act(given: argparse.Namespace) -> int:
    if not re.fullmatch(r"(cpu|cuda|mps|xpu|hpu|xla)(:\d+)?", given.device):  # importing torch takes seconds
        raise ConfigError(f"--device must be a torch device such as cpu or cuda:1, got {given.device!r}")
    if not 0 <= given.temperature <= 10:
        raise ConfigError(f"--temperature must be from 0 (greedy) to 10, got {given.temperature}")
    if given.temperature and given.engine in STUDIED:
        raise ConfigError(
            f"--temperature must be 0 with --for {given.engine}, since its answers are compared token by token"
        )
    target, draft = sources_of(given.target, given.draft)
    if draft == target:
        raise ConfigError(f"--draft must be another model than --target, got {given.draft}")
    folder = Path(given.folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"FOLDER must be new or an empty folder, got {folder}")
    check_folder_name(folder.name, ConfigError("FOLDER"))  # the study has the folder's name
    check_writable(folder, ConfigError("FOLDER"))
    count = _count_prompts(given)  # before models, because importing transformers takes seconds
    if given.device != "cpu":
        _warn_of_device(given.device)
    for role, source in (("target", given.target), ("draft", given.draft)):
        if source not in (None, *_SHIPPED):
            _check_model(role, source)
    _check_folders(given.target, given.draft)
    given.target, given.draft = (source and _from_anywhere(source) for source in (given.target, given.draft))
    files, decisions = _files(folder, given, count)
    for file in _write(folder, files):
        print(file)
    for decision in decisions:
        print(decision)
    print(f"Next: cd {shlex.quote(str(folder))} && {command_line('sweep', 'experiment.yaml', '--dry-run')}")
    return 0


def _check_model(role: str, source: str) -> None:
    """Raise ConfigError for a source that is wrong anywhere, and warn of one that this machine cannot reach."""
    source = sources_of(source)[0]  # the name of an embedded model is a folder's
    with restated(PairError, lambda error: ConfigError(f"--{role}: {error}")):
        check_source(role, source)
    try:
        check_reachable(role, source)
    except PairError as error:  # the study may run elsewhere
        print(f"warning: --{role}: {error}", file=sys.stderr)


def _warn_of_device(device: str) -> None:
    """Warn of a device that this machine lacks. The study may run elsewhere."""
    from specexp.models.pair import check_device

    try:
        check_device(device)
    except PairError as error:
        print(f"warning: --device: {error}, so the study cannot run here", file=sys.stderr)


def _check_folders(target: str, draft: str | None) -> None:
    """Raise ConfigError if models on this machine cannot be loaded together. No weights are read."""
    from specexp.models.pair import load_pair

    sources = [source for source in sources_of(target, draft) if source is not None]
    if (draft is None and target in _SHIPPED) or not all(Path(source).exists() for source in sources):
        return

    with restated(PairError, lambda error: ConfigError(f"--{error.argument}: {error}")):
        load_pair(target, draft, weights=False)


def shipped(file: str) -> Path:
    """Return the path of a file shipped with specexp, in a checkout or a wheel, such as ``experiments/demo.yaml``."""
    return next(one for folder in Path(__file__).parents if (one := folder / file).exists())


def _from_anywhere(source: str) -> str:
    """Make an existing path absolute, because commands run in the new folder. Hub ids are returned unchanged."""
    return str(Path(source).resolve()) if Path(source).exists() else source


def _count_prompts(given: argparse.Namespace) -> int:
    """Return the number of prompts; raises ConfigError if they cannot be read, or are too few for a study."""
    from specexp.data import OwnPrompts, PromptSetError, Workload

    if given.prompts is None:
        return _EXAMPLES
    prompts = OwnPrompts(_from_anywhere(given.prompts))
    try:
        rows = Workload(prompts, unusable=given.unusable, field=given.field).rows()
    except PromptSetError as error:
        why = re.sub(r"(?:--)?data\.(field|unusable):?", r"--\1", str(error))
        raise ConfigError(f"--prompts: {why}") from error
    count = len(rows)
    texts = Counter((str(row["context"]), str(row["structured_outputs"]), *row["turns"]) for row in rows)
    if len(texts) < count:
        repeated = texts.most_common(1)[0][0]
        raise ConfigError(
            f"--prompts: {given.prompts} must have different prompts for the search and the confirmation, but "
            f"{count - len(texts)} of {count} repeat the text of an earlier one, such as {shown(repeated[2])}"
        )
    if count < FEWEST_PROMPTS:
        raise ConfigError(
            f"--prompts: {given.prompts} must have at least {FEWEST_PROMPTS} prompts for a search and a confirmation, "
            f"better {_SEARCHED + _CONFIRMED}, got {count}"
        )
    return count


def _files(folder: Path, given: argparse.Namespace, count: int) -> tuple[dict[str, str], list[str]]:
    """Return the text of each file in the new folder, keyed by file name, and lines about the decisions."""
    from specexp.data import StdlibFunctions

    files = {}
    if given.prompts is None:
        prompts = "prompts.jsonl"
        rows = StdlibFunctions("validation").load().select(range(count))
        # works both as a user turn and, without a chat template, as code to continue
        texts = [f"# Complete this Python function.\n\n{row['turns'][0]}" for row in rows]
        files[prompts] = "".join(json.dumps({"prompt": text}) + "\n" for text in texts)
    else:
        prompts = _from_anywhere(given.prompts)
    if count < _SEARCHED + _CONFIRMED:
        print(f"{count} prompts are few: intervals will be wide. {_SEARCHED + _CONFIRMED} are enough.")
    study, methods, searches = _searched(given)
    searched, confirmed = _split(count)
    why = "set by --dtype"
    if given.dtype is None:
        given.dtype, why = _dtype_of(given.target)
    decisions = [
        f"dtype: {given.dtype} ({why})",
        f"chat template: {_template_line(given, prompts, files.get(prompts), count)}",
        f"prompts: {searched} for the search and {confirmed} others for the confirmation, of {count}",
        f"time: about {_MINUTES} minutes (sweep.minutes), {_NEW_TOKENS} new tokens a prompt",
        *searches,
    ]
    return {
        "experiment.yaml": _experiment(folder.name, given, prompts, count, study),
        **methods,
        "README.md": _readme(folder, given),
        **files,
    }, decisions


def _searched(given: argparse.Namespace) -> tuple[EngineStudy | None, dict[str, str], list[str]]:
    """Return what the study searches: an engine's settings, or methods of ours as a file by its name; and lines."""
    if given.engine in STUDIED:
        file = shipped(f"sweeps/{STUDIED[given.engine]}")
        study = engine_study(given.engine, file, given.target, given.draft, given.device)
        others = {"for want of a draft model, a head or an artifact": study.lacking}
        lines = [_choices_line("settings", study.kept, others)]
        python = study.sections["engine"]["init_args"].get("python")
        if given.engine == "vllm":
            absent = "not found: set engine.init_args.python to the interpreter of vLLM's environment (docs/vllm.md)"
            lines.append(f"python: {python or absent}")
        return study, {}, lines
    shared = shipped("sweeps/methods.yaml").read_text(encoding="utf-8")
    methods, kept, dropped, foreign = usable_methods(
        shared, given.draft is not None, given.target == "stdlib", given.engine, _verifier(given)
    )
    others = {"for want of a draft model or heads": dropped, f"since {given.engine} has none of them": foreign}
    lines = [_choices_line("methods", kept, others)]
    if given.engine is not None:
        lines.append(f"the study decodes in specexp, and its speedups are of that, not of {given.engine}")
    return None, {"methods.yaml": _with_fewer_layers(methods, given.target)}, lines


def _with_fewer_layers(text: str, target: str) -> str:
    """Return the text of ``methods.yaml`` whose drafts use fewer layers than the target has, if that is known."""
    layers = stated_layers(sources_of(target)[0])
    if layers is None:
        return text
    range_of_layers = r"(drafter\.init_args\.layers: \{type: int, low: 1, high: )(\d+)"
    return re.sub(range_of_layers, lambda found: f"{found[1]}{max(min(int(found[2]), layers - 1), 1)}", text)


def _choices_line(kind: str, kept: Sequence[str], others: Mapping[str, Sequence[str]]) -> str:
    """Return a line on the choices that a study searches and on those that it lacks, by reason."""
    count = len(kept) + sum(map(len, others.values()))
    lacking = [f"left out {why}: {', '.join(names)}" for why, names in others.items() if names]
    return "; ".join([f"{kind}: {len(kept)} of {count}", *lacking])


def _split(count: int) -> tuple[int, int]:
    """Return the numbers of prompts for a search and its confirmation."""
    searched = min(_SEARCHED, count // 2)  # the other half is for the confirmation
    return searched, min(_CONFIRMED, count - searched)


def _dtype_of(target: str) -> tuple[str, str]:
    """Return the dtype for a target, and the reason: a local folder keeps the dtype of its configuration."""
    with suppress(OSError, ValueError):
        settings = json.loads((Path(target) / "config.json").read_text(encoding="utf-8"))
        if (dtype := settings.get("dtype") or settings.get("torch_dtype")) in _DTYPES:
            return dtype, "as in the target's config.json; --dtype changes it"
    return _DTYPES[0], "the default; --dtype changes it"


def _template_line(given: argparse.Namespace, prompts: str, text: str | None, count: int) -> str:
    """Return the use of the target's chat template, with the rendered end of the first prompt.

    The study's prompts, of ``count``, are rendered, with a warning if they are too long.
    """
    from specexp.data import OwnPrompts, PromptSetError, Workload
    from specexp.models.pair import load_tokenizer
    from specexp.models.smollm2 import smollm2_file

    source, _ = sources_of(given.target)
    try:
        if source == str(smollm2_file()) and not smollm2_file().is_file():
            return "unknown until the target is fetched"
        check_reachable("target", source)
    except PairError:
        return "unknown until the target can be read"

    with TemporaryDirectory() as folder:
        if text is not None:
            prompts = str(Path(folder, prompts))
            Path(prompts).write_text(text, encoding="utf-8")
        options = {
            "unusable": given.unusable,
            "chat_template_kwargs": given.template_arguments,
            "field": given.field,
        }
        most = sum(_split(count))
        workload = Workload(OwnPrompts(prompts), max_prompts=most, shuffle_seed=_SHUFFLE_SEED, **options)
        try:
            _warn_of_length(workload.load(load_tokenizer(given.target)), stated_context(source))
        except PairError as error:
            raise ConfigError(f"--target: {error}") from error
        except PromptSetError as error:
            option = "--template-arguments" if "chat_template_kwargs" in str(error) else "--prompts"
            raise ConfigError(f"{option}: {error}") from error
    sentence = "".join(workload.preparation.chat_template()).removeprefix("Chat template: ").rstrip(".")
    return sentence or "none, so prompts are continued as text"


def _warn_of_length(prompts: Sequence[Prompt], limit: int | None) -> None:
    """Warn of prompts that leave too little of a target's context of ``limit`` tokens for an answer."""
    most = max(len(prompt.token_ids) for prompt in prompts)
    if limit is not None and most + _NEW_TOKENS > limit > _NEW_TOKENS:
        long = sum(len(prompt.token_ids) + _NEW_TOKENS > limit for prompt in prompts)
        print(
            f"warning: --prompts: {long} of {counted(len(prompts), 'prompt')} (up to {most} tokens) leave less than "
            f"{_NEW_TOKENS} of the target's {limit} tokens for an answer: set data.max_prompt_tokens: "
            f"{limit - _NEW_TOKENS} and data.too_long in experiment.yaml",
            file=sys.stderr,
        )


def _verifier(given: argparse.Namespace) -> dict[str, Any]:
    if given.temperature:
        return {"class_path": "KeyedSampling", "init_args": {"temperature": given.temperature}}
    return {"class_path": "Greedy"}


def usable_methods(
    text: str, has_draft: bool, is_embedded: bool, engine: str | None, verifier: dict[str, Any]
) -> tuple[str, list[str], list[str], list[str]]:
    """Remove methods from the text of ``methods.yaml``, with their settings.

    Returns the text and three lists of names: the kept methods, those that lack a draft model or heads, and those that
    do not run in ``engine`` with this verifier.
    """
    sweep = yaml.safe_load(text)["sweep"]
    choices = sweep["space"]["method"]["choices"]
    missing = [] if is_embedded else ["stdlib:", *(["DraftModel"] if not has_draft else [])]
    lacking = [one["name"] for one in choices if any(word in str(one) for word in missing)]
    foreign = [
        one["name"]
        for one in choices
        if engine is not None and one["name"] not in lacking and engine not in runs_in({**one, "verifier": verifier})
    ]
    dropped = [*lacking, *foreign]
    keys = {key for known in sweep["enqueue"] if known["method"] not in dropped for key in known}
    unknown = {known["name"] for known in sweep["enqueue"] if known["method"] in dropped}
    lines, skips = [], False
    for line in text.splitlines(keepends=True):
        entry = re.match(r" +- {?name: ([^,#\n]*[^ ,#\n])", line)
        key = re.match(r"    ((?:drafter|builder|controller)\.\S+): ", line)
        if entry is not None:
            skips = entry[1] in (unknown if line.startswith("    - ") else dropped)
        elif re.match(r" {,4}\S", line):
            skips = key is not None and key[1] not in keys
        if not (skips or line.startswith("#")):
            lines.append(line)
    return "".join(lines), [one["name"] for one in choices if one["name"] not in dropped], lacking, foreign


def _write(folder: Path, files: dict[str, str]) -> list[Path]:
    """Write the folder atomically and return its files."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = Path(mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        for name, text in files.items():
            (made / name).write_text(text, encoding="utf-8")
        made.chmod(0o755)  # mkdtemp makes it private
        made.replace(folder)
    except OSError:
        shutil.rmtree(made, ignore_errors=True)
        raise
    return [folder / name for name in files]


def _experiment(name: str, given: argparse.Namespace, prompts: str, count: int, study: EngineStudy | None) -> str:
    searched, confirmed = _split(count)
    draft = {} if given.draft is None else {"draft": given.draft}
    options = {"field": given.field, "chat_template_kwargs": given.template_arguments}
    data = {name: value for name, value in options.items() if value is not None}
    if given.unusable != "refuse":
        data["unusable"] = given.unusable
    dtypes = {"target_dtype": given.dtype, "draft_dtype": given.dtype}
    question = "Which method is fastest for this model and these prompts here, and with which setting?"
    if study is not None:
        question = f"With which settings does {given.engine} speculate fastest for this model and these prompts here?"
    parts: dict[str, Any] = {"baselines": ["plain"]}  # Hugging Face's loop may take more time than all candidates
    if study is not None:
        parts = study.sections
    content = {
        **({"compose": ["methods.yaml"]} if study is None else {}),
        "name": name,
        "question": question,
        "pair": {"target": given.target, **draft, **dtypes, "device": given.device},
        "data": {
            "prompts": prompts,
            **data,
            "max_prompts": searched,
            "shuffle_seed": _SHUFFLE_SEED,
            "chat_template": "auto",
        },
        "verifier": _verifier(given),
        "generation": {"max_new_tokens": _NEW_TOKENS, "seed": 0},
        **parts,
        "sweep": {
            "minutes": _MINUTES,
            **parts.get("sweep", {}),
            "confirm": {"data": {"max_prompts": confirmed}},
        },
    }
    return (
        "# python -m specexp.sweep experiment.yaml\n"
        "# Every key is explained by python -m specexp.sweep experiment.yaml --help KEY.\n"
        + yaml.safe_dump(content, sort_keys=False, width=110, default_flow_style=None)
    )


def _readme(folder: Path, given: argparse.Namespace) -> str:
    run, artifacts = (shlex.quote(f"{kind}/{folder.name}") for kind in ("runs", "artifacts"))
    commands = f"""
```bash
cd {shlex.quote(str(folder))}
python -m specexp.doctor                                  # what this machine can do
python -m specexp.sweep experiment.yaml --dry-run         # everything but the weights: finds mistakes in seconds
python -m specexp.sweep experiment.yaml                   # search, confirmation on other prompts, artifact
"""
    if given.engine in STUDIED:
        python = vllm_python() if given.engine == "vllm" else None
        own = f" --engine.init_args.python {shlex.quote(python)}" if python else ""
        return f"""# The fastest speculation of {given.engine} with `{given.target}`
{commands}python -m specexp.verify {artifacts}/best-tree --for {given.engine}{own}  # is its output the same without?
python -m specexp.export {artifacts}/best --to {given.engine}  # if it is faster: its settings, a server
```

Each setting is compared, prompt by prompt and token by token, with the engine's own plain decoding.
"""
    drafting = " and its draft" if given.draft else ""
    has_draft = given.draft or given.target == "stdlib"  # the embedded target has its own draft
    draft = ", pair.draft" if has_draft else ""
    models = shlex.join([given.target, *(["--draft", given.draft] if given.draft else [])])
    second = f", {given.draft!r}" if given.draft else ""
    last = f"python -m specexp.serve {artifacts}/best --target {models}  # if it is faster: a server with OpenAI's API"
    if given.engine:
        last = f"python -m specexp.export {run} --to {given.engine}  # its settings"
    return f"""# The fastest lossless decoding of `{given.target}`{drafting}
{commands}python -m specexp.verify experiment.yaml --artifact {artifacts}/best-tree  # is its output the target's own?
{last}
```

```python
import specexp
from specexp.bench.arm import eos_of
from specexp.data import first_turn_ids

pair = specexp.load_pair({given.target!r}{second}, device={given.device!r}, target_dtype={given.dtype!r})
decoder = specexp.load_artifact("artifacts/{folder.name}/best-tree").decoder(pair.target{draft})
prompt = first_turn_ids(pair.tokenizer, "...")  # with the chat template if there is one, as in the study
ends = eos_of(pair.tokenizer, pair.target)  # the end of a turn too, as in the study
result = decoder.generate(prompt, max_new_tokens=128, eos_token_id=ends)
print(pair.tokenizer.decode(result.token_ids))
```
"""


def _mapping(text: str) -> dict[str, Any]:
    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError:
        found = None
    if not isinstance(found, dict):
        example = """'{"enable_thinking": false}'"""
        raise argparse.ArgumentTypeError(f"must be a JSON object or a YAML mapping, such as {example}, got {text!r}")
    return found


def _parser() -> argparse.ArgumentParser:
    parser = Options(
        prog="python -m specexp.init",
        description="Write a folder with everything to find the fastest lossless decoding of a model: an experiment, "
        "the methods to search, prompts, and the commands.",
    )
    files = ".jsonl, .json, .txt, .csv, .parquet, a folder or hub id; by default embedded examples"
    add = parser.add_argument
    add("folder", metavar="FOLDER", help="new folder")
    add("--target", default="stdlib", help="hub id, folder or GGUF file; by default the embedded model")
    add("--draft", help="its draft model, with the same vocabulary; by default the embedded target's own")
    add("--device", default="cpu", help="cpu (the default), cuda, cuda:1, ...")
    add(
        "--dtype",
        choices=_DTYPES,
        help="dtype of the weights; by default that of a folder's config.json, or bfloat16",
    )
    add(
        "--for", dest="engine", choices=tuple(ENGINES), help="the engine to tune; sglang, ...: methods that it runs too"
    )
    add("--prompts", metavar="FILE", help=files)
    add("--field", help="the field or column with the prompts; recognized if left out")
    add(
        "--unusable",
        default="refuse",
        choices=("refuse", "skip"),
        help="rows that cannot be read; refuse is the default",
    )
    add(
        "--template-arguments",
        type=_mapping,
        metavar="YAML",
        help="variables of the chat template, such as '{\"enable_thinking\": false}'; none by default",
    )
    add("--temperature", type=float, default=0.0, help="sampling temperature; 0 (the default) is greedy")
    return parser
