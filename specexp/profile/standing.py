"""Where the backends stand: passes and steps beside one another, other engines' loops and what bounds them all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from specexp.bench.publish import Attached, Report
from specexp.bench.record import MEASURED
from specexp.bench.statistics import Speedup
from specexp.bench.table import Cell, Column, Table
from specexp.core.messages import counted
from specexp.profile.backends import DECODE, PRODUCTS, READING
from specexp.profile.check import check_table, headline

if TYPE_CHECKING:
    from specexp.artifacts.kinds.latency_profile import MeasuredPass
    from specexp.config.artifacts import LoadedArtifact
    from specexp.profile.backends import Contest, TimedBackend
    from specexp.profile.check import LiveCheck
    from specexp.profile.passes import PassSamples
    from specexp.profile.steps import StepTiming, TimedSteps

_SHOWN = (1, 4, 16, 64)  # rows of a pass that ratios are told of


def standing(contest: Contest, checks: Sequence[LiveCheck], artifacts: Sequence[LoadedArtifact]) -> Report:
    """The check against live decoding, then passes, steps and ratios of all that was measured in turns.

    Args:
        contest: What was measured.
        checks: The profiles beside live decoding.
        artifacts: The profile of each backend, as written.
    """
    from specexp.profile.figures import draw_contest

    return Report(
        {
            "check": check_table(checks),
            "steps": steps_table(contest),
            "ratios": ratios_table(contest),
            "passes": passes_table(contest),
        },
        {"contest": draw_contest(contest)},
        data={"points": points_table(contest)},
        answer=headline(checks),
        sentences=[*contest.left_out, *(f"A profile is in {artifact.folder}." for artifact in artifacts)],
        summary={
            f"{timed.name}/plain_step_ms": median(seconds_of(timed.arms[0])) * 1e3
            for timed in contest.backends
        },
        artifacts=[Attached(artifact.folder, artifact.name, artifact.kind) for artifact in artifacts],
    )


def steps_table(contest: Contest) -> Table:
    """A row an arm and backend, and a row a loop: what a step takes, and where."""
    plain = fastest_plain(contest)
    table = Table(
        f"Steps behind the prompts, {counted(len(contest.backends[0].arms[0].answers), 'prompt')}",
        [
            Column("backend"),
            Column("arm"),
            *(Column(name, 3, " ms") for name in ("step", "in passes", "drafting", "outside")),
            Column("outside", 1, "%"),
            Column("tokens/step"),
            Column("a token", 3, " ms"),
            Column("speed over its plain", interval=True),
            Column("over the fastest plain", interval=True),
        ],
        notes=[
            "Medians over steps; drafting is drafter and builder with the draft's passes; outside is what no pass of "
            "target or draft takes. Speeds are paired prompt by prompt, with 95 % bootstrap intervals.",
            f"The fastest plain decoding here is {plain[0]}'s.",
            "Loops of other engines decode greedily, and our arms as the file's verifier says.",
        ],
    )
    if contest.random:
        table.notes.append(
            "The weights are random: what is accepted, and speeds over plain decoding, mean nothing."
        )
    for timed in contest.backends:
        own = [_token_seconds(answer) for answer in timed.arms[0].answers]
        for arm in timed.arms:
            steps = arm.steps
            tokens = [_token_seconds(answer) for answer in arm.answers]
            parts = (
                [step.seconds for step in steps],
                [step.pass_seconds for step in steps],
                [step.draft_seconds for step in steps],
                [step.seconds - step.pass_seconds for step in steps],
            )
            table.rows.append(
                [
                    timed.name,
                    arm.arm.name,
                    *(1e3 * median(part) for part in parts),
                    median(1 - step.pass_seconds / step.seconds for step in steps),
                    sum(step.new_tokens for step in steps) / len(steps),
                    1e3 * median(seconds for seconds in tokens if seconds),
                    None if arm is timed.arms[0] else paired(own, tokens),
                    paired(plain[1], tokens),
                ]
            )
    for loop in contest.loops:
        means = [float(np.mean(answer)) for answer in loop.answers]
        step = 1e3 * median(second for answer in loop.answers for second in answer)
        empty: list[Cell] = [None, None, None, None]
        table.rows.append(
            [
                loop.name,
                "its plain decoding",
                step,
                *empty,
                1.0,
                1e3 * median(means),
                None,
                paired(plain[1], means),
            ]
        )
    return table


def ratios_table(contest: Contest) -> Table:
    """How many times as long one thing takes as another that was measured in the same rounds."""
    table = Table(
        "How many times as long",
        [Column("what"), Column("as"), Column("takes", interval=True)],
        notes=["Geometric means over rounds, with 95 % bootstrap intervals."],
    )
    for timed in contest.backends:
        for what, other, found in _ratios(contest, timed):
            table.rows.append([what, other, found])
    return table


def _ratios(contest: Contest, timed: TimedBackend) -> Iterator[tuple[str, str, Speedup]]:
    target, prefix = timed.passes["target"], timed.stated_prefix
    plain = _by_answer(timed.arms[0])
    for loop in contest.loops:
        of_loop = [median(answer) if answer else None for answer in loop.answers]
        yield f"a plain step of {timed.name}", f"a step of {loop.name}", paired(plain, of_loop)
    for rows in _SHOWN[1:]:
        if rows in target.sizes:
            several, one = target.milliseconds[prefix, rows], target.milliseconds[prefix, 1]
            yield f"a pass of {rows} rows of {timed.name}", "of one row", paired(several, one)
    if "draft" in timed.passes:
        draft = timed.passes["draft"].milliseconds[prefix, 1]
        yield (
            f"a draft pass of {timed.name}",
            "its target pass",
            paired(draft, target.milliseconds[prefix, 1]),
        )
    for rows in _SHOWN:
        if rows not in target.sizes:
            continue
        taken = target.milliseconds[prefix, rows]
        name, bound = best_bound(contest, rows)
        yield f"a pass of {counted(rows, 'row')} of {timed.name}", name, paired(taken, bound)
        if timed.name == "llama.cpp":
            own = contest.bounds[DECODE].milliseconds[prefix, rows]
            yield f"a tree pass of {counted(rows, 'row')} of {timed.name}", DECODE, paired(taken, own)


def passes_table(contest: Contest) -> Table:
    """Medians behind the prefix that profiles are stated at, a column a backend, beside the bounds."""
    prefix = contest.backends[0].stated_prefix
    columns: list[tuple[str, PassSamples, int]] = [
        (f"{timed.name} {model}", samples, prefix)
        for model in ("target", "draft", "commit")
        for timed in contest.backends
        if (samples := timed.passes.get(model)) is not None
    ]
    columns += [(name, samples, prefix if name == DECODE else 0) for name, samples in contest.bounds.items()]
    table = Table(
        f"Passes behind {counted(prefix, 'token')}",
        [Column("rows"), *(Column(name, 3, " ms") for name, _, _ in columns)],
        notes=["Medians; points.csv has all of them with their intervals."],
    )
    for rows in contest.backends[0].passes["target"].sizes:
        cells: list[Cell] = [str(rows)]
        for _, samples, behind in columns:
            taken = samples.milliseconds.get((behind, rows))
            cells.append(median(taken) if taken else None)
        table.rows.append(cells)
    return table


def points_table(contest: Contest) -> Table:
    """One row a measured point, for a program."""
    table = Table(
        "Points",
        [
            Column("backend"),
            Column("pass"),
            *(Column(name, 4) for name in ("tokens", "prefix", "ms", "low", "high")),
        ],
    )

    def add(backend: str, name: str, points: Sequence[MeasuredPass]) -> None:
        table.rows += [
            [backend, name, point.tokens, point.prefix, point.ms, point.low, point.high] for point in points
        ]

    for timed in contest.backends:
        for model, samples in timed.passes.items():
            add(timed.name, model, samples.points())
    for name, samples in contest.bounds.items():
        add("", name, samples.points())
    return table


def best_bound(contest: Contest, rows: int) -> tuple[str, Sequence[float]]:
    """What bounds a pass of so many rows: reading the weights, or the fastest products, whichever takes longer."""
    products = [
        (name, samples.milliseconds[0, rows])
        for name, samples in contest.bounds.items()
        if name.startswith(PRODUCTS)
    ]
    reading = READING, contest.bounds[READING].milliseconds[0, 1]
    return max(reading, min(products, key=_median), key=_median)


def _median(bound: tuple[str, Sequence[float]]) -> float:
    return median(bound[1])


def fastest_plain(contest: Contest) -> tuple[str, list[float | None]]:
    """Whose plain decoding is fastest, and its seconds a token by prompt."""
    found: list[tuple[str, list[float | None]]] = [
        (timed.name, [_token_seconds(answer) for answer in timed.arms[0].answers])
        for timed in contest.backends
    ]
    found += [(loop.name, [float(np.mean(answer)) for answer in loop.answers]) for loop in contest.loops]
    return min(found, key=lambda one: median(seconds for seconds in one[1] if seconds))


def seconds_of(arm: TimedSteps) -> list[float]:
    """Of all its steps."""
    return [step.seconds for step in arm.steps]


def paired(longer: Sequence[float | None], shorter: Sequence[float | None]) -> Speedup:
    """How many times as long the first takes as the second, round by round; rounds that lack one are left out."""
    logs = [float(np.log(one / other)) for one, other in zip(longer, shorter, strict=True) if one and other]
    if not logs:
        return Speedup.refuse("", "", "no round has both")
    return Speedup.of("", "", np.array(logs), MEASURED, left_out=len(longer) - len(logs))


def _by_answer(arm: TimedSteps) -> list[float | None]:
    return [median(step.seconds for step in answer) if answer else None for answer in arm.answers]


def _token_seconds(answer: Sequence[StepTiming]) -> float | None:
    tokens = sum(step.new_tokens for step in answer)
    return sum(step.seconds for step in answer) / tokens if tokens else None
