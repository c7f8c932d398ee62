"""The metrics of a comparison, each declared once.

Summaries, tables, CSV, W&B, objectives, constraints and documentation use :data:`METRICS`. To add a metric, decorate
a function with :func:`metric`. ``python -m specexp.report.comparison`` prints all metrics.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from specexp.bench import clock
from specexp.bench.record import MEASURED, PromptRecord
from specexp.core.context import repeats
from specexp.core.outcome import PHASES
from specexp.tracking.names import MODELLED, PHASE_PREFIX, SPEEDUP


class Share(NamedTuple):
    """A quotient. Several are combined as the sum of their parts divided by the sum of their wholes."""

    part: float
    whole: float

    @property
    def value(self) -> float | None:
        """The quotient, or None if ``whole`` is 0."""
        return self.part / self.whole if self.whole else None


@dataclass(frozen=True)
class Counted:
    """Sums over many records, from which metrics based only on counts are computed."""

    steps: int
    new_tokens: int
    accepted_drafts: int
    draft_passes: int
    drafted_nodes: int
    decode_seconds: float
    decode_tokens: int
    loop_tokens: int = 0  # of these, the tokens of repetitions
    loop_steps: int = 0
    loop_seconds: float = 0.0


Value = float | Share | None


@dataclass(frozen=True)
class Metric:
    """A figure that describes an arm."""

    name: str  # name in CSV, W&B, JSON and YAML
    unit: str
    description: str
    from_record: Callable[[Any], Value]  # its value for one prompt; None if the record has none
    # the better direction; None if there is none, in which case a study cannot optimize the metric
    better: Literal["higher", "lower"] | None = None
    # how an arm's prompts are combined into one figure: ``micro`` divides the sum of the parts by the sum of the
    # wholes, ``macro`` is the mean of the prompts' own values, ``total`` is their sum, and ``p99`` is their 99th
    # percentile
    aggregate: Literal["micro", "macro", "total", "p99"] = "micro"
    # whether it depends on decode seconds; if a latency profile models these, its name begins with
    # ``modelled_``
    clocked: bool = False
    counted: bool = False  # whether :class:`Counted` is enough to compute it
    empty: float | None = 0.0  # figure of an arm if no prompt has a value
    heading: str | None = None  # column heading in the table of results; None: only in CSV and W&B
    digits: int = 2  # digits after the decimal point in that table

    def of(self, record: Any) -> float | None:
        """Return the metric's value for one prompt."""
        value = self.from_record(record)
        return value.value if isinstance(value, Share) else value

    def over(self, records: Iterable[Any]) -> float | None:
        """Return the metric's combined figure for several prompts of one arm."""
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
        """Return the metric's name, with the prefix ``modelled_`` if it depends on modelled seconds."""
        return f"{clock.metric_prefix(used)}{self.name}" if self.clocked else self.name


METRICS: list[Metric] = []
"""All metrics, in the order in which tables show them. :func:`metric` adds one."""


def metric(unit: str, **given: Any) -> Callable[[Callable[[Any], Value]], Callable[[Any], Value]]:
    """Register a function of a record as a metric of the same name. ``given`` holds other fields of :class:`Metric`.

    The function's docstring becomes the metric's description.
    """

    def declare(value: Callable[[Any], Value]) -> Callable[[Any], Value]:
        METRICS.append(Metric(value.__name__, unit, value.__doc__ or "", value, **given))
        return value

    return declare


@metric("nodes/step", better="lower", counted=True, heading="nodes/step", digits=1)
def nodes_per_step(record: Any) -> Value:
    """Drafted nodes fed to the target per step, not counting the root."""
    return Share(record.drafted_nodes, record.steps)


@metric("tokens/step", better="higher", counted=True, heading="tokens/step")
def tokens_per_step(record: Any) -> Value:
    """New tokens per target pass: all tokens / all steps, without the repetition in which an answer ends."""
    return Share(record.new_tokens - record.loop_tokens, record.steps - record.loop_steps)


@metric("tokens/step", better="higher", aggregate="macro", heading="macro")
def tokens_per_step_macro(record: PromptRecord) -> Value:
    """New tokens per target pass, averaged over the prompts' own ratios."""
    return record.tokens_per_step


@metric("tokens/s", better="higher", clocked=True, counted=True, heading="tokens/s", digits=0)
def tokens_per_second(record: Any) -> Value:
    """Decoded tokens per second of decoding, excluding prefill."""
    return Share(record.decode_tokens - record.loop_tokens, record.decode_seconds - record.loop_seconds)


@metric("s/token", better="lower", clocked=True, counted=True)
def seconds_per_token(record: Any) -> Value:
    """Decode seconds per decoded token, excluding prefill."""
    return Share(record.decode_seconds - record.loop_seconds, record.decode_tokens - record.loop_tokens)


@metric("s/token", better="lower", aggregate="p99", clocked=True, empty=None)
def p99_seconds_per_token(record: PromptRecord) -> Value:
    """The 99th percentile of the prompts' decode seconds per token, excluding prefill."""
    return record.seconds_per_token


@metric("MiB", better="lower", aggregate="macro", empty=None)
def memory_mib(record: Any) -> Value:
    """Main memory used by an engine's processes; no value if it is unknown."""
    return None if record.memory_bytes is None else record.memory_bytes / 2**20


@metric("s", better="lower", aggregate="macro", empty=None)
def start_seconds(record: PromptRecord) -> Value:
    """Seconds until an engine's processes were ready; no value if there are none."""
    return record.start_seconds


@metric("s", better="lower", aggregate="macro", empty=None)
def prefill_seconds(record: Any) -> Value:
    """Mean seconds until a prompt's first token; no value if seconds are modelled."""
    return float(record.prefill_seconds) if record.clock == MEASURED else None


@metric("s", aggregate="total", clocked=True, counted=True)
def decode_seconds(record: Any) -> Value:
    """Seconds of decoding, summed over all prompts."""
    return float(record.decode_seconds)


@metric("passes/step", better="lower", counted=True)
def draft_passes_per_step(record: Any) -> Value:
    """Forward passes of a draft model per step."""
    return Share(record.draft_passes, record.steps)


@metric("share", better="higher", counted=True, empty=None)
def utilisation(record: Any) -> Value:
    """Share of drafted nodes that became output; no value if nothing was drafted."""
    return Share(record.accepted_drafts, record.drafted_nodes)


@metric("share", better="higher", empty=None)
def alpha(record: Any) -> Value:
    """Share of drafted positions that became output, regardless of tree width; no value if nothing was drafted."""
    return Share(sum(record.accepted_at), sum(record.drafted_at))


@metric("share", empty=None)
def random_share(record: Any) -> Value:
    """Share of the controller's decisions that were random, to learn from them; no value without decisions."""
    return Share(record.decisions[1], record.decisions[0])


@metric("share", aggregate="macro", empty=None)
def epsilon(record: Any) -> Value:
    """Share of the controller's decisions that are random after a prompt; no value without decisions."""
    return float(record.epsilon) if record.decisions[0] else None


@metric("share", better="higher", empty=None)
def target_utilisation(record: Any) -> Value:
    """Share of time in which the target ran passes or prefills, if several sequences are decoded per prompt."""
    return record.group and Share(record.group.busy_seconds, record.group.wall_seconds)


@metric("MiB", better="lower", aggregate="macro", empty=None)
def draft_mib(record: Any) -> Value:
    """Memory of the drafters' weights and caches for all sequences, if several are decoded per prompt."""
    return record.group and (sum(record.group.draft_bytes.values()) / 2**20 or None)


@metric("share", better="lower", empty=None)
def unread_share(record: Any) -> Value:
    """Share of thought evaluations that could not be parsed; no value without a search."""
    evaluator = record.group and record.group.roles.get("evaluator")
    return Share(record.group.unparsable, evaluator.sequences) if evaluator else None


@metric("share")
def eos_share(record: Any) -> Value:
    """Share of answers that end with EOS."""
    return Share(sum(reason == "eos" for reason in record.finish_reasons), record.turns)


@metric("share")
def loop_share(record: Any) -> Value:
    """Share of answers that end in a loop. Decoding stops there, unless ``generation.stop_at_repetition`` is off."""
    return Share(sum(repeats(answer) for answer in record.answers()), record.turns)


for _phase in PHASES:
    _settings: dict[str, Any] = {"aggregate": "total", "clocked": True, "empty": None}
    _settings["from_record"] = lambda record, phase=_phase: record.seconds.get(phase)
    METRICS.append(Metric(f"{PHASE_PREFIX}{_phase}", "s", f"Decode seconds of phase {_phase}.", **_settings))


def metric_named(name: str) -> Metric:
    """Return a metric by its name, or raise KeyError."""
    return {metric.name: metric for metric in METRICS}[name]


def figures_of(records: Sequence[PromptRecord]) -> dict[str, float]:
    """Return one arm's metrics over its answered prompts, by key, leaving out those without a value.

    Raises ValueError if some of the seconds are measured and others modelled.
    """
    used = clock.clock_of(records)
    figures = {metric.key(used): metric.over(records) for metric in METRICS}
    return {name: value for name, value in figures.items() if value is not None}


def figures_of_counts(total: Counted, used: str) -> dict[str, float]:
    """Return the metrics that can be computed from sums alone, by key. ``used`` is the clock of the seconds."""
    figures = {metric.key(used): metric.over([total]) for metric in METRICS if metric.counted}
    return {name: value for name, value in figures.items() if value is not None}


def objectives() -> dict[str, str]:
    """Return the possible objectives of a study, each with its default direction for Optuna.

    ``speedup`` is the mean over prompts of log(seconds per token of plain decoding / seconds per token of the
    candidate); the others are the metrics for which one direction is better.
    """
    ways = {"higher": "maximize", "lower": "minimize"}
    return {SPEEDUP: "maximize"} | {one.name: ways[one.better] for one in METRICS if one.better is not None}


def constraints() -> tuple[str, ...]:
    """Return the names of all possible constraints: ``min_`` or ``max_``, followed by a metric's name."""
    return tuple(f"{end}_{metric.name}" for metric in METRICS for end in ("min", "max"))


def figure_of(name: str, figures: Mapping[str, float]) -> float | None:
    """Return a metric's figure, whether measured or modelled; None if it is missing."""
    return figures.get(name, figures.get(f"{MODELLED}{name}"))


def violation(constraint: str, limit: float, figures: Mapping[str, float]) -> float | None:
    """Return the amount by which a limit is violated (negative if it is not), or None if the metric is missing."""
    end, _, name = constraint.partition("_")
    value = figure_of(name, figures)
    if value is None:
        return None
    return value - limit if end == "max" else limit - value
