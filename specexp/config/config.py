"""A configuration: values checked against the signatures they are arguments of, and others laid over them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, get_args

from pydantic import create_model

from specexp.config.check import Checker, SourceOf
from specexp.config.errors import ConfigError
from specexp.config.files import COMMAND_LINE
from specexp.config.layers import Key, Layers, copied
from specexp.config.places import WRITTEN, check_folder_name, check_written
from specexp.config.schema import OVERRIDES, Experiment
from specexp.core.checked import Section, arguments_of
from specexp.core.messages import did_you_mean
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
        if bool in get_args(known[name].annotation) and not isinstance(value, bool | None):
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
