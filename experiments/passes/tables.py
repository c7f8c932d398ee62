"""Tables of a contest: steps, passes, and ratios of times that were measured in the same rounds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from statistics import median
from typing import TYPE_CHECKING, cast

import numpy as np

from specexp.base.messages import counted
from specexp.bench.record import MEASURED
from specexp.bench.statistics import Speedup
from specexp.profile.check import check_table, headline
from specexp.report.publish import Attached, Report
from specexp.report.table import Column, Table, columns

if TYPE_CHECKING:
    from experiments.passes.loops import TimedLoop
    from experiments.passes.steps import SplitTiming
    from specexp.config.artifacts import LoadedArtifact
    from specexp.profile.check import LiveCheck
    from specexp.profile.measure import StepTiming, TimedBackend

DECODE = "llama_decode of a chain"
_SHOWN = (1, 4, 16, 64)  # numbers of rows of the passes in the table of ratios


@dataclass
class Contest:
    """All measurements of one run, which are interleaved.

    Attributes:
        backends: The pair in each backend.
        loops: Plain decoding by engines.
        left_out: Sentences on why backends are left out, such as a missing package.
    """

    backends: list[TimedBackend] = field(default_factory=list)
    loops: list[TimedLoop] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


def report(contest: Contest, checks: Sequence[LiveCheck], artifacts: Sequence[LoadedArtifact]) -> Report:
    """Return the report: the comparison with live decoding, then steps, ratios and passes.

    Args:
        contest: The finished measurements.
        checks: Comparison of the profiles with live decoding.
        artifacts: The written profile of each backend.
    """
    plain_ms = {
        f"{timed.name}/plain_step_ms": 1e3 * median(step.seconds for step in timed.arms[0].steps)
        for timed in contest.backends
    }
    return Report(
        {
            "check": check_table(checks),
            "steps": steps_table(contest),
            "ratios": Table(
                "Ratios of times",
                columns("time of | relative to | ratio:interval"),
                [[*ratio] for timed in contest.backends for ratio in ratios(contest, timed)],
                ["Geometric means over rounds, with 95 % intervals."],
            ),
            "passes": passes_table(contest),
        },
        data={"points": points_table(contest)},
        answer=headline(checks),
        sentences=[*contest.left_out, *(f"A profile is in {artifact.folder}." for artifact in artifacts)],
        summary=plain_ms,
        artifacts=[Attached(artifact.folder, artifact.name, artifact.kind) for artifact in artifacts],
    )


def steps_table(contest: Contest) -> Table:
    """Return the time of a step and its parts, with a row for each arm in each backend and for each loop."""
    decoding: dict[str, list[float | None]] = {
        timed.name: [_token_seconds(answer) for answer in timed.arms[0].answers] for timed in contest.backends
    }
    decoding |= {loop.name: [float(np.mean(answer)) for answer in loop.answers] for loop in contest.loops}
    fastest = min(decoding, key=lambda name: median(seconds for seconds in decoding[name] if seconds))
    table = Table(
        f"Steps after the prompts, {counted(len(contest.backends[0].arms[0].answers), 'prompt')}",
        columns(
            "backend | arm | step:.3 ms | in passes:.3 ms | drafting:.3 ms | outside:.3 ms | outside:.1% | "
            "tokens/step | per token:.3 ms | speed over its plain:interval | over the fastest plain:interval"
        ),
        notes=[
            "Medians over steps. Drafting is the time of drafter and builder, draft passes included. Outside is the "
            "time outside all passes. Speeds are paired by prompt, with 95 % intervals.",
            f"{fastest} has the fastest plain decoding.",
            "Loops of engines decode greedily. Our arms use the verifier of the file.",
        ],
    )
    for timed in contest.backends:
        for arm in timed.arms:
            steps = cast("list[SplitTiming]", arm.steps)
            tokens = [_token_seconds(answer) for answer in arm.answers]
            table.rows.append(
                [
                    timed.name,
                    arm.arm.name,
                    1e3 * median(step.seconds for step in steps),
                    1e3 * median(step.pass_seconds for step in steps),
                    1e3 * median(step.draft_seconds for step in steps),
                    1e3 * median(step.seconds - step.pass_seconds for step in steps),
                    median(1 - step.pass_seconds / step.seconds for step in steps),
                    sum(step.new_tokens for step in steps) / len(steps),
                    1e3 * median(seconds for seconds in tokens if seconds),
                    None if arm is timed.arms[0] else paired(decoding[timed.name], tokens),
                    paired(decoding[fastest], tokens),
                ]
            )
    for loop in contest.loops:
        means, nothing = decoding[loop.name], [None] * 4
        step_ms = 1e3 * median(chain.from_iterable(loop.answers))
        mean_ms = 1e3 * median(seconds for seconds in means if seconds)
        speed = paired(decoding[fastest], means)
        table.rows.append([loop.name, "plain decoding", step_ms, *nothing, 1.0, mean_ms, None, speed])
    return table


def ratios(contest: Contest, timed: TimedBackend) -> Iterator[tuple[str, str, Speedup]]:
    """Yield two measurements and the ratio of their times, paired by the rounds of the run."""
    target, prefix = timed.passes["target"], stated_prefix(contest)
    plain = [median(step.seconds for step in answer) if answer else None for answer in timed.arms[0].answers]
    for loop in contest.loops:
        steps = [median(answer) if answer else None for answer in loop.answers]
        yield f"a plain step of {timed.name}", f"a step of {loop.name}", paired(plain, steps)
    one = target.milliseconds[prefix, 1]
    shown = [rows for rows in _SHOWN if rows in target.sizes]
    for rows in shown[1:]:
        several = target.milliseconds[prefix, rows]
        yield f"a pass of {rows} rows of {timed.name}", "of one row", paired(several, one)
    if "draft" in timed.passes:
        draft = timed.passes["draft"].milliseconds[prefix, 1]
        yield f"a draft pass of {timed.name}", "its target pass", paired(draft, one)
    for rows in shown:
        if DECODE in timed.passes:
            taken, own = (timed.passes[name].milliseconds[prefix, rows] for name in ("target", DECODE))
            yield f"a tree pass of {counted(rows, 'row')} of {timed.name}", DECODE, paired(taken, own)


def passes_table(contest: Contest) -> Table:
    """Return median pass times at the profiles' prefix, with a column for each backend and kind of pass."""
    prefix = stated_prefix(contest)
    shown = {
        f"{timed.name} {name}": timed.passes[name]
        for name in ("target", "draft", DECODE)
        for timed in contest.backends
        if name in timed.passes
    }
    table = Table(
        f"Passes after {counted(prefix, 'token')}",
        [Column("rows"), *(Column(name, 3, " ms") for name in shown)],
        notes=["Medians over rounds. points.csv lists all prefixes with intervals."],
    )
    for rows in contest.backends[0].passes["target"].sizes:
        taken = [median(samples.milliseconds[prefix, rows]) for samples in shown.values()]
        table.rows.append([str(rows), *taken])
    return table


def points_table(contest: Contest) -> Table:
    """Return a machine-readable table with one row for each measured point."""
    return Table(
        "Points",
        columns("backend | pass | tokens:.4 | prefix:.4 | ms:.4 | low:.4 | high:.4"),
        [
            [timed.name, name, point.tokens, point.prefix, point.ms, point.low, point.high]
            for timed in contest.backends
            for name, samples in timed.passes.items()
            if name != "limits"
            for point in samples.points()
        ],
    )


def stated_prefix(contest: Contest) -> int:
    """Return the middle prefix length, for which profiles give times."""
    prefixes = contest.backends[0].passes["target"].prefixes
    return prefixes[(len(prefixes) - 1) // 2]


def paired(longer: Sequence[float | None], shorter: Sequence[float | None]) -> Speedup:
    """Return the ratio of the first times to the second, over rounds that have both."""
    logs = [float(np.log(one / other)) for one, other in zip(longer, shorter, strict=True) if one and other]
    if not logs:
        return Speedup.refuse("", "", "no round has both times")
    return replace(Speedup.of("", "", np.array(logs), MEASURED), left_out=len(longer) - len(logs))


def _token_seconds(answer: Sequence[StepTiming]) -> float | None:
    tokens = sum(step.new_tokens for step in answer)
    return sum(step.seconds for step in answer) / tokens if tokens else None
