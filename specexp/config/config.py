"""A configuration: values checked against the signatures they are arguments of, and others laid over them."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import create_model

from specexp.artifacts.atomic_write import atomic_write
from specexp.artifacts.environment import environment
from specexp.config.check import Checker, SourceOf
from specexp.config.layers import COMMAND_LINE, ConfigError, Key, Layers, copied
from specexp.config.schema import OVERRIDES, Experiment
from specexp.core.checked import Section, arguments_of
from specexp.core.messages import did_you_mean, first_line
from specexp.core.start import all_masked

SECTIONS = arguments_of(Experiment) or {}
"""The sections of a file: what each allows, and its default."""
_MISSING = object()
_NOWHERE = object()


class Config:
    """A checked configuration, which is never changed: ``load_config`` and :func:`apply_overrides` make new ones.

    Args:
        layers: The given values and where they came from.
        file: The file they were read from.
        checked: A configuration of the same layers but for some sections, whose others are taken from it.
        sections: The sections that differ.

    Attributes:
        typed: The overrides of the command line, by dotted key.
        artifact: The artifact whose parts took the place of the file's own; empty without one.

    Raises:
        ConfigError: a key is unknown or a value is not allowed.
    """

    def __init__(
        self, layers: Layers, file: str, checked: Config | None = None, sections: Collection[str] = ()
    ) -> None:
        self.file = file
        self.layers = layers
        self.typed: Sequence[tuple[str, Any]] = () if checked is None else checked.typed
        self.artifact: str = "" if checked is None else checked.artifact
        self.checker = Checker(self.source_of)
        given = dict(layers.values)
        if checked is None or not SECTIONS.keys() >= set(sections):
            checked, sections = None, SECTIONS.keys()
        if "name" in sections:
            given.setdefault("name", Path(file).stem)
            check_folder_name(given["name"], self.checker.error(("name",), ""))
        if isinstance(
            given.get("data"), Mapping
        ):  # whatever else is said of the prompts, they have a default
            given["data"] = {"prompts": {"class_path": "StdlibFunctions"}, **given["data"]}
        sweep = given.get("sweep") or {}
        export = sweep.get("export") if isinstance(sweep, Mapping) else None
        if isinstance(export, Mapping) and not export.get("to"):
            to = f"artifacts/{given.get('name', Path(file).stem)}"
            given["sweep"] = {**sweep, "export": {**export, "to": to}}
        if checked is None:
            self._values = self.checker.arguments(Experiment, given, ())
        else:
            self._values = dict(checked._values)
            for name in sections:
                only = {name: given[name]} if name in given else {}
                self._values |= self.checker.arguments(_section_model(name), only, ())
        if "arms" in sections:
            # An arm says what differs, so nothing is filled in: `builder: null` is not the same as no builder.
            arms = given.get("arms") or {}
            self._values["arms"] = copied({name: arm or {} for name, arm in arms.items()})
        if "trainer" in sections:
            check_trainer(self._values["trainer"], self.checker)
        for dotted in WRITTEN:
            key = tuple(dotted.split("."))
            if key[0] in sections:
                source = self.source_of(key)
                typed = source == COMMAND_LINE or dotted == "recording"  # which is read, unless it is made
                check_written(
                    self.get(dotted, None), self.checker.error(key, ""), None if typed else Path(source)
                )

    def source_of(self, key: Key) -> str:
        """The file that set a key, or ``command line``."""
        return self.layers.source_of(key, self.file)

    def origin_of(self, dotted: str) -> str:
        """The file that set exactly this key, or ``command line``; ``default`` where nobody did."""
        return self.layers.origin_of(tuple(self.layers.split(dotted))) or "default"

    def to_dict(self) -> dict[str, Any]:
        """Everything, defaults filled in: a file with this content is the same configuration, but for passwords."""
        return {name: all_masked(value) for name, value in self._values.items()}

    def section(self, name: str) -> Any:
        """One section, resolved."""
        return self.get(name)

    def get(self, dotted: str, default: Any = _MISSING) -> Any:
        """The value at a dotted key, e.g. ``builder.init_args.nodes``.

        Raises:
            ConfigError: it does not exist and there is no default.
        """
        here: Any = self._values
        for step in self.layers.split(dotted):
            if isinstance(here, Mapping) and step in here:
                here = here[step]
            elif isinstance(here, list) and step.isdecimal() and int(step) < len(here):
                here = here[int(step)]
            elif default is not _MISSING:
                return default
            else:
                raise ConfigError(
                    f"{self.file}: {dotted!r} does not exist{did_you_mean(dotted, self.keys())}"
                )
        return copied(here)

    def keys(self) -> list[str]:
        """Every dotted key that exists with the configured classes."""
        sections = {
            name: value for name, value in self._values.items() if name not in ("arms", "sweep", "trainer")
        }
        found = _dotted(sections, "")
        return [*found, "trainer", "arms", "sweep"]


def apply_overrides(
    config: Config, overrides: Mapping[str, Any], source: str | SourceOf = "override"
) -> Config:
    """The configuration with other values, checked like a file; ``config`` stays as it is.

    Args:
        config: What the values are laid on.
        overrides: Values by dotted key; a mapping with another ``class_path`` replaces the part, other
            mappings merge.
            ``name`` beside ``class_path`` (the label of a choice) is left out.
        source: Who errors say set the values; by key where not all of them came from one place.

    Raises:
        ConfigError: a key does not exist or a value is not allowed.

    Example:
        >>> apply_overrides(config, {"builder": {"class_path": "Chain"}})  # doctest: +SKIP
    """
    if not overrides:
        return config
    layers = config.layers.copy()
    sections = dict.fromkeys(dotted.partition(".")[0] for dotted in overrides)
    for dotted, value in sorted(overrides.items(), key=lambda item: item[0].count(".")):  # whole parts first
        if isinstance(value, Mapping) and "class_path" in value and "name" in value:
            value = {key: inner for key, inner in value.items() if key != "name"}
        if isinstance(source, str):
            layers.set(dotted, value, source)
            continue
        at = tuple(layers.split(dotted))
        layers.set(dotted, value, source(at))
        for key in _keys_in(value, at):
            layers.attribute(key, source(key))
    return Config(layers, config.file, config, sections)


def has_key(config: Config, dotted: str) -> bool:
    """Whether a dotted key exists with the configured classes."""
    return config.get(dotted, _NOWHERE) is not _NOWHERE


def check_key(config: Config, dotted: str, source: str | None = None) -> None:
    """Refuse a dotted key that the configured classes do not have.

    Raises:
        ConfigError: with the nearest key that exists.
    """
    if not has_key(config, dotted):
        keys = config.keys()
        hint = did_you_mean(dotted, keys)
        raise ConfigError(f"{source or config.file}: {dotted!r} does not exist in this composition{hint}")


def compose_arm(config: Config, name: str, extra: Mapping[str, Any] | None = None) -> Config:
    """The composition of one of ``arms:``, with ``extra`` overrides (a point of its grid)."""
    arm = config.get("arms")[name]
    overrides = {key: arm[key] for key in OVERRIDES if key in arm}

    def source(key: Key) -> str:
        return f"{config.source_of(('arms', name, *key))}: arms.{name}"

    return apply_overrides(config, {**overrides, **(extra or {})}, source)


def _keys_in(value: Any, at: Key) -> Iterator[Key]:
    """``at`` and the keys of everything inside the value."""
    yield at
    inside: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, Mapping):
        inside = value.items()
    elif isinstance(value, list):
        inside = enumerate(value)
    for name, inner in inside:
        yield from _keys_in(inner, (*at, str(name)))


def _dotted(value: Any, prefix: str) -> list[str]:
    inner = (
        value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    )
    found = [prefix] if prefix else []
    for name, item in inner:
        found += _dotted(item, f"{prefix}.{name}" if prefix else str(name))
    return found


def check_trainer(given: Mapping[str, Any], checker: Checker) -> None:
    """Raise if Lightning's Trainer has no such argument; its import takes seconds, so it is asked only about some.

    Raises:
        ConfigError: with the nearest argument it does take.
    """
    if not given:
        return
    from lightning import Trainer

    known = arguments_of(Trainer) or {}
    for name, value in given.items():
        if name not in known:
            hint = did_you_mean(f"trainer.{name}", [f"trainer.{argument}" for argument in known])
            raise checker.error(("trainer", name), f" is unknown{hint}")
        kinds = {*(get_args(known[name].annotation) or [known[name].annotation])}
        if bool in kinds and kinds <= {bool, type(None)} and not isinstance(value, bool | None):
            raise checker.error(("trainer", name), f" must be true or false, got {value!r}")


@cache
def _section_model(name: str) -> type[Section]:
    """One section of a file, which is read alone where the others are as before."""
    field = Experiment.model_fields[name]
    return create_model(Experiment.__name__, __base__=Section, **{name: (field.annotation, field)})  # type: ignore[call-overload, no-any-return]


def is_replayed(config: Config) -> bool:
    """Whether a recording answers instead of the models."""
    return bool(config.get("backend") == "replay")


def recording_folder(config: Config) -> Path:
    """Where the experiment's recording lies, or would: ``recording``, ``record.to``, or ``recordings/<name>``."""
    return Path(config.get("recording") or config.get("record.to") or f"recordings/{config.get('name')}")


WRITTEN = ("output", "sweep.export.to", "fit.export.to", "profile.to", "record.to", "recording")
"""Keys of folders that commands write."""

_FOLDER_NAME = re.compile(r"[^\s./\\:~-][^/\\:]{0,127}")

_UNEXPANDED = re.compile(r"~|.*\$\w|.*\$\{|%\w+%|.*[\x01-\x1f]" + (r"|[A-Za-z]:" if os.sep == "/" else ""))
"""Paths that only a shell, or Windows, would lead elsewhere."""


def check_folder_name(name: Any, error: ConfigError) -> None:
    """Refuse the name of a run that is not the name of one folder.

    Args:
        name: as it was given; what is no text is refused elsewhere.
        error: its text, file and key, begins the message.

    Raises:
        ConfigError: the name would lead out of the folder it belongs to, or into another one.
    """
    if name is None:
        raise ConfigError(f"{error} is null; a plain folder name is allowed, such as tree_shape")
    if isinstance(name, str) and not (_FOLDER_NAME.fullmatch(name) and name.isprintable()):
        raise ConfigError(f"{error} is {name!r}; a plain folder name is allowed, such as tree_shape")


def check_expanded(path: str, error: ConfigError) -> None:
    """Refuse a path to write to that only a shell, or Windows, would understand.

    Raises:
        ConfigError: it has a home, a variable, a drive or a control character; ``error`` begins the message.
    """
    if _UNEXPANDED.match(path):
        raise ConfigError(
            f"{error} is {path!r}, in which nothing is expanded: write the whole path, without ~, $ or a drive"
        )


def check_written(path: Any, error: ConfigError, file: Path | None = None) -> None:
    """Refuse a path to write to that leads out of the folder it belongs to.

    That is the working directory; of an absolute path in a file also the file's own folder, or, of the configuration
    that a run left, the folder that all runs of that output are in. Whoever types an absolute path means it.

    Args:
        path: as configured; what is no text is not looked at.
        error: its text, file and key, begins the message.
        file: the file that set it; None for the command line.

    Raises:
        ConfigError: the path leads out of it.
    """
    if isinstance(path, str):
        check_expanded(path, error)
    if isinstance(path, str) and Path(path).is_absolute() and file is not None:
        whole, here = Path(os.path.normpath(path)), file.absolute().parent
        if not (
            whole.is_relative_to(Path.cwd()) or whole.is_relative_to(here) or whole in [*here.parents][:2]
        ):
            key = str(error).rpartition(": ")[2]
            raise ConfigError(
                f"{error} is {path!r}, outside of the working directory and of the file's own folder: type --{key} "
                f"{path} if it is meant"
            )
    if isinstance(path, str) and not Path(path).is_absolute() and os.path.normpath(path).startswith(".."):
        raise ConfigError(
            f"{error} is {path!r}; a path below the working directory, or an absolute one, is allowed"
        )


def annotated(config: Config) -> str:
    """The resolved configuration as YAML, each value with who set it as a comment."""
    return "\n".join(_lines(config.to_dict(), (), config)) + "\n"


def _lines(values: Mapping[Any, Any] | list[Any], at: Key, config: Config) -> Iterator[str]:
    for name, value in enumerate(values) if isinstance(values, list) else values.items():
        key = (*at, str(name))
        begin = "-" if isinstance(values, list) else f"{_scalar(name)}:"
        inner = (
            list(value.values()) if isinstance(value, Mapping) else value if isinstance(value, list) else []
        )
        if not inner or not (isinstance(value, Mapping) or any(isinstance(one, Mapping) for one in inner)):
            yield f"{begin} {_scalar(value)}  # {config.layers.origin_of(key) or 'default'}"
            continue
        lines = [f"  {line}" for line in _lines(value, key, config)]
        yield from [f"- {lines[0][2:]}", *lines[1:]] if begin == "-" else [begin, *lines]


def _scalar(value: Any) -> str:
    """A value on one line."""
    if isinstance(value, str) and "\n" in value:
        return json.dumps(value, ensure_ascii=False)
    text: str = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=10**9)
    return text.removesuffix("...\n").strip()


def save_resolved(config: Config, folder: str | Path, command: list[str] | None = None) -> None:
    """Write ``config.yaml`` (defaults filled in; the run can be repeated from it) and ``environment.json``.

    Raises:
        ConfigError: the folder cannot be written.
    """
    target = Path(folder)
    made = [path for path in (target, *target.parents) if not path.exists()]
    text = yaml.safe_dump(config.to_dict(), sort_keys=False, allow_unicode=True)
    record = json.dumps(environment(str(config.get("pair.device")), command), indent=2) + "\n"
    try:
        target.mkdir(parents=True, exist_ok=True)
        for name, content in (("config.yaml", text), ("environment.json", record)):
            atomic_write(target / name, content)
    except OSError as error:
        for path in made:
            if path.is_dir() and not any(path.iterdir()):
                path.rmdir()
        raise unwritable(config, target, error) from error


def unwritable(config: Config, folder: Path, error: OSError) -> ConfigError:
    """Return the error of a command whose output folder cannot be written."""
    return config.checker.error(
        ("output",), f": {folder} cannot be written ({error.strerror or first_line(error)})"
    )
