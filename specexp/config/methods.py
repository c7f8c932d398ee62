"""``method`` in a search space: choices that set several parts at once, because they go together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specexp.core.messages import did_you_mean

METHOD = "method"
"""Key of ``sweep.space`` whose choices are whole methods: a drafter with its builder and controller."""

PARTS_OF_A_METHOD = ("drafter", "builder", "controller")


def check_method(choice: Any) -> None:
    """Refuse a choice of ``method`` that is not a name with parts.

    Raises:
        ValueError: in one sentence.
    """
    if not isinstance(choice, Mapping) or not isinstance(choice.get("name"), str):
        raise ValueError(
            f"choice {choice!r} needs a name and parts, as in {{name: chain, drafter: ..., builder: ...}}"
        )
    parts = [key for key in choice if key != "name"]
    if not parts:
        raise ValueError(f"{choice['name']!r} sets nothing; a method sets {', '.join(PARTS_OF_A_METHOD)}")
    for part in parts:
        if part not in PARTS_OF_A_METHOD:
            hint = did_you_mean(part, PARTS_OF_A_METHOD)
            raise ValueError(f"{choice['name']!r} sets {part!r}, which is no part of a method{hint}")


def overrides_of(key: str, value: Any) -> dict[str, Any]:
    """A chosen value as overrides of a composition: the parts of a method, or the value under its own key.

    Example:
        >>> overrides_of("method", {"name": "chain", "builder": {"class_path": "Chain"}})
        {'builder': {'class_path': 'Chain'}}
    """
    if key != METHOD:
        return {key: value}
    return {part: spec for part, spec in value.items() if part != "name"}


def with_parts(overrides: Mapping[str, Any], methods: Mapping[str, Any]) -> dict[str, Any]:
    """Overrides in which a method is named, with its parts in the place of the name.

    Args:
        overrides: What a configuration that is measured first changes; ``method`` is the name of a choice.
        methods: Parts of each method of the space.

    Raises:
        LookupError: there is no method of this name.

    Example:
        >>> chain = {"builder": {"class_path": "Chain"}}
        >>> with_parts({"method": "chain", "builder.init_args.length": 2}, {"chain": chain})
        {'builder': {'class_path': 'Chain'}, 'builder.init_args.length': 2}
    """
    given = dict(overrides)
    return {**methods[given.pop(METHOD)], **given} if METHOD in given else given
