"""A measured profile as tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from specexp.bench.publish import Attached, Report
from specexp.bench.table import Cell, Column, Table
from specexp.core.messages import counted
from specexp.profile.check import check_table, headline

if TYPE_CHECKING:
    from specexp.artifacts.kinds.latency_profile import Measured, MeasuredPass
    from specexp.config.artifacts import LoadedArtifact
    from specexp.core.latency import LatencyProfile
    from specexp.profile.check import LiveCheck


def report(
    profile: LatencyProfile, measured: Measured, checks: Sequence[LiveCheck], artifact: LoadedArtifact
) -> Report:
    """The check against live decoding, the passes, the costs beside them, and the fit.

    Args:
        profile: The profile as fitted.
        measured: What it was fitted to.
        checks: The profile beside live decoding.
        artifact: The profile as written.
    """
    from specexp.profile.figures import draw

    metrics = artifact.metrics.items()
    return Report(
        {
            "check": check_table(checks),
            "passes": _passes(profile, measured),
            "beside_the_passes": _overheads(profile),
            "predicted_and_measured": _arms(measured),
        },
        {"profile": draw(profile, measured)},
        data={"profile": points_table(measured)},
        sentences=[f"The profile is in {artifact.folder}."],
        summary={key: value["value"] if isinstance(value, dict) else value for key, value in metrics},
        title=f"Latency profile: {profile.name}",
        answer=headline(checks),
        page="profile",
        artifacts=[Attached(artifact.folder, artifact.name, artifact.kind)],
    )


def points_table(measured: Measured) -> Table:
    """One row a measured point, for a program."""
    columns = [Column("pass"), *(Column(name, 4) for name in ("tokens", "prefix", "ms", "low", "high"))]
    return Table(
        "Passes",
        columns,
        [
            [model, point.tokens, point.prefix, point.ms, point.low, point.high]
            for model, points in (("target", measured.target), ("draft", measured.draft))
            for point in points
        ],
    )


def _passes(profile: LatencyProfile, measured: Measured) -> Table:
    kinds = [
        (name, points) for name, points in (("target", measured.target), ("draft", measured.draft)) if points
    ]
    prefixes = sorted({point.prefix for point in measured.target})
    columns = [Column("new tokens")]
    columns += [Column(f"{name} ms behind {prefix}") for name, _ in kinds for prefix in prefixes]
    columns += [Column(f"target ms of {lanes} lanes, each") for lanes in profile.lanes_ms]
    dtypes = measured.target_dtype + (f", draft {measured.draft_dtype}" if measured.draft_dtype else "")
    table = Table(
        f"Passes on {measured.device}: target {dtypes}, {counted(measured.threads, 'thread')}",
        columns,
        notes=[
            "Median milliseconds with 95 % bootstrap intervals, by new tokens and by the tokens in the cache."
        ],
    )
    for tokens in sorted({point.tokens for point in measured.target}):
        row: list[Cell] = [str(tokens)]
        for _, points in kinds:
            row += [_shown(points, tokens, prefix) for prefix in prefixes]
        row += [f"{ms[tokens]:.2f}" if tokens in ms else None for ms in profile.lanes_ms.values()]
        table.rows.append(row)
    slopes = f"{profile.target_prefix_ms:.2f} ms to a target pass ({profile.target_prefix_token_ms:.3f} a token fed)"
    if measured.draft:
        slopes += (
            f" and {profile.draft_prefix_ms:.2f} ms to a draft pass ({profile.draft_prefix_token_ms:.3f})"
        )
    table.notes.append(
        f"The profile is stated behind {counted(profile.prefix_tokens, 'token')}; 1,000 tokens of prefix more add "
        f"{slopes}."
    )
    return table


def _shown(points: Sequence[MeasuredPass], tokens: int, prefix: int) -> str | None:
    for point in points:
        if (point.tokens, point.prefix) == (tokens, prefix):
            return f"{point.ms:.2f} [{point.low:.2f}, {point.high:.2f}]"
    return None


def _overheads(profile: LatencyProfile) -> Table:
    names = ("a drafting step", "a node", "a new token")
    table = Table(
        "Beside the passes",
        [Column("composition"), *(Column(name, 4, " ms") for name in names)],
        notes=[
            "Fitted to the steps of the arms below; a composition not listed is charged those of its drafter's."
        ],
    )
    for label, cost in profile.overheads.items():
        table.rows.append([label, cost.step_ms, cost.node_ms, cost.token_ms])
    table.rows.append(["any other that drafts", profile.step_ms, profile.node_ms, profile.token_ms])
    return table


def _arms(measured: Measured) -> Table:
    table = Table(
        "Predicted and measured time of the steps that the profile was fitted to (in-sample)",
        [
            Column("arm"),
            Column("composition"),
            Column("tokens"),
            Column("tokens/step"),
            Column("measured", 3, " ms/token"),
            Column("predicted", 3, " ms/token"),
            Column("predicted / measured", 3),
        ],
        notes=[
            "Decoded live, one prompt after the other; a prediction for other prompts or trees can be further off."
        ],
    )
    for arm in measured.arms:
        table.rows.append(
            [
                arm.arm,
                arm.composition,
                arm.tokens,
                arm.tokens / arm.steps,
                arm.measured_ms,
                arm.predicted_ms,
                arm.predicted_ms / arm.measured_ms,
            ]
        )
    return table
