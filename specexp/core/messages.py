"""How sentences are worded: counts of things, the nearest right name, and other libraries' errors in one line."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def counted(number: int, noun: str) -> str:
    """So many of something.

    Example:
        >>> counted(1, "node"), counted(2, "node"), counted(0, "draft pass")
        ('1 node', '2 nodes', '0 draft passes')
    """
    many = "" if number == 1 else "es" if noun.endswith("s") else "s"
    return f"{number} {noun}{many}"


def did_you_mean(name: object, allowed: Iterable[str]) -> str:
    """``; did you mean 'nodes'?`` or, where nothing is near, ``; allowed are ...`` (``""`` without any).

    Example:
        >>> did_you_mean("node", ["nodes", "depth"])
        "; did you mean 'nodes'?"
    """
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
    """The first line of an error raised elsewhere, without its final stop; its type where it says nothing."""
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__


def type_and_line(error: BaseException) -> str:
    """The type of an error nobody expected, and its first line.

    Example:
        >>> type_and_line(KeyError("nodes"))
        "KeyError: 'nodes'"
    """
    name, line = type(error).__name__, first_line(error)
    return name if line == name else f"{name}: {line}"
