"""Helpers for messages: counts, suggestions for misspelled names, and one-line versions of other libraries' errors."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from difflib import SequenceMatcher, get_close_matches
from itertools import takewhile
from pathlib import Path
from typing import Any

_LISTED = 64  # maximum number of names in a sentence
_SHOWN = 60  # maximum number of characters of a value in a message


def counted(number: int, noun: str) -> str:
    """Return a count with its noun.

    Example:
        >>> counted(1, "node"), counted(2, "node"), counted(0, "draft pass")
        ('1 node', '2 nodes', '0 draft passes')
    """
    many = "" if number == 1 else "es" if noun.endswith("s") else "s"
    return f"{number} {noun}{many}"


def with_article(noun: str) -> str:
    """Return ``a Drafter``, or ``an Execution``."""
    return f"{'an' if noun[0] in 'AEIO' else 'a'} {noun}"


def size_of(size: float) -> str:
    """Return a number of bytes in human-readable units.

    Example:
        >>> size_of(1_300_000), size_of(4_200)
        ('1.3 MB', '4.2 kB')
    """
    return f"{size / 1e6:.1f} MB" if size >= 1e5 else f"{size / 1e3:.1f} kB"


SAME_MEANING = tuple(
    frozenset(words.split())
    for words in (
        "nodes budget size max_nodes num_nodes tree_size",
        "length depth gamma num_assistant_tokens draft_length max_depth num_speculative_tokens",
        "width branching candidates top_k k num_candidates",
        "threshold confidence min_probability stop_probability",
        "max_new_tokens max_tokens max_length tokens",
        "target model target_model",
        "draft draft_model assistant_model",
        "samples num_samples n",
        "n_trials trials num_trials",
        "max_prompts num_prompts limit",
        "prompts dataset data_set",
        "to output out folder path",
        "seed random_state",
        "target_dtype dtype torch_dtype precision",
        "enable_thinking chat_template_kwargs",
    )
)
"""Groups of synonyms among our keys and those of other projects."""


def did_you_mean(name: object, allowed: Iterable[str]) -> str:
    """Return ``; did you mean 'nodes'?``, or the allowed names if none is close and there are not too many to list.

    A name is close if its last component matches, is a synonym (:data:`SAME_MEANING`), or is spelled similarly. The
    dotted prefix that all names share is ignored.

    Example:
        >>> did_you_mean("node", ["nodes", "depth"]), did_you_mean("nodes", ["budget", "branches"])
        ("; did you mean 'nodes'?", "; did you mean 'budget'?")
    """
    names = sorted(set(allowed))
    leading = zip(*(one.split(".")[:-1] for one in (str(name), *names)), strict=False)
    shared = len(list(takewhile(lambda steps: len(set(steps)) == 1, leading)))
    given, last = _comparable(str(name), shared)
    synonyms = {other for words in SAME_MEANING if last in words for other in words}

    def nearness(known: str) -> float:
        plain, known_last = _comparable(known, shared)
        if known_last == last:
            return 1.0
        begun = len(last) > 2 and known_last.replace("_", "").startswith(last.replace("_", ""))  # len for length
        ratio = SequenceMatcher(None, plain, given).ratio()
        return max(ratio, 0.75 * (known_last in synonyms), (0.9 + 0.1 * ratio) * begun)

    nearest = max(names, key=nearness, default="")
    if nearest and nearness(nearest) >= 0.75:
        return f"; did you mean {nearest!r}?"
    if last in ("temperature", "top_k", "top_p"):
        return f"; sampling is set by verifier: KeyedSampling, with verifier.init_args.{last}"
    level = min((known.count(".") for known in names), default=0)
    shallow = [known for known in names if known.count(".") == level]  # listing nested keys too would be too long
    return f"; allowed are {', '.join(shallow)}" if 0 < len(shallow) <= _LISTED else ""


def nested_hint(name: str, allowed: Iterable[object]) -> str:
    """Return a hint that nests a dotted key of a file, if its first component is allowed; else an empty text.

    Example:
        >>> nested_hint("builder.init_args.length", ["builder"])
        '; a file nests its keys: builder: {init_args: {length: ...}}'
    """
    first, *inner = name.split(".")
    if not inner or first not in allowed:
        return ""
    return f"; a file nests its keys: {first}: {{" + ": {".join(inner) + ": ..." + "}" * len(inner)


def colon_hint(text: str, allowed: Iterable[object] | None = None) -> str:
    """Return a hint if a text looks like a key and its value without the colon between them; else an empty text.

    ``allowed`` are the possible keys; None if any is possible.

    Example:
        >>> colon_hint("length 3"), colon_hint("Chain")
        ("; a colon is missing: write 'length: 3'", '')
    """
    key, space, value = text.partition(" ")
    found = space and key.isidentifier() and (allowed is None or key in allowed)
    right = f"{key}: {value.strip(': ')}"
    return f"; a colon is missing: write {right!r}" if found else ""


_KINDS = {"int": "an integer", "float": "a number", "positive_integer": "an integer >= 1", "amount": "a number >= 0",
          "json_object": "a JSON object"}  # fmt: skip


def option_message(message: str) -> str:
    """Return an error message of argparse as a sentence with the option, what it must be and what it is.

    Example:
        >>> option_message("argument --port: invalid int value: 'many'")
        "--port must be an integer, got 'many'"
    """
    message = message.removeprefix("argument ")
    if wrong := re.fullmatch(r"(.+?): invalid (\w+) value: (.+)", message):
        return f"{wrong[1]} must be {_KINDS.get(wrong[2], wrong[2])}, got {wrong[3]}"
    if wrong := re.fullmatch(r"(.+?): invalid choice: (.+) \(choose from (.+)\)", message):
        near = did_you_mean(wrong[2].strip("'"), re.findall(r"'([^']+)'", wrong[3]))
        return f"{wrong[1]} must be one of {wrong[3]}, got {wrong[2]}{near if near.startswith('; did') else ''}"
    return re.sub(r"^(\S+): (?=must )", r"\1 ", message)  # an ArgumentTypeError


def near_file(path: Path) -> str:
    """Return ``; did you mean 'my.jsonl'?`` with the most similar name in the same folder; empty if there is none."""
    names: list[str] = []
    with suppress(OSError, ValueError):
        names = [entry.name for entry in path.parent.iterdir() if entry.name != path.name]
    # with the default cutoff, a shared extension would be enough for a match
    near = get_close_matches(path.name, names, n=1, cutoff=0.8)
    return f"; did you mean {str(path.parent / near[0])!r}?" if near else ""


def _comparable(name: str, shared: int) -> tuple[str, str]:
    """Return a name without its first ``shared`` components, and its last component."""
    steps = name.lower().lstrip("-").replace("-", "_").split(".")[shared:]
    return ".".join(steps), steps[-1]


def shown(value: object) -> str:
    """Return a value as one line of text, shortened if it is long."""
    text = " ".join(repr(value).split())
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


def first_line(error: BaseException) -> str:
    """Return the first line of an error without its final period, or its type if it has no text."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if len(lines) > 1 and lines[0].endswith(":"):  # the first line only introduces the next
        lines[0] = f"{lines[0]} {lines[1]}"
    return lines[0].rstrip(".") if lines else type(error).__name__


def type_and_line(error: BaseException) -> str:
    """Return the type of an unexpected error and its first line."""
    name, line = type(error).__name__, first_line(error)
    return name if line == name else f"{name}: {line}"


@contextmanager
def restated(kind: type[Exception] | tuple[type[Exception], ...], state: Callable[[Any], Exception]) -> Iterator[None]:
    """Raise an error of ``kind`` in the block again, as the error that ``state`` makes of it."""
    try:
        yield
    except kind as error:
        raise state(error) from error
