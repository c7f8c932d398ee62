"""A configuration: values that are checked against constructor signatures and can be overridden.

All mistakes raise :class:`ConfigError`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from specexp.artifacts.atomic_write import atomic_write
from specexp.artifacts.environment import environment
from specexp.base.checked import arguments_of, keys_below
from specexp.base.messages import did_you_mean, first_line, nested_hint
from specexp.base.start import all_masked
from specexp.config import schema
from specexp.config.check import Checker
from specexp.config.layers import COMMAND_LINE, PARTS, ConfigError, Key, Layers, SourceOf, copied, entries_of
from specexp.config.next_step import Invocation, packages_in
from specexp.config.sweep import Sweep

if TYPE_CHECKING:
    from specexp.core.contracts import Controller, Drafter, TreeBuilder, Verifier
    from specexp.core.latency import LatencyProfile
    from specexp.data import TaskItems, Workload
    from specexp.scheduling import Execution

SECTIONS = arguments_of(schema.Experiment) or {}
"""The annotation and default of each section of a file."""
# keys of the folders that commands write to
WRITTEN = ("output", "sweep.export.to", "fit.export.to", "profile.to", "record.to", "recording")
_MISSING, _ABSENT = object(), object()


def _section(name: str) -> Any:
    """Return a property: the section as an object of the type that it has in :class:`Experiment`."""
    return cached_property(lambda config: config.section(name))


def _part(name: str) -> Any:
    """Return a property: the section as a new object each time, because parts have state."""
    return property(lambda config: config.section(name))


class Config:
    """A checked configuration, of which no section changes. :meth:`with_overrides` returns a new one.

    Args:
        checked: A checked configuration from which all sections except ``sections`` are taken.

    Attributes:
        typed: The command-line overrides, as pairs of dotted key and value.
        artifact: Path of the artifact that replaced the file's own parts; empty if there is none.
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
        for unknown in (name for name in given if name not in SECTIONS):
            hint = nested_hint(str(unknown), SECTIONS) or did_you_mean(str(unknown), keys_below(schema.Experiment))
            raise self.checker.error((str(unknown),), f" is unknown{hint}")
        sections = SECTIONS.keys() if checked is None else sections
        if "name" in sections:  # the file's name, without its extension, is the default
            given.setdefault("name", Path(file).stem)
            check_folder_name(given["name"], self.checker.error(("name",), ""))
        # data replaces its default as a whole, so a file without data.prompts gets the default prompts here
        if isinstance(given.get("data"), Mapping):
            given["data"] = {"prompts": {"class_path": "StdlibFunctions"}, **given["data"]}
        sweep = given.get("sweep")
        export = sweep.get("export") if isinstance(sweep, Mapping) else None
        if isinstance(export, Mapping) and not export.get("to"):
            folder = f"artifacts/{given.get('name', Path(file).stem)}"
            given["sweep"] = {**given["sweep"], "export": {**export, "to": folder}}
        # a study composes thousands of trials, so only the touched sections are checked again
        self._values: dict[str, Any] = {} if checked is None else dict(checked._values)
        for name in sections:
            section = SECTIONS[name]
            value = given.get(name, section.default)
            self._values[name] = self.checker.value(value, section.annotation, (name,))
        if "arms" in sections:
            # Arms are overrides, so no defaults are filled in: `builder: null` differs from a missing key.
            arms = given.get("arms") or {}
            self._values["arms"] = copied({name: arm or {} for name, arm in arms.items()})
        if "trainer" in sections:
            check_trainer(self._values["trainer"], self.checker)
        for dotted in WRITTEN:
            key = tuple(dotted.split("."))
            if key[0] in sections and isinstance(path := self.get(dotted, None), str):
                source = self.source_of(key)
                free = source == COMMAND_LINE or dotted == "recording"  # a recording is usually only read
                check_written(path, self.checker.error(key, ""), None if free else Path(source))

    name: str = _section("name")
    question: str | None = _section("question")
    pair: schema.Pair = _section("pair")
    tracking: schema.Tracking = _section("tracking")
    verify: schema.Verify = _section("verify")
    profile: schema.Profile = _section("profile")
    record: schema.Record = _section("record")
    fit: schema.Fit | None = _section("fit")
    sweep: Sweep | None = _section("sweep")
    baselines: list[str] | None = _section("baselines")
    published: list[dict[str, Any]] = _section("published")
    figure: str | None = _section("figure")
    least_gain: float = _section("least_gain")
    float32_prompts: int = _section("float32_prompts")
    reasoning: schema.Reasoning = _part("reasoning")
    drafter: Drafter | None = _part("drafter")  # not connected to a draft model; None for plain decoding
    builder: TreeBuilder = _part("builder")
    verifier: Verifier = _part("verifier")
    controller: Controller | None = _part("controller")  # None if only the builder limits the draft
    workload: Workload = _part("data")  # its files are not read yet
    execution: Execution | None = _part("execution")  # None if each prompt has one sequence
    latency: LatencyProfile | None = _part("latency")  # None if seconds are measured

    def section(self, name: str) -> Any:
        """Return a section as a new object of the type that it has in :class:`Experiment`."""
        return self.checker.build(copied(self._values[name]), SECTIONS[name].annotation, (name,))

    @property
    def is_replayed(self) -> bool:
        """True if the experiment replays a recording instead of running the models."""
        return bool(self._values["backend"] == "replay")

    @property
    def recording_folder(self) -> Path:
        """The folder of the experiment's recording: ``recording``, ``record.to`` or ``recordings/<name>``."""
        return Path(self.get("recording") or self.get("record.to") or f"recordings/{self.name}")

    @property
    def task_items(self) -> TaskItems | None:
        """The task items in ``data.prompts``; None if it contains prompts to continue."""
        from specexp.data import TaskItems

        prompts = self.workload.prompts
        return prompts if isinstance(prompts, TaskItems) else None

    @property
    def is_multi_sequence(self) -> bool:
        """True if several sequences are decoded per prompt. If one arm decodes several, all arms do."""
        arms = self._values["arms"].values()
        executions = (self._values["execution"], *((arm or {}).get("execution") for arm in arms))
        return any(one is not None for one in executions) or self.task_items is not None

    def build_engine(self) -> Any:
        """Return an unstarted :class:`~specexp.engines.engine.ForeignEngine`, or None if specexp's own loop decodes.

        Engines do not support sampling, groups of sequences, modelled times or specexp's own parts.
        """
        if self._values["engine"] is None:
            return None
        where = f"{self.source_of(('engine',))}: engine: "
        verifier = self.verifier
        if verifier.noise_temperature != 0 or not verifier.lossless:
            raise ConfigError(
                f"{where}outputs are compared token by token, which needs greedy decoding: set verifier to Greedy"
            )
        own = [name for name in ("drafter", "builder", "execution", "latency") if self._values[name] is not None]
        if (controller := self.controller) is not None and not controller.changes_nothing:
            own.append("controller")
        if own:
            raise ConfigError(f"{where}{own[0]} is a part of specexp's own loop: set it or engine to null")
        return self.section("engine")

    @cached_property
    def output(self) -> Path:
        """The folder of the results of all runs."""
        return Path(self._values["output"])

    @cached_property
    def generation(self) -> schema.Generation:
        """The ``generation`` section. If any arm is an engine, no arm stops at a repetition."""
        generation: schema.Generation = self.section("generation")
        arms = ({"engine": self._values["engine"]}, *self._values["arms"].values())
        # engines cannot stop at a repetition, and all arms must have the same outputs
        if any((arm or {}).get("engine") for arm in arms):
            return generation.model_copy(update={"stop_at_repetition": False})
        return generation

    @property
    def invocation(self) -> Invocation:
        """The file, options and models that a later command must name to use this experiment."""
        packages = packages_in([self._values[section] for section in (*PARTS, "execution")])
        measured_by = "run" if self._values["sweep"] is None else "sweep"
        return Invocation(self.file, self.typed, self.artifact, self.pair, packages, measured_by)

    def source_of(self, key: Key) -> str:
        """Return the file that set a key, or ``command line``."""
        return self.layers.source_of(key, self.file)

    def origin_of(self, dotted: str) -> str:
        """Return the file that set exactly this key, or ``command line``; ``default`` if nothing set it."""
        return self.layers.sources.get(tuple(self.layers.split(dotted)), "default")

    def to_dict(self) -> dict[str, Any]:
        """Return all values, with passwords masked. A file with these contents yields the same configuration."""
        return {name: all_masked(value) for name, value in self._values.items()}

    def save(self, folder: str | Path, command: list[str] | None = None) -> None:
        """Write ``config.yaml`` (with defaults filled in, so that the run can be repeated) and ``environment.json``.

        Raises:
            ConfigError: The folder cannot be written.
        """
        target = Path(folder)
        made = [path for path in (target, *target.parents) if not path.exists()]
        text = yaml.safe_dump(self.to_dict(), sort_keys=False, allow_unicode=True)
        record = json.dumps(environment(self.pair.device, command), indent=2) + "\n"
        try:
            target.mkdir(parents=True, exist_ok=True)
            atomic_write(target / "config.yaml", text)
            atomic_write(target / "environment.json", record)
        except OSError as error:
            for path in made:  # deepest first
                if path.is_dir() and not any(path.iterdir()):
                    path.rmdir()
            raise unwritable(self, target, error) from error

    def with_overrides(self, overrides: Mapping[str, Any], source: str | SourceOf = "override") -> Config:
        """Return a configuration with overrides applied and checked. This one is not changed.

        Args:
            overrides: Values by dotted key. A mapping with a different ``class_path`` replaces the part; other mappings
                are merged. A ``name`` alongside ``class_path`` (the label of a choice) is ignored.
            source: Origin of the values for error messages, or a function that returns the origin of a key.
        """
        if not overrides:
            return self
        layers = self.layers.copy()
        for dotted, value in sorted(overrides.items(), key=lambda item: item[0].count(".")):  # whole parts first
            if isinstance(value, Mapping) and "class_path" in value:
                value = {key: inner for key, inner in value.items() if key != "name"}
            layers.set(dotted, value, source)
        return Config(layers, self.file, self, {dotted.partition(".")[0] for dotted in overrides})

    def get(self, dotted: str, default: Any = _MISSING) -> Any:
        """Return the value at a dotted key, e.g. ``builder.init_args.nodes``."""
        here: Any = self._values
        for step in self.layers.split(dotted):
            if isinstance(here, Mapping) and step in here:
                here = here[step]
            elif isinstance(here, list) and step.isdecimal() and int(step) < len(here):
                here = here[int(step)]
            elif default is not _MISSING:
                return default
            else:
                hint = did_you_mean(dotted, self.keys())
                raise ConfigError(f"{self.file}: {dotted!r} does not exist{hint}")
        return copied(here)

    def has(self, dotted: str) -> bool:
        """Return whether a dotted key exists for the configured classes."""
        return self.get(dotted, _ABSENT) is not _ABSENT

    def keys(self) -> list[str]:
        """Return the dotted keys that exist for the configured classes, except inside sweep, arms and trainer."""
        others = ("trainer", "arms", "sweep")  # mappings with arbitrary keys
        sections = {name: value for name, value in self._values.items() if name not in others}
        return [".".join(key) for key in _keys_in(sections, ()) if key] + [*others]


def _keys_in(value: Any, at: Key) -> Iterator[Key]:
    """Yield ``at`` and the keys of everything inside ``value``."""
    yield at
    for name, inner in entries_of(value):
        yield from _keys_in(inner, (*at, name))


def check_trainer(given: Mapping[str, Any], checker: Checker) -> None:
    """Raise a ConfigError for arguments that Lightning's Trainer does not accept. Lightning is imported on demand."""
    if not given:
        return
    from lightning import Trainer

    known = arguments_of(Trainer) or {}
    for name in given.keys() - known.keys():
        hint = did_you_mean(f"trainer.{name}", [f"trainer.{argument}" for argument in known])
        raise checker.error(("trainer", name), f" is unknown{hint}")


_FOLDER_NAME = re.compile(r"[^\s./\\:~-][^/\\:]{0,127}")
# paths with ~, a variable or a drive, which need a shell or Windows, and paths with control characters
_UNEXPANDED = re.compile(r"~|.*\$\w|.*\$\{|%\w+%|.*[\x01-\x1f]" + (r"|[A-Za-z]:" if os.sep == "/" else ""))


def check_folder_name(name: Any, error: ConfigError) -> None:
    """Raise a ConfigError that begins with ``error`` unless the name of a run is a plain folder name."""
    if name is None or (isinstance(name, str) and not (_FOLDER_NAME.fullmatch(name) and name.isprintable())):
        given = "null" if name is None else repr(name)
        raise ConfigError(f"{error} must be a plain folder name such as tree_shape, got {given}")


def check_expanded(path: str, error: ConfigError) -> None:
    """Raise a ConfigError that begins with ``error`` if only a shell or Windows can resolve a path."""
    if _UNEXPANDED.match(path):
        raise ConfigError(f"{error} must be a path without ~, $ or a drive, got {path!r}")


def check_written(path: str, error: ConfigError, file: Path | None = None) -> None:
    """Raise a ConfigError that begins with ``error`` if an output path lies outside the working directory.

    An absolute path set in ``file`` may also lie in the file's folder, or be one of the two folders above it. The
    ``config.yaml`` of a run relies on this. Without a file (on the command line), any absolute path is allowed.
    """
    check_expanded(path, error)
    whole = Path(os.path.normpath(path))
    if not whole.is_absolute() and whole.parts[:1] == ("..",):
        raise ConfigError(f"{error} must be absolute or a path below the working directory, got {path!r}")
    if whole.is_absolute() and file is not None:
        folders = [Path.cwd(), folder := file.absolute().parent]
        if not any(map(whole.is_relative_to, folders)) and whole not in [*folder.parents][:2]:
            key = str(error).rpartition(": ")[2]
            raise ConfigError(
                f"{error} must be in the working directory or the file's own folder, got {path!r}: pass --{key} {path} "
                "to allow it"
            )


def annotated(config: Config) -> str:
    """Return the resolved configuration as YAML, with the source of each value in a comment."""
    return "\n".join(_lines(config.to_dict(), (), config)) + "\n"


def _lines(values: Mapping[Any, Any] | list[Any], at: Key, config: Config) -> Iterator[str]:
    for name, value in enumerate(values) if isinstance(values, list) else values.items():
        key = (*at, str(name))
        begin = "-" if isinstance(values, list) else f"{_scalar(name)}:"
        inner = entries_of(value)
        if not inner or not (isinstance(value, Mapping) or any(isinstance(one, Mapping) for _, one in inner)):
            yield f"{begin} {_scalar(value)}  # {config.layers.sources.get(key, 'default')}"
            continue
        lines = [f"  {line}" for line in _lines(value, key, config)]
        yield from [f"- {lines[0][2:]}", *lines[1:]] if begin == "-" else [begin, *lines]


def _scalar(value: Any) -> str:
    """Return a value as YAML on one line."""
    if isinstance(value, str) and "\n" in value:
        return json.dumps(value, ensure_ascii=False)
    text: str = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=10**9)
    return text.removesuffix("...\n").strip()


def unwritable(config: Config, folder: Path, error: OSError) -> ConfigError:
    """Return the error for a command that cannot write its output folder."""
    why = f": {folder} cannot be written ({error.strerror or first_line(error)})"
    return config.checker.error(("output",), why)
