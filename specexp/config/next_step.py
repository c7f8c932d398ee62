"""Command lines to suggest as the next step, quoted for a shell."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import yaml

from specexp.base.start import all_masked
from specexp.config.layers import entries_of, value_of
from specexp.config.schema import Pair

# sections that do not change the models, prompts and parts of a later command
_OTHER_SECTIONS = {"name", "output", "tracking", "trainer", "sweep", "fit", "profile", "record", "verify", "artifact",
                   "trust"}  # fmt: skip
# sections that an artifact replaces; it need not have a verifier
_OF_AN_ARTIFACT = ("drafter", "builder", "controller", "execution", "arms")
# keys of pair that are also options of a deployment
_MODEL_KEYS = ("target", "draft", "target_dtype", "draft_dtype", "device", "mode")


def command_line(name: str, *words: object, why: str = "") -> str:
    """Return a shell command such as ``python -m specexp.serve artifacts/mine/best``, with ``why`` as a comment.

    Passwords are masked.
    """
    line = shlex.join(all_masked(["python", "-m", f"specexp.{name}", *map(str, words)]))
    return f"{line}  # {why}" if why else line


@dataclass(frozen=True)
class Invocation:
    """The file, options and models that a later command must name to use the same experiment."""

    file: str
    typed: Sequence[tuple[str, Any]]  # the command-line overrides, as pairs of dotted key and value
    artifact: str  # path of the artifact that replaced the file's own parts; empty if there is none
    pair: Pair
    packages: Sequence[str]  # those outside specexp that define the file's parts, or those of its artifact
    measured_by: str  # the command that measures it, ``sweep`` or ``run``


def experiment_again(given: Invocation, changed: Mapping[str, Any] | None = None) -> list[str]:
    """Return arguments for the same experiment: its file, and its command-line overrides updated with ``changed``."""
    others = {*_OTHER_SECTIONS, *(_OF_AN_ARTIFACT if "artifact" in (changed or {}) else ())}
    typed = {key: value for key, value in given.typed if key.partition(".")[0] not in others}
    overrides = {**typed, **(changed or {})}
    return [given.file, *(word for key, value in overrides.items() for word in (f"--{key}", _text(value)))]


def more_prompts(
    given: Invocation,
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
    typed = {one: value for one, value in given.typed if one.partition(".")[0] in ("name", "output", name)}
    artifact = artifact_again(given.artifact, given.packages) if given.artifact else {}
    again = experiment_again(given, {**typed, **artifact, **(changed or {}), key: needed})
    return {"measure more prompts": command_line(name, *again)}


def _text(value: Any) -> str:
    """Return a value as typed on the command line: a string as is if it is read back unchanged, otherwise JSON."""
    with suppress(yaml.YAMLError, ValueError, RecursionError):
        if isinstance(value, str) and value_of(value) == value:
            return value
    return json.dumps(value)


def model_options(pair: Pair) -> list[str]:
    """Return a deployment's options for the experiment's models and device, leaving out defaults."""
    drafts = pair.draft is not None or pair.target == "stdlib"
    return _options(pair, [key for key in _MODEL_KEYS if drafts or key != "draft_dtype"])


def python_arguments(pair: Pair) -> str:
    """Return the arguments of :func:`specexp.load_pair` for the experiment's models, leaving out defaults."""
    names = [repr(name) for name in (pair.target, pair.draft) if name]
    fields = {key: Pair.model_fields[key].default for key in ("target_dtype", "draft_dtype", "device", "mode")}
    changed = [f"{key}={given!r}" for key, usual in fields.items() if (given := getattr(pair, key)) != usual]
    return ", ".join([*names, *changed])


def init_options(pair: Pair) -> list[str]:
    """Return the options of ``specexp.init`` for the experiment's models and device."""
    return _options(pair, ["target", "draft", "device"])


def _options(pair: Pair, keys: Iterable[str]) -> list[str]:
    changed = [key for key in keys if getattr(pair, key) != Pair.model_fields[key].default]
    return [word for key in changed for word in (f"--{key.replace('_', '-')}", getattr(pair, key))]


def packages_in(sections: Sequence[Any]) -> list[str]:
    """Return the packages outside specexp that define parts in the given sections of a file."""
    packages = {path.partition(".")[0] for path in class_paths(sections) if "." in path}
    return sorted(packages - {"specexp"})


def trust_options(packages: Sequence[str]) -> list[str]:
    """Return a deployment's ``--trust`` options for packages outside specexp."""
    return [word for package in packages for word in ("--trust", package)]


def artifact_again(artifact: str, packages: Sequence[str]) -> dict[str, Any]:
    """Return the changes for :func:`experiment_again` that replace the file's own parts with an artifact's."""
    trust = packages[0] if len(packages) == 1 else [*packages]
    return {"artifact": artifact, **({"trust": trust} if trust else {})}


def class_paths(value: Any) -> Iterator[str]:
    """Yield the ``class_path`` of every part in a value."""
    if isinstance(value, Mapping) and isinstance(value.get("class_path"), str):
        yield value["class_path"]
    for _, inner in entries_of(value):
        yield from class_paths(inner)
