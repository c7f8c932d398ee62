"""What the folder holds, written whole or not at all."""

from __future__ import annotations

import json
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp

import yaml

from specexp.config.config import check_folder_name
from specexp.config.explain import schema_text
from specexp.config.layers import ConfigError
from specexp.core.messages import counted

FEWEST_PROMPTS = 6
"""A search on half of them and a confirmation on the other half say nothing with fewer."""
_SEARCHED, _CONFIRMED = 16, 24
"""Prompts of a search, and of its confirmation, where there are as many."""
_EXAMPLES = 50


@dataclass(frozen=True)
class Start:
    """What somebody wants to make fast.

    Attributes:
        target: Model as ``pair.target`` takes it.
        draft: Its draft model; None where there is none.
        device: Where both run.
        dtype: Of the target's weights.
        prompts: A file, folder or hub id of prompts; None takes functions of the standard library as examples.
        temperature: Of the sampling; 0 is greedy.
    """

    target: str
    draft: str | None = None
    device: str = "cpu"
    dtype: str = "bfloat16"
    prompts: str | None = None
    temperature: float = 0.0


def write_folder(folder: Path, start: Start) -> list[Path]:
    """Write the experiment, the methods it searches, the prompts, and what to type.

    Args:
        folder: New, or empty.
        start: What it is for.

    Returns:
        The files.

    Raises:
        ConfigError: The folder holds something, or the prompts cannot be read or are too few.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"FOLDER: {folder} is there and not empty; name a new one")
    check_folder_name(folder.name, ConfigError("FOLDER"))  # the study is called so
    path, count, examples = _prompts(start)
    files = {
        "experiment.yaml": _experiment(start, folder.name, path, count),
        "methods.yaml": _methods(),
        "README.md": _readme(folder, start),
        "schema.json": schema_text(),  # editors complete and check the experiment by it
    }
    if examples:
        files["prompts.jsonl"] = examples
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = Path(mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        for name, text in files.items():
            (made / name).write_text(text, encoding="utf-8")
        made.chmod(0o755)
        made.replace(folder)
    except OSError:
        shutil.rmtree(made, ignore_errors=True)
        raise
    return [folder / name for name in files]


def from_anywhere(source: str) -> str:
    """A path that is the same from the new folder, where the commands are typed; a hub id as it is."""
    return str(Path(source).resolve()) if Path(source).exists() else source


def _prompts(start: Start) -> tuple[str, int, str]:
    """Where the prompts are, how many there are, and the examples' text where none are given."""
    from specexp.data import OwnPrompts, PromptSetError, StdlibFunctions

    if start.prompts is None:
        texts = [row["turns"][0] for row in StdlibFunctions("validation").load().select(range(_EXAMPLES))]
        return "prompts.jsonl", _EXAMPLES, "".join(json.dumps({"prompt": text}) + "\n" for text in texts)
    path = from_anywhere(start.prompts)
    try:
        count = len(OwnPrompts(path).load())
    except PromptSetError as error:
        raise ConfigError(f"--prompts: {error}") from error
    if count < FEWEST_PROMPTS:
        raise ConfigError(
            f"--prompts: {start.prompts} has {counted(count, 'prompt')}; a search and a confirmation on others need "
            f"{FEWEST_PROMPTS} at least, and {_SEARCHED + _CONFIRMED} make a good one"
        )
    return path, count, ""


def _experiment(start: Start, name: str, prompts: str, count: int) -> str:
    searched = min(_SEARCHED, count // 2)
    pair = {
        "target": start.target,
        "draft": start.draft,
        "target_dtype": start.dtype,
        "draft_dtype": start.dtype,
        "device": start.device,
    }
    verifier = {"class_path": "KeyedSampling", "init_args": {"temperature": start.temperature}}
    content = {
        "compose": ["methods.yaml"],
        "name": name,
        "question": "Which method is fastest for this model and these prompts here, and with which setting?",
        "pair": {key: value for key, value in pair.items() if value is not None},
        "data": {"prompts": prompts, "max_prompts": searched, "shuffle_seed": 0},
        "verifier": verifier if start.temperature else {"class_path": "Greedy"},
        "generation": {"max_new_tokens": 128, "seed": 0},
        "sweep": {
            "confirm": {"data": {"max_prompts": min(_CONFIRMED, count - searched)}},
        },
    }
    return (
        "# yaml-language-server: $schema=schema.json\n"
        "# python -m specexp.sweep experiment.yaml\n"
        "# Every key is explained by python -m specexp.sweep experiment.yaml --help KEY.\n"
        + yaml.safe_dump(content, sort_keys=False, width=110)
    )


def _methods() -> str:
    """The search of ``experiments/fastest.yaml``, which an installed package has beside this file."""
    beside = Path(__file__).with_name("fastest.yaml")
    source = beside if beside.exists() else Path(__file__).parents[3] / "experiments" / "fastest.yaml"
    text = source.read_text(encoding="utf-8")
    return (
        "# The methods that are searched, one branch each: delete a branch and its enqueued setting to leave it out.\n"
        + text[text.index("\nsweep:") + 1 :]
    )


def _readme(folder: Path, start: Start) -> str:
    drafting = " and its draft" if start.draft else ""
    draft = ", pair.draft" if start.draft or start.target == "stdlib" else ""  # the embedded one has a draft
    models = shlex.join([start.target, *(["--draft", start.draft] if start.draft else [])])
    artifacts = shlex.quote(f"artifacts/{folder.name}")
    second = f", {start.draft!r}" if start.draft else ""
    return f"""# The fastest lossless decoding of `{start.target}`{drafting}

```bash
cd {shlex.quote(str(folder))}
python -m specexp.doctor                                  # what this machine can do
python -m specexp.sweep experiment.yaml --dry-run         # everything but the weights: answers mistakes in seconds
python -m specexp.sweep experiment.yaml                   # search, confirmation on other prompts, artifact
python -m specexp.verify experiment.yaml --artifact {artifacts}/best-tree  # is its output the target's own?
python -m specexp.serve {artifacts}/best --target {models}  # an OpenAI-compatible server
```

```python
import specexp

pair = specexp.load_pair({start.target!r}{second}, device={start.device!r}, target_dtype={start.dtype!r})
decoder = specexp.load_artifact("artifacts/{folder.name}/best").decoder(pair.target{draft})
prompt = pair.tokenizer("...", return_tensors="pt").input_ids
result = decoder.generate(prompt, max_new_tokens=128, eos_token_id=pair.tokenizer.eos_token_id)
print(pair.tokenizer.decode(result.token_ids))
```
"""
