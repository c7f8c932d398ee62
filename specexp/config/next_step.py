"""The command to type next, quoted for a shell, with its purpose as a comment."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from specexp.config.config import Config
from specexp.config.layers import PARTS, entries_of

_OTHER_SECTIONS = {"name", "output", "tracking", "trainer", "sweep", "fit", "profile", "record", "verify", "artifact",
                   "trust"}  # fmt: skip
"""Sections that do not change which models, prompts and parts a later command finds."""
_MODEL_OPTIONS = {
    "--target": ("target", "stdlib"),
    "--draft": ("draft", None),
    "--target-dtype": ("target_dtype", "bfloat16"),
    "--draft-dtype": ("draft_dtype", "float32"),
    "--device": ("device", "cpu"),
}
"""Keys of ``pair`` and their defaults by a deployment's option."""


def command_line(name: str, *words: object, why: str = "") -> str:
    """Return the line for a command of specexp, e.g. ``python -m specexp.serve artifacts/mine/best``."""
    line = shlex.join(["python", "-m", f"specexp.{name}", *map(str, words)])
    return f"{line}  # {why}" if why else line


def experiment_again(config: Config, changed: Mapping[str, Any] | None = None) -> list[str]:
    """Return the words for the same experiment: its file, and the overrides that were typed.

    Args:
        config: The experiment.
        changed: Values by dotted key that the next command needs in place of what was typed.
    """
    typed = {key: value for key, value in config.typed if key.partition(".")[0] not in _OTHER_SECTIONS}
    overrides = {**typed, **(changed or {})}
    return [config.file, *(word for key, value in overrides.items() for word in (f"--{key}", _text(value)))]


def _text(value: Any) -> str:
    """Return a value as it is typed: a text as it is if YAML reads it so, else as JSON."""
    if isinstance(value, str) and value and yaml.safe_load(f"- {value}") == [value]:
        return value
    return json.dumps(value)


def model_options(config: Config) -> list[str]:
    """Return the options of a deployment that name the experiment's models and their device."""
    given = {
        option: (config.get(f"pair.{key}"), default) for option, (key, default) in _MODEL_OPTIONS.items()
    }
    return [
        word for option, (value, default) in given.items() if value != default for word in (option, value)
    ]


def init_options(config: Config) -> list[str]:
    """Return the options of ``specexp.init`` that name the experiment's models and their device."""
    options = model_options(config)
    pairs = zip(options[::2], options[1::2], strict=True)
    return [word for option, value in pairs if not option.endswith("-dtype") for word in (option, value)]


def measured_by(config: Config) -> str:
    """Return the command that measures the experiment: ``sweep`` if it has a search, else ``run``."""
    return "run" if config.get("sweep") is None else "sweep"


def trusted_packages(config: Config) -> list[str]:
    """Return the foreign packages of the experiment's parts and of the searched ones."""
    searched = ("sweep.space", "sweep.enqueue")
    sections = [config.get(section, None) for section in (*PARTS, "execution", *searched)]
    packages = {path.partition(".")[0] for path in _class_paths(sections) if "." in path}
    return sorted(packages - {"specexp"})


def trust_options(config: Config) -> list[str]:
    """Return the options of a deployment that trust these packages."""
    return [word for package in trusted_packages(config) for word in ("--trust", package)]


def artifact_again(config: Config, artifact: str) -> dict[str, Any]:
    """Return the changes for :func:`experiment_again` that put an artifact's parts in place of the file's own."""
    packages = trusted_packages(config)
    trust: str | list[str] = packages[0] if len(packages) == 1 else packages
    return {"artifact": artifact, **({"trust": trust} if packages else {})}


def _class_paths(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping) and isinstance(value.get("class_path"), str):
        yield value["class_path"]
    for _, inner in entries_of(value):
        yield from _class_paths(inner)
