"""Chains that another engine drafted: vLLM's detailed metrics of requests, and AIPerf's records of them.

Read for vLLM 0.32.0 (``--per-request-spec-decode-metrics detailed``) and AIPerf 0.13: JSON, or JSON lines, in whose
objects ``per_step_drafted`` and ``per_step_accepted`` stand, beside whatever else there is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specexp.artifacts.manifest import read_bytes, read_json
from specexp.replay.format.errors import RecordingError

ENDINGS = (".json", ".jsonl")
"""Of such a file; a recording of our own is a folder."""
MOST_BYTES = 256 * 2**20
_MOST_TOKENS = 2**20
_DRAFTED, _ACCEPTED = "per_step_drafted", "per_step_accepted"


@dataclass(frozen=True)
class ChainRun:
    """One request.

    Attributes:
        prompt_tokens: tokens of the prompt; 1 where the file does not say.
        drafted: drafted tokens of every step.
        accepted: accepted ones of every step, the bonus token not among them.
    """

    prompt_tokens: int
    drafted: tuple[int, ...]
    accepted: tuple[int, ...]

    @property
    def new_tokens(self) -> int:
        """Tokens put out: one by the prompt's pass, and in every step the accepted ones and the bonus token."""
        return 1 + sum(self.accepted) + len(self.accepted)


def chain_runs(path: Path) -> list[ChainRun]:
    """The requests in a file that tell their steps.

    Args:
        path: JSON, or one JSON object a line; at most 256 MiB.

    Raises:
        RecordingError: it cannot be read, tells of no step, or its numbers are no chain's.

    Example:
        >>> chain_runs(Path("responses.jsonl"))  # doctest: +SKIP
        [ChainRun(prompt_tokens=87, drafted=(3, 3), accepted=(3, 1))]
    """
    data = read_bytes(path.resolve(), str(path), MOST_BYTES)
    lines = data.splitlines() if path.suffix == ".jsonl" else [data]
    runs = []
    for number, line in enumerate(lines, 1):
        where = f"{path}: line {number}" if len(lines) > 1 else str(path)
        if line.strip():
            runs += [_run(found, record, where) for found, record in _metrics(read_json(line, where))]
    if not runs:
        raise RecordingError(
            f"{path} tells no request's steps: serve with --per-request-spec-decode-metrics detailed, and keep "
            "the answers"
        )
    return runs


def accepted_counts(runs: list[ChainRun]) -> dict[int, int]:
    """Steps by how many drafted tokens they accepted."""
    found: dict[int, int] = {}
    for run in runs:
        for accepted in run.accepted:
            found[accepted] = found.get(accepted, 0) + 1
    return dict(sorted(found.items()))


def conditional_rates(runs: list[ChainRun]) -> list[float]:
    """Of every position in a chain, how often its token was accepted where it was drafted and all before it were."""
    longest = max((max(run.drafted, default=0) for run in runs), default=0)
    tried, right = [0] * longest, [0] * longest
    for run in runs:
        for drafted, accepted in zip(run.drafted, run.accepted, strict=True):
            for place in range(min(accepted + 1, drafted)):
                tried[place] += 1
                right[place] += place < accepted
    return [hits / asked if asked else 0.0 for hits, asked in zip(right, tried, strict=True)]


def _metrics(content: Any) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Objects with steps, and the outermost object of the same request, which may say how long the prompt was."""
    if isinstance(content, list):
        for one in content:
            yield from _metrics(one)
    elif isinstance(content, dict):
        if isinstance(content.get(_ACCEPTED), list):
            yield content, content
            return
        for value in content.values():
            if isinstance(value, (dict, list)):
                yield from ((found, content) for found, _ in _metrics(value))


def _run(found: Mapping[str, Any], record: Mapping[str, Any], where: str) -> ChainRun:
    drafted, accepted = found.get(_DRAFTED), found[_ACCEPTED]
    whole = isinstance(drafted, list) and len(drafted) == len(accepted) <= _MOST_TOKENS
    pairs = zip(drafted, accepted, strict=True) if whole and drafted is not None else ((0, -1),)
    if not all(type(a) is type(d) is int and 0 <= a <= d <= _MOST_TOKENS for d, a in pairs):
        raise RecordingError(
            f"{where}: {_DRAFTED} and {_ACCEPTED} are no lists of the same length with 0 <= accepted <= drafted"
        )
    usage = record.get("usage")
    prompt = usage.get("prompt_tokens") if isinstance(usage, dict) else None
    return ChainRun(
        prompt if type(prompt) is int and 0 < prompt <= _MOST_TOKENS else 1,
        tuple(drafted or ()),
        tuple(accepted),
    )
