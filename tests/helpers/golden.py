"""The golden set: its commands in this process, the comparison with committed results, and its pair of models."""

from __future__ import annotations

import io
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from inspect import isabstract
from pathlib import Path
from pkgutil import walk_packages
from typing import Any

import numpy as np

from helpers.small_models import byte_tokenizer

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden"
EXPECTED = GOLDEN / "expected"
WRITES = os.environ.get("SPECEXP_GOLDEN") == "write"
"""Whether results replace the expected ones instead of being compared with them."""
RELATIVE, ABSOLUTE = 1e-6, 1e-9
"""How far a float may be from the expected one: other processors round differently."""
_SHOWN = 20
COMMANDS = ["config", "dashboard", "doctor", "export", "fit", "init", "profile", "record", "reproduce"]
COMMANDS += ["results", "run", "serve", "sweep", "verify", "what_if", "why"]
HOMES = {"config": "specexp.config.__main__", "reproduce": "experiments.reproduce.__main__"}
"""Commands outside ``python -m specexp``."""
FAMILIES = {
    "drafters": ("specexp.drafters", "specexp.core.contracts.Drafter"),
    "builders": ("specexp.builders", "specexp.core.contracts.TreeBuilder"),
    "verifiers": ("specexp.verifiers", "specexp.core.contracts.Verifier"),
    "controllers": ("specexp.controllers", "specexp.core.contracts.Controller"),
    "executions": ("specexp.scheduling", "specexp.scheduling.Execution"),
    "policies": ("specexp.scheduling", "specexp.scheduling.QueuePolicy"),
    "prompt_sets": ("specexp.data", "specexp.data.PromptSet"),
    "tasks": ("specexp.data", "specexp.data.tasks.task.Task"),
    "searches": ("specexp.data.searches", "specexp.data.searches.search.Search"),
    "engines": ("specexp.engines", "specexp.engines.engine.ForeignEngine"),
    "analyses": ("experiments.papers", "specexp.report.analysis.Analysis"),
    "artifacts": ("specexp.artifacts.kinds", "specexp.artifacts.Artifact"),
}
"""The package of each family's parts, and their contract."""


@dataclass(frozen=True)
class Answer:
    """The output and the exit code of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """The result of a command that was typed with ``--json``."""
        result: dict[str, Any] = json.loads(self.out.splitlines()[-1])
        return result


def command(name: str, *arguments: str | Path) -> Answer:
    """Run ``python -m specexp.NAME ARGUMENTS`` in this process."""
    main = import_module(HOMES.get(name, "specexp.__main__")).main
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            typed = [str(argument) for argument in arguments]
            code = main(typed if name in HOMES else [name, *typed])
        except SystemExit as end:  # of argparse
            code = end.code
    assert isinstance(code, int)
    return Answer(code, out.getvalue(), err.getvalue())


def found(dotted: str) -> Any:
    """Import a class by its dotted path."""
    module, _, name = dotted.rpartition(".")
    return getattr(import_module(module), name)


def parts_of(family: str) -> list[type]:
    """Return the public classes of a family, sorted by name, its contract left out."""
    package, contract = import_module(FAMILIES[family][0]), found(FAMILIES[family][1])
    modules = [
        import_module(module.name)
        for module in walk_packages(package.__path__, f"{package.__name__}.")
        if not module.name.endswith("__main__")
    ]
    classes = {
        one
        for module in modules
        for one in vars(module).values()
        if isinstance(one, type) and issubclass(one, contract) and one is not contract and not isabstract(one)
        if one.__module__.startswith(f"{package.__name__}.") and not one.__name__.startswith("_")
    }
    return sorted(classes, key=lambda one: one.__name__)


def flat(value: Any, key: str = "") -> dict[str, Any]:
    """Return scalars, and lists of scalars, by dotted key."""
    if isinstance(value, Mapping) and value:
        inner: Iterator[tuple[Any, Any]] = iter(value.items())
    elif isinstance(value, list) and any(isinstance(one, Mapping | list) for one in value):
        inner = iter(enumerate(value))
    else:
        return {key: value}
    return {
        place: one for name, child in inner for place, one in flat(child, f"{key}.{name}" if key else str(name)).items()
    }


def check(name: str, value: Any, relative: float = RELATIVE) -> None:
    """Compare a value with the expected one.

    Args:
        name: Path of the expected file in ``tests/golden/expected``, without ``.json``.
        value: Anything that JSON holds. Everything but floats is compared exactly.
        relative: How far floats may be apart.
    """
    file = EXPECTED / f"{name}.json"
    if WRITES:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(_text(_rounded(value)) + "\n", encoding="utf-8")
        return
    assert file.exists(), f"{file.relative_to(ROOT)} is missing; SPECEXP_GOLDEN=write makes it"
    expected = json.loads(file.read_text(encoding="utf-8"))
    found = list(differences(expected, json.loads(json.dumps(_rounded(value))), relative))
    more = f"\n... and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    assert not found, f"{file.relative_to(ROOT)}:\n" + "\n".join(found[:_SHOWN]) + more


def differences(expected: Any, found: Any, relative: float = RELATIVE, key: str = "") -> Iterator[str]:
    """Yield a line for every place where two values differ."""
    if isinstance(expected, dict) and isinstance(found, dict):
        for name in [*expected, *(name for name in found if name not in expected)]:
            place = f"{key}.{name}" if key else str(name)
            if name not in found:
                yield f"{place}: {_short(expected[name])} is missing"
            elif name not in expected:
                yield f"{place}: {_short(found[name])} is new"
            else:
                yield from differences(expected[name], found[name], relative, place)
    elif isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        for number, (one, other) in enumerate(zip(expected, found, strict=True)):
            yield from differences(one, other, relative, f"{key}.{number}")
    elif not _same(expected, found, relative):
        yield f"{key}: {_short(expected)} is expected, got {_short(found)}"


def _same(expected: Any, found: Any, relative: float) -> bool:
    numbers = isinstance(expected, int | float) and isinstance(found, int | float)
    if numbers and not isinstance(expected, bool) and not isinstance(found, bool):
        if isinstance(expected, int) and isinstance(found, int):
            return expected == found
        return math.isclose(expected, found, rel_tol=relative, abs_tol=ABSOLUTE)
    return type(expected) is type(found) and bool(expected == found)


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 100 else f"{text[:97]}..."


def _rounded(value: Any) -> Any:
    """Round floats to nine digits, so that files stay small, and write NaN, which JSON lacks, as text."""
    if isinstance(value, Mapping):
        return {str(name): _rounded(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(one) for one in value]
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else float(f"{value:.9g}")
    return value


def _text(value: Any, indent: str = "") -> str:
    """Return JSON with one line a key; a list, or a small mapping, of scalars has one line."""
    inner: Sequence[Any] = list(value.values()) if isinstance(value, dict) else value
    if not isinstance(value, dict | list) or not any(isinstance(one, dict | list) for one in inner):
        line = json.dumps(value, ensure_ascii=False)
        if not isinstance(value, dict) or len(indent) + len(line) <= 110:
            return line
    deeper = f"{indent} "
    if isinstance(value, dict):
        lines = [f"{deeper}{json.dumps(name)}: {_text(one, deeper)}" for name, one in value.items()]
        return "{\n" + ",\n".join(lines) + f"\n{indent}}}"
    return "[\n" + ",\n".join(f"{deeper}{_text(one, deeper)}" for one in value) + f"\n{indent}]"


LAYERS, DRAFT_LAYERS, WIDTH, HEADS, KEY_HEADS, CONTEXT = 4, 2, 64, 4, 2, 640
SHARPNESS = 12.0
"""Logit of a letter's likeliest successor. Higher values make both models surer."""
LAYER_SCALE = 0.9
"""Size of what the layers add. Higher values make the target reject more of the draft, which has fewer layers."""


def write_pair(folder: Path, texts: Sequence[str]) -> tuple[Path, Path]:
    """Write target and draft.

    Returns:
        The folders of the target and of the draft, each with the tokenizer.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = byte_tokenizer()
    vocabulary = len(tokenizer)
    rng = np.random.RandomState(20)
    embedding = rng.standard_normal((vocabulary, WIDTH)) / np.sqrt(WIDTH)
    letters = sorted(set(tokenizer("".join(texts))["input_ids"]))
    head = _successors(letters, tokenizer.eos_token_id, vocabulary, rng).T @ embedding
    head += 0.02 * rng.standard_normal(head.shape)
    shared: dict[str, Any] = {
        "model.embed_tokens.weight": embedding,
        "lm_head.weight": SHARPNESS / np.sqrt(WIDTH) * head,
        "model.norm.weight": np.ones(WIDTH),
    }
    layers = [_layer(number, rng) for number in range(LAYERS)]
    folders = []
    for name, count in (("target", LAYERS), ("draft", DRAFT_LAYERS)):
        config = LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=WIDTH,
            intermediate_size=WIDTH,
            num_hidden_layers=count,
            num_attention_heads=HEADS,
            num_key_value_heads=KEY_HEADS,
            max_position_embeddings=CONTEXT,
            eos_token_id=tokenizer.eos_token_id,
            bos_token_id=None,
            pad_token_id=None,
        )
        model = LlamaForCausalLM(config)
        weights = {**shared, **{key: value for layer in layers[:count] for key, value in layer.items()}}
        model.load_state_dict({key: torch.tensor(value, dtype=torch.float32) for key, value in weights.items()})
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
        folders.append(folder / name)
    return folders[0], folders[1]


def _successors(token_ids: Sequence[int], end: int, vocabulary: int, rng: np.random.RandomState) -> np.ndarray:
    """Return weights of each token's next tokens: four successors, one of which is sometimes the end token."""
    likes = np.zeros((vocabulary, vocabulary))
    for token in token_ids:
        others = rng.choice([other for other in token_ids if other != token], size=4, replace=False)
        others[3] = end if rng.random_sample() < 0.15 else others[3]
        likes[token, others] = (1.0, 0.85, 0.7, 0.55)
    return likes


def _layer(number: int, rng: np.random.RandomState) -> dict[str, np.ndarray]:
    keys = WIDTH // HEADS * KEY_HEADS
    shapes = {
        "self_attn.q_proj": (WIDTH, WIDTH),
        "self_attn.k_proj": (keys, WIDTH),
        "self_attn.v_proj": (keys, WIDTH),
        "self_attn.o_proj": (WIDTH, WIDTH),
        "mlp.gate_proj": (WIDTH, WIDTH),
        "mlp.up_proj": (WIDTH, WIDTH),
        "mlp.down_proj": (WIDTH, WIDTH),
    }
    layer = {name: rng.standard_normal(shape) / np.sqrt(WIDTH) for name, shape in shapes.items()}
    # A row of the embedding has norm 1; what a layer adds has about LAYER_SCALE.
    for name in ("self_attn.o_proj", "mlp.down_proj"):
        layer[name] *= LAYER_SCALE / np.sqrt(WIDTH)
    named = {f"model.layers.{number}.{name}.weight": value for name, value in layer.items()}
    norms = ("input_layernorm", "post_attention_layernorm")
    return {**named, **{f"model.layers.{number}.{name}.weight": np.ones(WIDTH) for name in norms}}
