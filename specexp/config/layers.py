"""Layers of configuration: files composed into each other, the command line on top; later wins.

Every key remembers the layer that set it, so that an error can name the file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from specexp.config.errors import ConfigError

Key = tuple[str, ...]

PARTS = ("drafter", "builder", "verifier", "controller")
"""Sections that are one part each; a bare text in their place is the class."""

# A mapping that names another kind replaces the old one: arguments of one class mean nothing to another.
_KINDS = ("class_path", "type", "reference")
SPACE_FIELDS = ("type", "low", "high", "log", "step", "at_most", "choices")


def copied(value: Any) -> Any:
    """Mappings and lists anew, what is in them as it is: a file holds nothing else that can change."""
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
