"""Wording of messages: counts, the nearest allowed name, and other libraries' errors in one line."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import SequenceMatcher, get_close_matches


def counted(number: int, noun: str) -> str:
    """Return a count with its noun.

    Example:
        >>> counted(1, "node"), counted(2, "node"), counted(0, "draft pass")
        ('1 node', '2 nodes', '0 draft passes')
    """
    many = "" if number == 1 else "es" if noun.endswith("s") else "s"
    return f"{number} {noun}{many}"


def size_of(size: float) -> str:
    """Return bytes in readable units.

    Example:
        >>> size_of(1_300_000), size_of(4_200)
        ('1.3 MB', '4.2 kB')
    """
    return f"{size / 1e6:.1f} MB" if size >= 1e5 else f"{size / 1e3:.1f} kB"


def did_you_mean(name: object, allowed: Iterable[str]) -> str:
    """Return ``; did you mean 'nodes'?`` or, if nothing is near, ``; allowed are ...`` (``""`` without any).

    Near names have the same last step, another word for it (:data:`SAME_MEANING`), or a similar spelling, compared
    after the dotted prefix that all names share.

    Example:
        >>> did_you_mean("node", ["nodes", "depth"]), did_you_mean("nodes", ["budget", "branches"])
        ("; did you mean 'nodes'?", "; did you mean 'budget'?")
    """
    names = sorted(set(allowed))
    prefix = _common_prefix([str(name), *names])
    given = _plain(str(name)[len(prefix) :])
    last = {known: _plain(known).rpartition(".")[2] for known in names}
    word = given.rpartition(".")[2]
    near = [known for known in names if last[known] == word]
    if not near:
        meant = {other for words in SAME_MEANING if word in words for other in words}
        near = [known for known in names if last[known] in meant]
        rest = {_plain(known[len(prefix) :]): known for known in names}
        spelt = get_close_matches(given, rest, n=1, cutoff=0.65)
        if spelt and (not near or _letters(given, spelt[0]) >= 0.75):
            near = [rest[spelt[0]]]
    if not near:  # without the shared prefix, which is alike in any case
        whole = {known[len(prefix) :]: known for known in names}
        near = [whole[one] for one in get_close_matches(str(name)[len(prefix) :], whole, n=1, cutoff=0.9)]
    if near:
        return f"; did you mean {near[0]!r}?"
    level = min((known.count(".") for known in names), default=0)
    shallow = [known for known in names if known.count(".") == level]  # nested keys would be too many
    return f"; allowed are {', '.join(shallow)}" if 0 < len(shallow) <= _LISTED else ""


_LISTED = 64  # most names in a sentence

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
    )
)
"""Synonyms among our keys and those of other projects."""


def _common_prefix(names: list[str]) -> str:
    """Return the dotted steps that all names begin with, without the last step of any name."""
    shared: list[str] = []
    for steps in zip(*(name.split(".")[:-1] for name in names), strict=False):
        if len(set(steps)) > 1:
            break
        shared.append(steps[0])
    return "".join(f"{step}." for step in shared)


def _plain(name: str) -> str:
    return name.lower().lstrip("-").replace("-", "_")


def _letters(one: str, other: str) -> float:
    """Return the similarity of two spellings, from 0 to 1."""
    return SequenceMatcher(None, one, other).ratio()


_SHOWN = 60  # most characters of a value in a message


def shown(value: object) -> str:
    """Return a value as one line, cut if it is long."""
    text = " ".join(repr(value).split())
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


def first_line(error: BaseException) -> str:
    """Return the first line of an error without its final stop, or its type if it has no text."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if len(lines) > 1 and lines[0].endswith(":"):  # it only announces the next line
        lines[0] = f"{lines[0]} {lines[1]}"
    return lines[0].rstrip(".") if lines else type(error).__name__


def type_and_line(error: BaseException) -> str:
    """Return the type of an unexpected error and its first line.

    Example:
        >>> type_and_line(KeyError("nodes"))
        "KeyError: 'nodes'"
    """
    name, line = type(error).__name__, first_line(error)
    return name if line == name else f"{name}: {line}"
