"""The metrics of a comparison, each declared once.

Summaries, tables, CSV, W&B, objectives, constraints and documentation read :data:`METRICS`; a new metric is one entry
there. ``python -m specexp.bench.report`` prints them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from specexp.bench import clock
from specexp.bench.record import MEASURED, PromptRecord
from specexp.tracking.names import MODELLED, PHASE_PREFIX, PHASES, SPEEDUP

MAX_PERIOD = 32
MIN_TAIL = 24


def loops(token_ids: Sequence[int]) -> bool:
    """Whether the last ``max(24, 3 p)`` tokens repeat with some period ``p`` of at most 32 tokens.

    >>> loops([5, 6] * 12), loops([5, 6] * 11), loops(range(100))
    (True, False, False)
    """
    ids = list(token_ids)
    for period in range(1, MAX_PERIOD + 1):
        tail = max(MIN_TAIL, 3 * period)
        if len(ids) >= tail and ids[-tail:-period] == ids[len(ids) - tail + period :]:
            return True
    return False


class Share(NamedTuple):
    """A quotient; several are combined by their sums."""

    part: float
    whole: float

    @property
    def value(self) -> float | None:
        """The quotient; None over 0."""
        return self.part / self.whole if self.whole else None


@dataclass(frozen=True)
class Counted:
    """Sums of many records, from which metrics of counts alone are computed."""

    steps: int
    new_tokens: int
    accepted_drafts: int
    draft_passes: int
    drafted_nodes: int
    decode_seconds: float
    decode_tokens: int


Value = float | Share | None


@dataclass(frozen=True)
class Metric:
    """A figure of an arm."""

    name: str  # name in CSV, W&B, JSON and YAML
    unit: str
    description: str
    from_record: Callable[[Any], Value]  # its value for one prompt; None if the record has none
    # the better direction; None if neither is, and no study may optimise it
    better: Literal["higher", "lower"] | None = None
    # how the prompts of an arm become one figure: ``micro`` divides the sum of the parts by the sum of the
    # wholes, ``macro`` is the mean of the prompts' own values, ``total`` is the sum, ``p99`` what all but the
    # worst hundredth stay below
    aggregate: Literal["micro", "macro", "total", "p99"] = "micro"
    # whether it is made of decode seconds, so that its name has ``modelled_`` if these are a latency
    # profile's
    clocked: bool = False
    counted: bool = False  # whether :class:`Counted` is enough to compute it
    empty: float | None = 0.0  # figure of an arm without any value
    heading: str | None = None  # heading of its column in the table of results; None leaves it to CSV and W&B
    digits: int = 2  # digits after the point in that table

    def of(self, record: Any) -> float | None:
        """Return its value for one prompt."""
        value = self.from_record(record)
        return value.value if isinstance(value, Share) else value

    def over(self, records: Iterable[Any]) -> float | None:
        """Return its figure over several prompts of one arm."""
        if self.aggregate == "micro":
            found = [self.from_record(record) for record in records]
            shares = [value for value in found if isinstance(value, Share)]
            together = Share(sum(value.part for value in shares), sum(value.whole for value in shares))
            return self.empty if together.value is None else together.value
        values = [value for record in records if (value := self.of(record)) is not None]
        if not values:
            return self.empty
        if self.aggregate == "p99":
            return sorted(values)[math.ceil(0.99 * len(values)) - 1]
        return sum(values) if self.aggregate == "total" else sum(values) / len(values)

    def key(self, used: str) -> str:
        """Return its name for seconds of this clock."""
        return f"{clock.metric_prefix(used)}{self.name}" if self.clocked else self.name

    @property
    def direction(self) -> str | None:
        """Optuna's direction."""
        return {"higher": "maximize", "lower": "minimize", None: None}[self.better]


def _phase(phase: str) -> Metric:
    return Metric(
        f"{PHASE_PREFIX}{phase}",
        "s",
        f"Decode seconds of phase {phase}.",
        lambda record: record.seconds.get(phase),
        aggregate="total",
        clocked=True,
        empty=None,
    )


METRICS: tuple[Metric, ...] = (
    Metric(
        "nodes_per_step",
        "nodes/step",
        "Drafted nodes that are fed to the target in a step, the root not counted.",
        lambda record: Share(record.drafted_nodes, record.steps),
        better="lower",
        counted=True,
        heading="nodes/step",
        digits=1,
    ),
    Metric(
        "tokens_per_step",
        "tokens/step",
        "New tokens per target pass: all tokens / all steps.",
        lambda record: Share(record.new_tokens, record.steps),
        better="higher",
        counted=True,
        heading="tokens/step",
    ),
    Metric(
        "tokens_per_step_macro",
        "tokens/step",
        "New tokens per target pass, as the mean of the prompts' own ratios.",
        lambda record: record.tokens_per_step,
        better="higher",
        aggregate="macro",
        heading="macro",
    ),
    Metric(
        "tokens_per_second",
        "tokens/s",
        "Decoded tokens per second of decoding, prefill apart.",
        lambda record: Share(record.decode_tokens, record.decode_seconds),
        better="higher",
        clocked=True,
        counted=True,
        heading="tokens/s",
        digits=0,
    ),
    Metric(
        "seconds_per_token",
        "s/token",
        "Seconds of decoding per decoded token, prefill apart.",
        lambda record: Share(record.decode_seconds, record.decode_tokens),
        better="lower",
        clocked=True,
        counted=True,
    ),
    Metric(
        "p99_seconds_per_token",
        "s/token",
        "Seconds of decoding per decoded token that 99 % of the prompts stay below, prefill apart.",
        lambda record: record.seconds_per_token,
        better="lower",
        aggregate="p99",
        clocked=True,
        empty=None,
    ),
    Metric(
        "memory_mib",
        "MiB",
        "Main memory that the processes of somebody else's engine hold; none where nothing is told.",
        lambda record: record.memory_bytes and record.memory_bytes / 2**20,
        better="lower",
        aggregate="macro",
        empty=None,
    ),
    Metric(
        "prefill_seconds",
        "s",
        "Mean seconds until a prompt's first token; none where seconds are modelled.",
        lambda record: record.prefill_seconds if record.clock == MEASURED else None,
        better="lower",
        aggregate="macro",
        empty=None,
    ),
    Metric(
        "decode_seconds",
        "s",
        "Seconds of decoding, all prompts together.",
        lambda record: record.decode_seconds,
        aggregate="total",
        clocked=True,
        counted=True,
    ),
    Metric(
        "draft_passes_per_step",
        "passes/step",
        "Forward passes of a draft model in a step.",
        lambda record: Share(record.draft_passes, record.steps),
        better="lower",
        counted=True,
    ),
    Metric(
        "utilisation",
        "share",
        "Drafted nodes that became output; none where nothing was drafted.",
        lambda record: Share(record.accepted_drafts, record.drafted_nodes),
        better="higher",
        counted=True,
        empty=None,
    ),
    Metric(
        "alpha",
        "share",
        "Drafted positions that became output, however many nodes a tree has at each; none where nothing was drafted.",
        lambda record: Share(sum(record.accepted_at), sum(record.drafted_at)),
        better="higher",
        empty=None,
    ),
    Metric(
        "target_utilisation",
        "share",
        "Time in which the target ran a pass or a prefill, where several sequences are decoded for a prompt.",
        lambda record: record.group and Share(record.group.busy_seconds, record.group.wall_seconds),
        better="higher",
        empty=None,
    ),
    Metric(
        "eos_share",
        "share",
        "Answers that end by EOS.",
        lambda record: Share(sum(reason == "eos" for reason in record.finish_reasons), record.turns),
    ),
    Metric(
        "loop_share",
        "share",
        "Answers that end in a loop, which flatters every method.",
        lambda record: Share(sum(loops(answer) for answer in record.answers()), record.turns),
    ),
    *map(_phase, PHASES),
)


def metric_named(name: str) -> Metric:
    """Return a metric by its name, or raise KeyError."""
    return {metric.name: metric for metric in METRICS}[name]


def figures_of(records: Sequence[PromptRecord]) -> dict[str, float]:
    """Return every metric of one arm's answered prompts by its key, those without a value left out.

    Raises:
        ValueError: Some of the seconds are measured and others modelled.
    """
    used = clock.clock_of(records)
    figures = {metric.key(used): metric.over(records) for metric in METRICS}
    return {name: value for name, value in figures.items() if value is not None}


def figures_of_counts(total: Counted, used: str) -> dict[str, float]:
    """Return the metrics of counts alone, by their keys, as :func:`figures_of` does for seconds of clock ``used``."""
    figures = {metric.key(used): metric.over([total]) for metric in METRICS if metric.counted}
    return {name: value for name, value in figures.items() if value is not None}


def objectives() -> dict[str, str]:
    """Return what a study can optimise with Optuna's direction, unless the study states another.

    ``speedup`` is the mean over prompts of log(seconds per token of plain decoding / seconds per token of the
    candidate); the others are all metrics that have a better direction.
    """
    ways = {metric.name: metric.direction for metric in METRICS}
    return {SPEEDUP: "maximize"} | {name: way for name, way in ways.items() if way is not None}


def constraints() -> tuple[str, ...]:
    """Return the names of limits on figures: ``min_`` or ``max_`` before a metric's name."""
    return tuple(f"{end}_{metric.name}" for metric in METRICS for end in ("min", "max"))


def violation(constraint: str, limit: float, figures: Mapping[str, float]) -> float | None:
    """Return by how much figures (by key) break a limit, above 0 if they do; None if there is no such figure."""
    end, _, name = constraint.partition("_")
    value = figures.get(name, figures.get(f"{MODELLED}{name}"))
    if value is None:
        return None
    return value - limit if end == "max" else limit - value
