"""Layers of configuration: files composed into each other, the command line on top; later wins.

Every key remembers the layer that set it, so that an error can name the file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from specexp.core.messages import did_you_mean, first_line

Key = tuple[str, ...]

PARTS = ("drafter", "builder", "verifier", "controller")
"""Sections that are one part each; a bare text in their place is the class."""

# A mapping that names another kind replaces the old one: arguments of one class mean nothing to another.
_KINDS = ("class_path", "type", "reference")
SPACE_FIELDS = ("type", "low", "high", "log", "step", "at_most", "choices")


def copied(value: Any) -> Any:
    """Mappings and lists anew, what is in them as it is: a file holds nothing else that can change."""
    if isinstance(value, str | int | float | None):  # soonest told
        return value
    if isinstance(value, Mapping):
        return {name: copied(inner) for name, inner in value.items()}
    return [copied(item) for item in value] if isinstance(value, list) else value


class Layers:
    """Merged values, and where each came from.

    Attributes:
        values: the merged mapping.
    """

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self._sources: dict[str, dict[Key, str]] = {}  # of every key at every depth, by section
        self._shared: set[str] = set()

    def copy(self) -> Layers:
        """Layers to lay more on, while these stay as they are; a section is copied when something is laid on it."""
        copied = Layers()
        copied.values, copied._sources = dict(self.values), dict(self._sources)
        copied._shared = set(self.values)
        return copied

    def source_of(self, key: Key, otherwise: str = "configuration") -> str:
        """The layer that set ``key``, or the nearest mapping around it."""
        sources = self._sources.get(key[0], {}) if key else {}
        for length in range(len(key), 0, -1):
            if key[:length] in sources:
                return sources[key[:length]]
        return otherwise

    def origin_of(self, key: Key) -> str | None:
        """The layer that set exactly ``key``; None where none did."""
        return self._sources.get(key[0], {}).get(key)

    def attribute(self, key: Key, source: str) -> None:
        """Let a layer have set a key."""
        self._sources.setdefault(key[0], {})[key] = source

    def merge(self, values: Mapping[str, Any], source: str) -> None:
        """Lay a mapping of sections on top."""
        for section in values:
            self._own(str(section))
        self._merge(self.values, values, source, ())

    def set(self, dotted: str, value: Any, source: str) -> None:
        """Lay one value on top.

        Raises:
            ConfigError: the key goes through something that is no mapping, or through a list past its end.
        """
        *outer, last = self.split(dotted)
        if last == "class_path" and outer:
            return self.set(".".join(outer), {"class_path": value}, source)
        self._own((*outer, last)[0])
        here: Any = self.values
        for depth, name in enumerate(outer):
            key = (*outer[: depth + 1],)
            place: Any = _index(here, name, key, source) if isinstance(here, list) else name
            if isinstance(here, dict) and here.get(name) is None:
                here[name] = {}
                self.attribute(key, source)
            if isinstance(here[place], str) and (*outer, last)[depth + 1] == "init_args":
                here[place] = {"class_path": here[place]}
            here = here[place]
            if not isinstance(here, dict | list):
                raise ConfigError(f"{source}: {dotted} cannot be set, for {'.'.join(key)} is {here!r}")
        if isinstance(here, list):
            number = _index(here, last, (*outer, last), source)
            cell = {last: here[number]}
            self._merge(cell, {last: value}, source, tuple(outer))
            here[number] = cell[last]
        else:
            self._merge(here, {last: value}, source, tuple(outer))

    def remove(self, key: Key) -> None:
        """Take out what stands at a key."""
        self._own(key[0])
        *outer, last = key
        here: Any = self.values
        for step in outer:
            here = here[step]
        del here[last]
        sources = self._sources.get(key[0], {})
        for known in [known for known in sources if known[: len(key)] == key]:
            del sources[known]

    def _own(self, section: str) -> None:
        """Copy a section that other layers share."""
        if section in self._shared:
            self._shared.remove(section)
            self.values[section] = copied(self.values[section])
            self._sources[section] = dict(self._sources.get(section, {}))

    def split(self, dotted: str) -> list[str]:
        """The steps of a dotted key; a key of ``sweep.space`` holds dots itself."""
        steps = dotted.split(".")
        if steps[:2] == ["sweep", "space"] and len(steps) > 3:
            known = (self.values.get("sweep") or {}).get("space") or {}
            inner = ".".join(steps[2:-1])
            if steps[-1] in SPACE_FIELDS and inner in known:
                return ["sweep", "space", inner, steps[-1]]
            return ["sweep", "space", ".".join(steps[2:])]
        return steps

    def _merge(self, base: dict[str, Any], over: Mapping[str, Any], source: str, at: Key) -> None:
        for name, value in over.items():
            key = (*at, str(name))
            name = next((known for known in base if str(known) == str(name)), name)  # 64 and "64" are one key
            old = base.get(name)
            value = _as_part(key, old, value)
            if isinstance(old, str) and isinstance(value, Mapping) and "init_args" in value:
                old = base[name] = {"class_path": old}
            if isinstance(value, Mapping) and isinstance(old, dict) and not _another_kind(old, value):
                if self.origin_of(key) is None:
                    self.attribute(key, source)
                self._merge(old, value, source, key)
                continue
            sources = self._sources.setdefault(key[0], {})
            for known in [known for known in sources if known[: len(key)] == key]:
                del sources[known]
            if value is None and key[:-1] == ("arms",) and isinstance(old, dict):  # null takes an arm out
                del base[name]
                continue
            base[name] = copied(value)
            self._record(key, value, source)

    def _record(self, key: Key, value: Any, source: str) -> None:
        self.attribute(key, source)
        inner = (
            value.items()
            if isinstance(value, Mapping)
            else enumerate(value)
            if isinstance(value, list)
            else ()
        )
        for name, item in inner:
            self._record((*key, str(name)), item, source)


def _as_part(key: Key, old: Any, value: Any) -> Any:
    """``builder: Chain`` is ``builder: {class_path: Chain}``."""
    if not isinstance(value, str):
        return value
    always = (("data", "prompts"), ("reasoning", "search"))
    known_part = key[-1:] in [(part,) for part in (*PARTS, "execution")] and (
        len(key) == 1 or key[0] in ("arms", "sweep")
    )
    return {"class_path": value} if known_part or key in always or _is_part(old) else value


def _is_part(value: Any) -> bool:
    return isinstance(value, Mapping) and "class_path" in value


def _another_kind(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    return any(kind in new and kind in old and not _same(str(old[kind]), str(new[kind])) for kind in _KINDS)


def _same(one: str, other: str) -> bool:
    """Whether two class paths mean one class: our own go by the short name and by their module."""
    if one == other:
        return True
    own = all("." not in name or name.startswith("specexp.") for name in (one, other))
    return own and one.rpartition(".")[2] == other.rpartition(".")[2]


def _index(items: Sequence[Any], name: str, key: Key, source: str) -> int:
    if not name.isdecimal() or int(name) >= len(items):
        raise ConfigError(
            f"{source}: {'.'.join(key)} does not exist; the list has positions 0 to {len(items) - 1}"
        )
    return int(name)


class ConfigError(ValueError):
    """A mistake in a configuration: one sentence with file, key, value and what is allowed."""


COMMAND_LINE = "command line"


MOST_VALUES = 100_000
"""Values that a file may stand for where aliases repeat some of them."""


_READ_OTHERWISE = re.compile(r"[-+]?(0[0-7_]+|[0-9_]+(:[0-9_]+)+)")
"""Octal and sexagesimal integers: ``010`` is 8 and ``1:30`` is 90."""


class _Loader(yaml.SafeLoader):
    """YAML in which ``1e-3`` is a number.

    A key given twice, aliases that explode, and integers that YAML 1.1 reads otherwise than a person are errors.
    """

    def get_single_node(self) -> yaml.Node | None:
        """The document, once its aliases are counted and before they are expanded."""
        node: yaml.Node | None = super().get_single_node()
        if node is not None:
            _check_aliases(node)
        return node

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        number: int = super().construct_yaml_int(node)
        if _READ_OTHERWISE.fullmatch(node.value):
            raise yaml.MarkedYAMLError(
                problem=f"YAML reads {node.value} as {number}; write {number} if it is meant, or quote a text",
                problem_mark=node.start_mark,
            )
        return number

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key_node.tag != "tag:yaml.org,2002:merge":
                if isinstance(key, list | dict):
                    raise yaml.MarkedYAMLError(
                        problem="a key must be a text", problem_mark=key_node.start_mark
                    )
                if isinstance(key, str) and "\u00a0" in key:
                    raise yaml.MarkedYAMLError(
                        problem=f"key {key!r} holds a no-break space; type ordinary ones",
                        problem_mark=key_node.start_mark,
                    )
                if key in seen:
                    raise yaml.MarkedYAMLError(
                        problem=f"key {key!r} is given twice", problem_mark=key_node.start_mark
                    )
                seen.add(key)
        return super().construct_mapping(node, deep)


def _check_aliases(root: yaml.Node) -> None:
    """Refuse a document that stands for too many values, or for endless ones; every node is looked at once."""
    values: dict[int, int] = {}
    entered: set[int] = set()
    waiting = [root]
    while waiting:
        node = waiting[-1]
        inner = _inside(node)
        if id(node) in values:
            waiting.pop()
        elif id(node) not in entered:
            entered.add(id(node))
            waiting += inner
        elif any(id(one) not in values for one in inner):
            raise yaml.MarkedYAMLError(problem="an alias stands inside itself", problem_mark=node.start_mark)
        else:
            values[id(node)] = 1 + sum(values[id(one)] for one in inner)
            waiting.pop()
    if values[id(root)] > max(MOST_VALUES, len(values)):
        raise yaml.MarkedYAMLError(
            problem=f"its aliases stand for more than {MOST_VALUES} values; write fewer of them",
            problem_mark=root.start_mark,
        )


def _inside(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [one for pair in node.value for one in pair]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?([0-9][0-9_]*(\.[0-9_]*)?|\.[0-9][0-9_]*)[eE][-+]?[0-9]+$"),
    list("-+.0123456789"),
)


def read_layers(path: str | Path, overrides: Sequence[str] = ()) -> Layers:
    """Read a file, what it composes, and the overrides; ``--compose FILE`` lays another file on top.

    Raises:
        ConfigError: a file is missing, is no YAML mapping, or composes itself; an override is malformed.
    """
    layers = Layers()
    _read(Path(path), layers, ())
    for dotted, value in parse_overrides(overrides):
        if dotted == "arms" and isinstance(value, str | list):
            _choose_arms(value, layers)
            continue
        if dotted != "compose":
            layers.set(dotted, value, COMMAND_LINE)
            continue
        for entry in _file_names(value, f"{COMMAND_LINE}: --compose", "file names"):
            _read(Path(entry), layers, (Path(COMMAND_LINE),))
    return layers


def _choose_arms(given: str | list[Any], layers: Layers) -> None:
    """Keep some of the arms: ``--arms chain,tree``.

    Raises:
        ConfigError: one is none of the file's.
    """
    names = (
        [name.strip() for name in given.split(",")] if isinstance(given, str) else [str(one) for one in given]
    )
    arms = layers.values.get("arms")
    known = arms if isinstance(arms, dict) else {}
    for name in names:
        if name not in known:
            raise ConfigError(
                f"{COMMAND_LINE}: --arms: the file has no arm {name!r}{did_you_mean(name, map(str, known))}"
            )
    for name in [name for name in known if name not in names]:
        layers.remove(("arms", name))


def parse_overrides(arguments: Sequence[str]) -> list[tuple[str, Any]]:
    """``["--builder.init_args.nodes", "12"]`` to ``[("builder.init_args.nodes", 12)]``; values are YAML."""
    found = []
    waiting = list(arguments)
    while waiting:
        argument = waiting.pop(0)
        if not argument.startswith("--") or len(argument) < 3:
            raise ConfigError(
                f"{COMMAND_LINE}: {argument!r} is no override; write --key value, as in --generation.seed 1"
            )
        key, equals, text = argument[2:].partition("=")
        if not equals:
            if not waiting or (waiting[0].startswith("--") and len(waiting[0]) > 2):
                raise ConfigError(
                    f"{COMMAND_LINE}: --{key} has no value; write --{key} VALUE or --{key}=VALUE"
                )
            text = waiting.pop(0)
            if text == "=":
                raise ConfigError(
                    f"{COMMAND_LINE}: --{key} is followed by a lone =; write --{key} VALUE or --{key}=VALUE"
                )
        if not text.strip():
            raise ConfigError(f"{COMMAND_LINE}: --{key} is given no value; write null where none is meant")
        try:
            found.append((key, yaml.load(text, _Loader)))
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            raise ConfigError(
                f"{COMMAND_LINE}: --{key} {text!r} is no YAML value ({_problem(error)}){_quoting(text)}"
            ) from error
    return found


def read_yaml(path: Path, where: str = "") -> dict[str, Any]:
    """The sections of one file, without what it composes.

    Args:
        path: The file.
        where: Begins the message if it cannot be read.

    Raises:
        ConfigError: It is missing, or is no YAML mapping.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ConfigError(f"{where}{path} does not exist{_near_file(path)}") from error
    except IsADirectoryError as error:
        inside = path / "config.yaml"
        hint = f"; did you mean {str(inside)!r}?" if inside.is_file() else ""
        raise ConfigError(f"{where}{path} cannot be read: it is a folder, not a YAML file{hint}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{where}{path} cannot be read ({first_line(error)}): save the file as UTF-8"
        ) from error
    except OSError as error:
        raise ConfigError(f"{where}{path} cannot be read ({first_line(error)})") from error
    try:
        content = yaml.load(text, _Loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark is not None else ""
        raise ConfigError(f"{path}{line}: not valid YAML ({_problem(error)})") from error
    if content is None:
        raise ConfigError(f"{path} is empty; a mapping of sections such as builder is expected")
    if not isinstance(content, dict):
        raise ConfigError(
            f"{path}: holds {type(content).__name__}, but a mapping of sections such as builder is expected"
        )
    return content


def _read(path: Path, layers: Layers, including: tuple[Path, ...]) -> None:
    where = f"{including[-1]}: compose: " if including else ""
    if path.resolve() in [outer.resolve() for outer in including]:
        chain = " -> ".join(str(outer) for outer in (*including, path))
        raise ConfigError(f"{where}{path} composes itself ({chain})")
    content = read_yaml(path, where)
    composed = content.pop("compose", None) or []
    for entry in _file_names(composed, f"{path}: compose", "file names relative to this file"):
        _read(_tidy(path.parent / entry), layers, (*including, path))
    layers.merge(content, str(path))


def _file_names(given: Any, where: str, expected: str) -> list[str]:
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, list) or not all(isinstance(entry, str) for entry in names):
        raise ConfigError(f"{where} is {given!r}; a list of {expected} is expected")
    return names


def _tidy(path: Path) -> Path:
    """``experiments/../configs/x.yaml`` reads as ``configs/x.yaml``."""
    steps: list[str] = []
    for step in path.parts:
        if step == ".." and steps and steps[-1] not in ("..", path.anchor):
            steps.pop()
        else:
            steps.append(step)
    return Path(*steps)


def _near_file(path: Path) -> str:
    from difflib import get_close_matches

    if not path.parent.is_dir():
        return ""
    near = get_close_matches(path.name, sorted(file.name for file in path.parent.glob("*.y*ml")), n=1)
    return f"; did you mean {str(path.parent / near[0])!r}?" if near else ""


def _quoting(text: str) -> str:
    """Advice for a list or mapping that the shell cut at a space, or for a pattern of file names."""
    if text[:1] == "*":
        return "; a pattern is not expanded, name one file or a folder"
    return (
        "; quote a value that holds spaces" if text[:1] in ("[", "{") and text[-1] not in ("]", "}") else ""
    )


def _problem(error: Exception) -> str:
    problem = getattr(error, "problem", None)
    return str(problem) if problem else first_line(error)
