"""The one error of the configuration layer, and the nearest right name."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class ConfigError(ValueError):
    """A mistake in a configuration: one sentence with file, key, value and what is allowed."""


def did_you_mean(name: object, allowed: Iterable[str]) -> str:
    """``; did you mean 'nodes'?`` or, where nothing is near, ``; allowed are ...`` (``""`` without any)."""
    names = sorted(set(allowed))
    near = get_close_matches(str(name), names, n=1, cutoff=0.5)
    if not near:  # a dotted path given for a bare name, or another case
        near = [
            known for known in names if str(name).lower() in (known.lower(), known.lower().rpartition(".")[2])
        ]
    if near:
        return f"; did you mean {near[0]!r}?"
    return f"; allowed are {', '.join(names)}" if 0 < len(names) <= 16 else ""


def first_line(error: BaseException) -> str:
    """The first sentence of an error raised elsewhere, without its final stop."""
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__
