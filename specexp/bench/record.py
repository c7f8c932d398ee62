"""The record of one prompt decoded by one arm, stored as one line of JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from inspect import signature
from itertools import accumulate, pairwise, zip_longest
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from specexp.tracking.names import FORMERLY_PLAIN, PLAIN

MEASURED = "measured"
"""The clock of records with measured seconds, as opposed to seconds from a latency profile."""
FEWEST_TOKENS = 8
"""Fewest tokens of an answer, before any repetition, from which decoding can be measured."""
MOST_RANDOM = 0.05
"""Largest share of random decisions at which an arm is compared."""
LEARNED = MOST_RANDOM / 500
"""Share of random decisions at which a warm-up ends. A step that explores drafts to the end and decides as often as
five others. One of a hundred measured steps may therefore make more than 5 % of the decisions."""
COUNTS = ("steps", "accepted_drafts", "bonus_tokens", "draft_passes", "drafted_nodes")
"""Counts that every sequence has; see :class:`PromptRecord`."""


def by_position(counts: Iterable[Sequence[int]]) -> tuple[int, ...]:
    """Add up counts by position. The sequences may have different lengths.

    Example:
        >>> by_position([(3, 1), (2,)])
        (5, 1)
    """
    return tuple(sum(at) for at in zip_longest(*counts, fillvalue=0))


def describe(part: object) -> str:
    """Return a part's class name with the arguments that are not None, e.g. ``KeyedSampling(temperature=0.7)``."""
    kind: Any = type(part)
    arguments = ((name, getattr(part, name, None)) for name in _arguments_of(kind))
    inner = ", ".join(f"{name}={value}" for name, value in arguments if value is not None)
    return f"{type(part).__name__}({inner})" if inner else type(part).__name__


@cache  # called for every answer
def _arguments_of(kind: type) -> tuple[str, ...]:
    return tuple(signature(kind).parameters)


@dataclass(frozen=True)
class Difference:
    """The first position at which an output differs from plain decoding's."""

    index: int  # index of the token, from 0 over all turns
    # distance between plain decoding's two best tokens there, in logits + T * noise, or to the top-k or top-p
    # cutoff if that is closer; None if it could not be measured
    gap: float | None
    near_tie: bool  # whether the gap is within the tolerance of the dtype


@dataclass(frozen=True)
class Role:
    """One component of a search. Its fields are sums over its sequences, as in :class:`PromptRecord`.

    A target pass over several sequences counts as one step for each of them. Seconds are those of the runs that the
    component requested. ``drafted_positions`` is the sum of the trees' depths.
    """

    sequences: int = 0
    tokens: int = 0
    steps: int = 0
    accepted_drafts: int = 0
    drafted_nodes: int = 0
    draft_passes: int = 0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    drafted_positions: int = 0


@dataclass(frozen=True)
class SequenceGroup:
    """Several sequences that were decoded for one prompt."""

    sequences: int
    wall_seconds: float  # end to end, including search, prompts and tokenization
    busy_seconds: float  # seconds in which the target ran a pass or a prefill
    # ``generator`` and ``evaluator`` of a search; otherwise ``continuations`` alone
    roles: dict[str, Role] = field(default_factory=dict)
    correct: bool | None = None  # whether the task's checker accepts the answer; None without a task
    unparsable: int = 0  # number of evaluations that could not be parsed
    # bytes of draft models after the run: ``weights``, and ``caches`` of all sequences
    draft_bytes: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class PromptRecord:
    """Record of one prompt and one arm, summed over the turns. Created by :meth:`specexp.bench.arm.Arm.record`.

    Seconds per token, ``decode_seconds / decode_tokens``, are the steady-state cost of a token after a cached prompt.
    In our arms, the prefill feeds all prompt tokens but the last, and steps produce every new token:
    ``decode_tokens == new_tokens``. Hugging Face's ``generate`` returns its first tokens from its pass over the
    prompt. That pass counts as prefill, and ``decode_tokens`` excludes its tokens.
    """

    arm: str
    prompt_id: str
    category: str
    sample: int = 0  # index of the continuation, from 0
    prompt_tokens: int = 0  # prompt tokens fed over all turns, excluding answers
    token_ids: tuple[int, ...] = ()  # the new tokens of all turns; an EOS token is included
    turn_tokens: tuple[int, ...] = ()
    finish_reasons: tuple[str, ...] = ()  # of each turn: a :data:`~specexp.core.outcome.FinishReason`
    steps: int = 0  # target passes that produced tokens
    accepted_drafts: int = 0
    bonus_tokens: int = 0
    draft_passes: int = 0  # forward passes of a draft model
    drafted_nodes: int = 0  # nodes fed to the target, excluding roots
    # number of steps in which the tree reached each depth, from depth 1 on; empty if not counted
    drafted_at: tuple[int, ...] = ()
    accepted_at: tuple[int, ...] = ()  # number of steps in which the accepted path reached each depth
    decisions: tuple[int, int] = (0, 0)  # numbers of the controller's decisions and of the random ones
    epsilon: float = 0.0  # share of its decisions that are random after this prompt
    # source of each new token (:class:`~specexp.bench.observers.Sources`); empty if no steps were observed
    sources: tuple[int, ...] = ()
    # numbers of fed and accepted nodes, by the drafter that proposed them; empty if no steps were observed
    nodes_by_source: dict[str, tuple[int, int]] = field(default_factory=dict)
    prefill_seconds: float = 0.0  # seconds before decoding; 0 if seconds are modelled
    decode_seconds: float = 0.0
    decode_tokens: int = 0  # tokens decoded in ``decode_seconds``
    # tokens and steps of the repetition in which an answer ends, and their seconds; they do not count in speeds
    loop_tokens: int = 0
    loop_steps: int = 0
    loop_seconds: float = 0.0
    # decode seconds by phase; empty for Hugging Face's own loops, which are not split
    seconds: dict[str, float] = field(default_factory=dict)
    dtype: str = ""
    device: str = ""
    state: str = "stateless"  # ``cold``, ``carry``, ``preloaded``, or ``stateless``
    verifier: str = ""  # the verifier with its arguments, e.g. ``KeyedSampling(temperature=0.7)``
    lossless: bool = True  # whether the output has the target's distribution
    # whether the output depends only on target, prompt, seed and sample, so that it can be compared with plain
    # decoding token by token
    keyed: bool = True
    seed: int = 0
    clock: str = MEASURED  # ``measured``, or the label of the latency profile that models the seconds
    beyond_profile: int = 0  # target passes that fed more tokens than the profile covers
    # sequences decoded together, each of which counts as a turn; None for a single conversation
    group: SequenceGroup | None = None
    memory_bytes: int | None = None  # main memory of an engine's own processes; None if unknown
    start_seconds: float | None = None  # time until these processes were ready
    turn_in_rotation: int = 0  # position of the arm in this prompt's order of arms, from 0
    # whether its time was out of line with the arm's other prompts, and not repeatable, so that it does not count
    unsteady: bool = False
    difference: Difference | None = None  # from plain decoding; None if equal or not compared
    error: str | None = None  # why the prompt failed; every count is then 0

    @property
    def key(self) -> tuple[str, int]:
        """Prompt and sample, by which the records of two arms are paired."""
        return self.prompt_id, self.sample

    @property
    def new_tokens(self) -> int:
        """Number of generated tokens."""
        return len(self.token_ids)

    @property
    def turns(self) -> int:
        """Number of answered turns."""
        return len(self.turn_tokens)

    @property
    def seconds_per_token(self) -> float | None:
        """Decode seconds per token before any repetition; None if no token was decoded or the prompt failed.

        Also None if fewer than 8 tokens come before a repetition.
        """
        tokens = self.decode_tokens - self.loop_tokens
        if self.error or tokens <= 0 or (self.loop_tokens and tokens < FEWEST_TOKENS):
            return None
        return (self.decode_seconds - self.loop_seconds) / tokens

    @property
    def tokens_per_step(self) -> float | None:
        """New tokens per target pass before any repetition; None if there was no such pass."""
        steps = self.steps - self.loop_steps
        return (self.new_tokens - self.loop_tokens) / steps if steps else None

    def answers(self) -> list[tuple[int, ...]]:
        """Return the new tokens of each turn."""
        ends = list(accumulate(self.turn_tokens, initial=0))
        return [self.token_ids[start:end] for start, end in pairwise(ends)]


_RECORD = TypeAdapter(PromptRecord)


class RecordError(ValueError):
    """Raised if a line in a file is not a record."""


def line_of(record: PromptRecord) -> str:
    """Return a record as a line of a JSONL file."""
    return json.dumps({**dataclasses.asdict(record), "new_tokens": record.new_tokens}) + "\n"


def write_records(path: str | Path, records: Iterable[PromptRecord]) -> None:
    """Append records to a JSONL file, one line each. If the process is killed, some can be lost or cut short."""
    with Path(path).open("a", encoding="utf-8") as file:
        file.writelines(map(line_of, records))


def read_records(path: str | Path) -> list[PromptRecord]:
    """Return the records in a JSONL file, in the order of their first lines.

    If records share arm, prompt and sample, the last one counts. A last line cut short by a kill is ignored. In older
    records, plain decoding is named ``engine``; the name is updated. Raises RecordError if any other line is not a
    record.
    """
    lines = Path(path).read_text(encoding="utf-8").split("\n")
    found: dict[tuple[str, str, int], PromptRecord] = {}
    for number, line in enumerate(lines, start=1):
        if not line:
            continue
        try:
            record = _RECORD.validate_json(line)
        except ValidationError as error:
            if number == len(lines):  # not empty, so the line break is missing: a kill cut it short
                break
            first = error.errors(include_url=False)[0]
            why = ": ".join(filter(None, (".".join(map(str, first["loc"])), first["msg"])))
            raise RecordError(f"{path}, line {number}: not a prompt record ({why})") from error
        if record.arm == FORMERLY_PLAIN:
            record = dataclasses.replace(record, arm=PLAIN)
        found[record.arm, *record.key] = record
    return list(found.values())
