"""Values of JSON by their place: all places, and a value with another one in it."""

from typing import Any


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, child in inner for place in places(child, (*path, key)))]


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    changed = dict(value) if isinstance(value, dict) else list(value)
    changed[path[0]] = replaced(value[path[0]], path[1:], new)
    return changed
