"""Layers of configuration: composed files, with the command line on top. Later layers override earlier ones.

The layer that set each key is stored, so that errors can name the file. All mistakes raise :class:`ConfigError`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import yaml

from specexp.base.messages import colon_hint, did_you_mean, first_line, near_file

Key: TypeAlias = tuple[str, ...]
SourceOf: TypeAlias = Callable[[Key], str]
"""Returns the layer that set a key."""

PARTS = ("drafter", "builder", "verifier", "controller")
"""Sections that contain one part each. If such a section is just a string, it is the name of the part's class."""
_ALWAYS_PARTS = (("data", "prompts"), ("reasoning", "search"))

# A mapping that changes one of these keys replaces the old mapping, because arguments apply to one class only.
_KINDS = ("class_path", "type", "reference")
_SPACE_FIELDS = ("type", "low", "high", "log", "step", "at_most", "choices")
COMMAND_LINE = "command line"


class ConfigError(ValueError):
    """A mistake in a configuration. The message is one sentence with the file, key, value and allowed values."""


class CommandError(RuntimeError):
    """Ends a command with exit code 1 and a one-sentence message. The configuration is not at fault."""


def copied(value: Any) -> Any:
    """Return a copy of nested mappings and lists. All other values in a file are immutable."""
    if isinstance(value, Mapping):
        return {name: copied(inner) for name, inner in value.items()}
    return [copied(item) for item in value] if isinstance(value, list) else value


def entries_of(value: Any) -> list[tuple[str, Any]]:
    """Return the entries of a mapping or list with their keys as strings; empty for any other value."""
    if isinstance(value, Mapping):
        return [(str(name), inner) for name, inner in value.items()]
    return [(str(place), inner) for place, inner in enumerate(value)] if isinstance(value, list) else []


def steps_of(dotted: str, space: Mapping[str, Any] | None) -> list[str]:
    """Split a dotted key into its steps. A key inside ``sweep.space`` is one step, even if it contains dots.

    Args:
        space: The search space; None if it is unknown.
    """
    steps = dotted.split(".")
    if steps[:2] == ["sweep", "space"] and len(steps) > 3:
        inner, last = ".".join(steps[2:-1]), steps[-1]
        if last in _SPACE_FIELDS and (space is None or inner in space):
            return ["sweep", "space", inner, last]
        return ["sweep", "space", f"{inner}.{last}"]
    return steps


class Layers:
    """The merged values, and the layer that set each value."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.sources: dict[Key, str] = {}

    def copy(self) -> Layers:
        """Return an independent copy."""
        layers = Layers()
        layers.values, layers.sources = copied(self.values), dict(self.sources)
        return layers

    def source_of(self, key: Key, otherwise: str) -> str:
        """Return the layer that set ``key`` or the nearest enclosing mapping, or ``otherwise`` if none did."""
        prefixes = (key[:length] for length in range(len(key), 0, -1))
        return next((self.sources[prefix] for prefix in prefixes if prefix in self.sources), otherwise)

    def split(self, dotted: str) -> list[str]:
        """Return the steps of a dotted key."""
        sweep = self.values.get("sweep") or {}
        return steps_of(dotted, (sweep.get("space") or {}) if isinstance(sweep, Mapping) else {})

    def set(self, dotted: str, value: Any, source: str | SourceOf) -> None:
        """Set one value, overriding all lower layers."""
        for step in reversed(self.split(dotted)):
            value = {step: value}
        self.merge(value, source)

    def merge(self, values: Mapping[str, Any], source: str | SourceOf) -> None:
        """Merge a mapping of sections, overriding all lower layers."""
        self._merge(self.values, values, source if callable(source) else lambda key: source, ())

    def _merge(self, base: Any, over: Mapping[Any, Any], source: SourceOf, at: Key) -> None:
        for name, value in over.items():
            key = (*at, str(name))
            if isinstance(base, list):
                if not str(name).isdecimal() or int(name) >= len(base):
                    last = len(base) - 1
                    raise ConfigError(f"{source(key)}: {'.'.join(key)} must be a position from 0 to {last}")
                name, old = int(name), base[int(name)]
            else:  # 64 and "64" are the same key
                name = next((known for known in base if str(known) == str(name)), name)
                old = base.get(name)
            if _names_part(key, old, value):
                value = {"class_path": value}
            # a mapping merges into one of the same kind, or by position into a list
            if isinstance(value, Mapping):
                if isinstance(old, str) and "init_args" in value:
                    old = base[name] = {"class_path": old}
                in_list = isinstance(old, list) and all(str(i).isdecimal() for i in value)
                if in_list or (isinstance(old, dict) and not _replaces(old, value)):
                    self.sources.setdefault(key, source(key))
                    self._merge(old, value, source, key)
                    continue
            if old is not None:  # a replaced value: the sources of all keys below it are obsolete
                depth = len(key)
                self.sources = {one: layer for one, layer in self.sources.items() if one[:depth] != key}
            if value is None and at == ("arms",) and isinstance(old, dict):
                del base[name]  # null removes an arm of a lower layer
                continue
            base[name] = copied(value)
            self._record(key, value, source)

    def _record(self, key: Key, value: Any, source: SourceOf) -> None:
        self.sources[key] = source(key)
        for name, item in entries_of(value):
            self._record((*key, name), item, source)


def _names_part(key: Key, old: Any, value: Any) -> bool:
    """Return whether a string is shorthand for a part: ``builder: Chain`` for ``builder: {class_path: Chain}``."""
    is_part = key[-1] in (*PARTS, "execution") and (len(key) == 1 or key[0] in ("arms", "sweep"))
    was_part = isinstance(old, Mapping) and "class_path" in old
    return isinstance(value, str) and (is_part or key in _ALWAYS_PARTS or was_part)


def _replaces(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Return whether a mapping replaces the old one: its kind differs, and it sets more than a type or reference."""
    if len(new) == 1 and "class_path" not in new:
        return False
    return any(kind in new and kind in old and _plain(old[kind]) != _plain(new[kind]) for kind in _KINDS)


def _plain(class_path: Any) -> str:
    """Return the short name of a specexp class that is given with its module. Other names are returned unchanged."""
    name = str(class_path)
    return name.rpartition(".")[2] if name.startswith("specexp.") else name


MOST_VALUES = 100_000
"""The maximum number of values to which a file may expand through YAML aliases."""
# octal and sexagesimal integers of YAML 1.1: 010 is 8 and 1:30 is 90
_OTHER_BASE = re.compile(r"[-+]?(0[0-7_]+|[0-9_]+(:[0-9_]+)+)")


def _invalid(node: yaml.Node, problem: str) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)


class _Loader(yaml.SafeLoader):
    """A YAML loader that reads ``1e-3`` as a number, and rejects repeated keys, huge expansions and octal integers."""

    def get_single_node(self) -> yaml.Node | None:
        node: yaml.Node | None = super().get_single_node()
        sizes: dict[int, int] = {}
        if node is not None and _size(node, sizes) > max(MOST_VALUES, len(sizes)):
            raise _invalid(node, f"its aliases expand to more than {MOST_VALUES} values")
        return node

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        number: int = super().construct_yaml_int(node)
        if _OTHER_BASE.fullmatch(node.value):
            raise _invalid(node, f"YAML reads {node.value} as {number}; write {number}, or quote it to make it a text")
        return number

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys: list[Any] = []  # a list, because keys in YAML need not be hashable
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in keys and key_node.tag != "tag:yaml.org,2002:merge":
                raise _invalid(key_node, f"key {key!r} is given twice")
            keys.append(key)
        return super().construct_mapping(node, deep)


def _size(node: yaml.Node, sizes: dict[int, int]) -> int:
    """Return the number of values to which a node expands. It exceeds MOST_VALUES if the node contains itself."""
    if id(node) not in sizes:
        sizes[id(node)] = MOST_VALUES + 1  # used if an alias inside the node refers to it
        inner: list[yaml.Node] = node.value if isinstance(node, yaml.SequenceNode) else []
        if isinstance(node, yaml.MappingNode):
            inner = [one for pair in node.value for one in pair]
        sizes[id(node)] = 1 + sum(_size(one, sizes) for one in inner)
    return sizes[id(node)]


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?([0-9][0-9_]*(\.[0-9_]*)?|\.[0-9][0-9_]*)[eE][-+]?[0-9]+$"),
    list("-+.0123456789"),
)


def read_layers(path: str | Path, overrides: Sequence[str] = ()) -> Layers:
    """Read a file, the files it composes, and the overrides. ``--compose FILE`` adds another file on top."""
    layers = Layers()
    _read(Path(path), layers, ())
    for dotted, value in parse_overrides(overrides):
        if dotted == "arms" and isinstance(value, str | list):  # --arms chain,tree keeps only these arms
            names = [name.strip() for name in value.split(",")] if isinstance(value, str) else map(str, value)
            known = layers.values.get("arms") or {}
            for name in (names := list(names)):
                if name not in known:
                    hint = did_you_mean(name, map(str, known))
                    raise ConfigError(f"{COMMAND_LINE}: --arms: the file has no arm {name!r}{hint}")
            layers.merge({"arms": dict.fromkeys(known.keys() - names)}, COMMAND_LINE)
        elif dotted == "compose":
            for entry in _file_names(value, f"{COMMAND_LINE}: --compose"):
                _read(Path(entry), layers, (Path(COMMAND_LINE),))
        else:
            layers.set(dotted, value, COMMAND_LINE)
    return layers


def value_of(text: str) -> Any:
    """Return the value that a text on the command line means; raises YAMLError, ValueError or RecursionError."""
    return yaml.load(text, _Loader)


def parse_overrides(arguments: Sequence[str]) -> list[tuple[str, Any]]:
    """Convert ``["--builder.init_args.nodes", "12"]`` to ``[("builder.init_args.nodes", 12)]``. Values are YAML."""
    found = []
    waiting = list(arguments)
    while waiting:
        argument = waiting.pop(0)
        if not argument.startswith("--") or len(argument) < 3:
            raise ConfigError(f"{COMMAND_LINE}: write overrides as --key value, got {argument!r}")
        key, equals, text = argument[2:].partition("=")
        if not equals:
            if not waiting or (waiting[0].startswith("--") and len(waiting[0]) > 2):
                raise ConfigError(f"{COMMAND_LINE}: --{key} has no value; write --{key} VALUE")
            text = waiting.pop(0)
        if not text.strip():
            raise ConfigError(f"{COMMAND_LINE}: --{key} has no value; write null for none")
        try:
            found.append((key, value_of(text)))
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            hint = "; quote a value that has spaces" if text[0] in "[{" else ""
            hint = "; patterns are not expanded: name one file or a folder" if text[0] == "*" else hint
            problem = f"({_problem(error)}){hint}"
            raise ConfigError(f"{COMMAND_LINE}: --{key} must be YAML, got {text!r} {problem}") from error
    return found


def _of_artifact(path: Path) -> str:
    return f"; name the study's file first, then --artifact {path}; serve and export take {path} alone"


def read_yaml(path: Path, where: str = "") -> dict[str, Any]:
    """Return the sections of one file, ignoring the files it composes. Errors in reading it begin with ``where``."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        if Path(f"{path}.json").is_file():  # an alias
            raise ConfigError(
                f"{where}{path} must be a YAML file, but it is an artifact{_of_artifact(path)}"
            ) from error
        hint = "" if path.suffix else "; name a YAML file first, and a model with --pair.target"
        raise ConfigError(f"{where}{path} does not exist{near_file(path) or hint}") from error
    except (OSError, UnicodeDecodeError) as error:
        inside = path / "config.yaml"
        hint = f"; did you mean {str(inside)!r}?" if inside.is_file() else ""
        if any((path / name).is_file() for name in ("artifact.json", "best.json")):
            hint = _of_artifact(path)
        if isinstance(error, IsADirectoryError):
            raise ConfigError(f"{where}{path} must be a YAML file, but it is a folder{hint}") from error
        if isinstance(error, UnicodeDecodeError):
            hint = ": save the file as UTF-8"
        raise ConfigError(f"{where}{path} cannot be read ({first_line(error)}){hint}") from error
    try:
        content = yaml.load(text, _Loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        place, problem = _place_and_problem(error, text.splitlines())
        line = "" if place is None else f", line {place + 1}"
        raise ConfigError(f"{path}{line}: not valid YAML ({problem})") from error
    if not isinstance(content, dict):
        what = "is empty" if content is None else f"is a {type(content).__name__}"
        hint = colon_hint(content) if isinstance(content, str) else ""
        raise ConfigError(f"{path} {what}; a mapping of sections such as builder is expected{hint}")
    if path.name == "artifact.json" or content.keys() == {"version"}:  # an artifact, or an alias of one
        folder = path.parent if path.name == "artifact.json" else path.with_suffix("")
        raise ConfigError(f"{where}{path} must be a YAML file, but it is an artifact's{_of_artifact(folder)}")
    return content


def _read(path: Path, layers: Layers, including: tuple[Path, ...]) -> None:
    where = f"{including[-1]}: compose: " if including else ""
    if path.resolve() in [outer.resolve() for outer in including]:
        chain = " -> ".join(str(outer) for outer in (*including, path))
        raise ConfigError(f"{where}{path} composes itself ({chain})")
    content = read_yaml(path, where)
    for entry in _file_names(content.pop("compose", None) or [], f"{path}: compose"):
        # experiments/../configs/x.yaml is shown as configs/x.yaml
        _read(Path(os.path.normpath(path.parent / entry)), layers, (*including, path))
    layers.merge(content, str(path))


def _file_names(given: Any, where: str) -> list[str]:
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, list) or not all(isinstance(entry, str) for entry in names):
        raise ConfigError(f"{where} must be a list of file names, got {given!r}")
    return names


# a line with a key, and perhaps its value, but without a colon
_COLONLESS = re.compile(r"\s*(?:- )?([A-Za-z_][\w.]*)(?:\s+([^:#\s][^:#]*?))?\s*(?:#.*)?")


def _place_and_problem(error: Exception, lines: Sequence[str]) -> tuple[int | None, str]:
    """Return the number, from 0, of the line with a YAML error, or None if it is unknown, and the problem."""
    mark, key, problem = getattr(error, "problem_mark", None), getattr(error, "context_mark", None), _problem(error)
    if mark is None:
        return None, problem
    found, place = None, mark.line
    # YAML misses a colon only at the next one, so the line is that of the key, or the one before
    if problem.startswith("could not find expected ':'") and key is not None:
        place = key.line
        found = _COLONLESS.fullmatch(lines[place])
    elif problem.startswith("mapping values are not allowed") and ":" not in lines[mark.line][: mark.column]:
        place = next((number for number in range(mark.line - 1, -1, -1) if lines[number].strip()), 0)
        found = _COLONLESS.fullmatch(lines[place])
    if found is None:
        return mark.line, problem
    return place, f"a colon is missing: write {f'{found[1]}: {found[2] or str()}'.rstrip()!r}"


def _problem(error: Exception) -> str:
    problem = str(getattr(error, "problem", None) or first_line(error))
    misplaced = problem.startswith(("mapping values are not allowed", "expected <block end>"))
    return f"{problem}: check the indentation of this line and the one above" if misplaced else problem
