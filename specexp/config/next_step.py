"""Command lines to suggest as the next step, quoted for a shell."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import yaml

from specexp.base.start import all_masked
from specexp.config.config import Config
from specexp.config.layers import PARTS, entries_of
from specexp.config.schema import Pair

# sections that do not change the models, prompts and parts of a later command
_OTHER_SECTIONS = {"name", "output", "tracking", "trainer", "sweep", "fit", "profile", "record", "verify", "artifact",
                   "trust"}  # fmt: skip
_MODEL_KEYS = (
    "target",
    "draft",
    "target_dtype",
    "draft_dtype",
    "device",
)  # keys of pair that are also options of a deployment


def command_line(name: str, *words: object, why: str = "") -> str:
    """Return a shell command such as ``python -m specexp.serve artifacts/mine/best``, with ``why`` as a comment.

    Passwords are masked.
    """
    line = shlex.join(all_masked(["python", "-m", f"specexp.{name}", *map(str, words)]))
    return f"{line}  # {why}" if why else line


def experiment_again(config: Config, changed: Mapping[str, Any] | None = None) -> list[str]:
    """Return arguments for the same experiment: its file, and its command-line overrides updated with ``changed``."""
    typed = {key: value for key, value in config.typed if key.partition(".")[0] not in _OTHER_SECTIONS}
    overrides = {**typed, **(changed or {})}
    return [config.file, *(word for key, value in overrides.items() for word in (f"--{key}", _text(value)))]


def more_prompts(
    config: Config,
    name: str,
    key: str,
    needed: int | None,
    *,
    exhausted: bool,
    changed: Mapping[str, Any] | None = None,
) -> dict[str, str]:
    """Return the next step of an open verdict: the command ``name`` on more prompts, or a suggestion to add some.

    Args:
        key: Key of the maximum number of prompts.
        needed: Number of prompts that would tell; None if none would, so that there is no such step.
        exhausted: Whether the prompt set has no further prompts.
        changed: More keys to change.
    """
    if needed is None:
        return {}
    if exhausted:
        return {"measure more prompts": "add prompts to the set: all of it is used"}
    typed = {one: value for one, value in config.typed if one.partition(".")[0] in ("name", "output", name)}
    artifact = artifact_again(config, config.artifact) if config.artifact else {}
    again = experiment_again(config, {**typed, **artifact, **(changed or {}), key: needed})
    return {"measure more prompts": command_line(name, *again)}


def _text(value: Any) -> str:
    """Return a value as typed on the command line: a string as is if YAML reads it unchanged, otherwise JSON."""
    if isinstance(value, str) and value and yaml.safe_load(f"- {value}") == [value]:
        return value
    return json.dumps(value)


def model_options(config: Config) -> list[str]:
    """Return a deployment's options for the experiment's models and device, leaving out defaults."""
    drafts = config.pair.draft is not None or config.pair.target == "stdlib"
    return _options(config, [key for key in _MODEL_KEYS if drafts or key != "draft_dtype"])


def init_options(config: Config) -> list[str]:
    """Return the options of ``specexp.init`` for the experiment's models and device."""
    return _options(config, [key for key in _MODEL_KEYS if not key.endswith("_dtype")])


def _options(config: Config, keys: Iterable[str]) -> list[str]:
    changed = [key for key in keys if config.get(f"pair.{key}") != Pair.model_fields[key].default]
    return [word for key in changed for word in (f"--{key.replace('_', '-')}", config.get(f"pair.{key}"))]


def measured_by(config: Config) -> str:
    """Return the command that measures the experiment, ``sweep`` or ``run``."""
    return "run" if config.get("sweep") is None else "sweep"


def trusted_packages(config: Config) -> list[str]:
    """Return the packages outside specexp that define parts of the experiment or of its search space."""
    searched = ("sweep.space", "sweep.enqueue")
    sections = [config.get(section, None) for section in (*PARTS, "execution", *searched)]
    packages = {path.partition(".")[0] for path in class_paths(sections) if "." in path}
    return sorted(packages - {"specexp"})


def trust_options(config: Config) -> list[str]:
    """Return a deployment's ``--trust`` options for packages outside specexp."""
    return [word for package in trusted_packages(config) for word in ("--trust", package)]


def artifact_again(config: Config, artifact: str) -> dict[str, Any]:
    """Return the changes for :func:`experiment_again` that replace the file's own parts with an artifact's."""
    packages = trusted_packages(config)
    trust: str | list[str] = packages[0] if len(packages) == 1 else packages
    return {"artifact": artifact, **({"trust": trust} if packages else {})}


def class_paths(value: Any) -> Iterator[str]:
    """Yield the ``class_path`` of every part in a value."""
    if isinstance(value, Mapping) and isinstance(value.get("class_path"), str):
        yield value["class_path"]
    for _, inner in entries_of(value):
        yield from class_paths(inner)
