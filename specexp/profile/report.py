"""Report a measured profile in tables and a figure."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import fill
from typing import TYPE_CHECKING, Any

from specexp.bench.pictures import CURVE_COLOURS, INK, bare_figure, name_rows, plain, rule
from specexp.bench.publish import Attached, Report
from specexp.bench.table import Cell, Column, Table, columns
from specexp.core.dialogue import PLAIN
from specexp.core.messages import counted
from specexp.profile.check import check_table, headline

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from specexp.artifacts.kinds.latency_profile import Measured, MeasuredPass
    from specexp.config.artifacts import LoadedArtifact
    from specexp.core.latency import LatencyProfile, Overhead
    from specexp.profile.check import LiveCheck

_COSTS = (("step", "#6b9080"), ("nodes", "#e9b872"), ("new tokens", "#8d6a9f"))
_LABEL = 30  # most characters per line of a composition's label


def report(
    profile: LatencyProfile, measured: Measured, checks: Sequence[LiveCheck], artifact: LoadedArtifact
) -> Report:
    """Return a report of the live check, the passes, the overhead of steps, and the fit."""
    metrics = artifact.metrics.items()
    points = columns("pass | tokens:.4 | prefix:.4 | ms:.4 | low:.4 | high:.4")
    rows: list[list[Cell]] = [
        [model, point.tokens, point.prefix, point.ms, point.low, point.high]
        for model, passes in _passes_of(measured)
        for point in passes
    ]
    return Report(
        {
            "check": check_table(checks),
            "passes": _passes(profile, measured),
            "beside_the_passes": _overheads(profile),
            "predicted_and_measured": _arms(measured),
        },
        {"profile": draw(profile, measured)},
        data={"profile": Table("Passes", points, rows)},
        sentences=[f"The profile is in {artifact.folder}."],
        summary={key: value["value"] if isinstance(value, dict) else value for key, value in metrics},
        title=f"Latency profile: {profile.name}",
        answer=headline(checks),
        page="profile",
        artifacts=[Attached(artifact.folder, artifact.name, artifact.kind)],
    )


def _passes_of(measured: Measured) -> list[tuple[str, list[MeasuredPass]]]:
    models = (("target", measured.target), ("draft", measured.draft))
    return [(name, points) for name, points in models if points]


def _passes(profile: LatencyProfile, measured: Measured) -> Table:
    prefixes = sorted({point.prefix for point in measured.target})
    shown = {
        (name, point.tokens, point.prefix): f"{point.ms:.2f} [{point.low:.2f}, {point.high:.2f}]"
        for name, points in _passes_of(measured)
        for point in points
    }
    sides = [(name, prefix) for name, _ in _passes_of(measured) for prefix in prefixes]
    dtypes = measured.target_dtype + (f", draft {measured.draft_dtype}" if measured.draft_dtype else "")
    table = Table(
        f"Passes on {measured.device}: target {dtypes}, {counted(measured.threads, 'thread')}",
        [
            Column("new tokens"),
            *(Column(f"{name} ms after {prefix}") for name, prefix in sides),
            *(Column(f"target ms of {lanes} lanes (tokens per lane)") for lanes in profile.lanes_ms),
        ],
        notes=[
            "Median milliseconds with 95 % bootstrap intervals, by new tokens and by tokens in the cache (after N)."
        ],
    )
    for tokens in sorted({point.tokens for point in measured.target}):
        row: list[Cell] = [str(tokens), *(shown.get((name, tokens, prefix)) for name, prefix in sides)]
        row += [f"{ms[tokens]:.2f}" if tokens in ms else None for ms in profile.lanes_ms.values()]
        table.rows.append(row)
    slopes = f"{profile.target_prefix_ms:.2f} ms to a target pass (+{profile.target_prefix_token_ms:.3f} per new token)"
    if measured.draft:
        draft = f"{profile.draft_prefix_ms:.2f} ms to a draft pass (+{profile.draft_prefix_token_ms:.3f})"
        slopes += f" and {draft}"
    stated = counted(profile.prefix_tokens, "token")
    table.notes.append(f"The profile is for {stated} in the cache; 1,000 more tokens add {slopes}.")
    return table


def _overheads(profile: LatencyProfile) -> Table:
    costs: dict[str, Overhead | LatencyProfile] = {**profile.overheads, "any other with a drafter": profile}
    return Table(
        "Step overhead outside the passes",
        columns("composition | per drafting step:.4 ms | per node:.4 ms | per new token:.4 ms"),
        [[label, cost.step_ms, cost.node_ms, cost.token_ms] for label, cost in costs.items()],
        [
            "Fitted to the steps of the arms below. A composition that is not listed gets the costs of its drafter."
        ],
    )


def _arms(measured: Measured) -> Table:
    heads = "arm | composition | tokens | tokens/step | measured:.3 ms/token | predicted:.3 ms/token"
    rows: list[list[Cell]] = [
        [
            *(arm.arm, arm.composition, arm.tokens, arm.tokens / arm.steps),
            *(arm.measured_ms, arm.predicted_ms, arm.predicted_ms / arm.measured_ms),
        ]
        for arm in measured.arms
    ]
    return Table(
        "Predicted and measured time of the steps that the profile was fitted to (in-sample)",
        columns(f"{heads} | predicted / measured:.3"),
        rows,
        [
            "Measured live, one prompt after the other. Predictions for other prompts or trees can be less accurate."
        ],
    )


def draw(profile: LatencyProfile, measured: Measured) -> Figure:
    """Plot the time of a pass against its new tokens: one line with its 95 % interval for each prefix length.

    The lower panel shows the time that each composition's mean step takes outside its passes.
    """
    models = _passes_of(measured)
    bars = 0.42 * max(len(profile.overheads), 1) + 1.1
    figure = bare_figure(9.5, 4.2 + bars, layout="constrained")
    figure.suptitle(fill(f"{profile.name} ({profile.source})", 100), fontsize=11, color=INK)
    panels: Any = figure.subfigures(2, 1, height_ratios=[4.0, bars])
    above, below = panels
    for axes, (name, points) in zip(above.subplots(1, len(models), squeeze=False)[0], models, strict=True):
        _draw_pass(axes, name, points)
    _draw_costs(below.subplots(), profile, measured)
    return figure


def _draw_pass(axes: Axes, name: str, points: Sequence[MeasuredPass]) -> None:
    for number, prefix in enumerate(sorted({point.prefix for point in points})):
        own = sorted((point for point in points if point.prefix == prefix), key=lambda point: point.tokens)
        sizes, colour = [point.tokens for point in own], CURVE_COLOURS[number % len(CURVE_COLOURS)]
        low, high = [point.low for point in own], [point.high for point in own]
        axes.fill_between(sizes, low, high, color=colour, alpha=0.25, lw=0)
        times = [point.ms for point in own]
        axes.plot(sizes, times, color=colour, marker="o", ms=3, lw=1.4, label=str(prefix))
    axes.set_xscale("log", base=2)
    sizes = sorted({point.tokens for point in points})
    ticks = [size for size in sizes if size & (size - 1) == 0]
    axes.set_xticks(ticks, [str(size) for size in ticks])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.set_title(f"{name.title()} pass", fontsize=10, color=INK)
    axes.set_xlabel("new tokens", fontsize=9)
    axes.set_ylabel("ms (median, 95 % interval)", fontsize=9)
    rule(axes)
    plain(axes)
    axes.legend(title="tokens in the cache", fontsize=8, title_fontsize=8, frameon=False)


def _draw_costs(axes: Axes, profile: LatencyProfile, measured: Measured) -> None:
    """Draw a stacked bar for each composition: the overhead of its mean step."""
    labels = [label for label in profile.overheads if any(arm.composition == label for arm in measured.arms)]
    longest = 0.0
    for place, label in enumerate(labels):
        arms = [arm for arm in measured.arms if arm.composition == label]
        steps = sum(arm.steps for arm in arms)
        nodes, tokens = sum(arm.nodes for arm in arms) / steps, sum(arm.tokens for arm in arms) / steps
        cost, left = profile.overheads[label], 0.0
        parts = (0.0 if label == PLAIN else cost.step_ms, cost.node_ms * nodes, cost.token_ms * tokens)
        for (part, colour), width in zip(_COSTS, parts, strict=True):
            axes.barh(place, width, left=left, color=colour, height=0.6, label=None if place else part)
            left += width
        at = "" if label == PLAIN else f" at {nodes:.1f} nodes, {tokens:.2f} tokens"
        axes.text(left, place, f"  {left:.2f} ms{at}", va="center", fontsize=8, color=INK)
        longest = max(longest, left)
    name_rows(axes, [fill(label, _LABEL) for label in labels])
    axes.set_xlim(0, 1.45 * longest or 1.0)
    axes.set_xlabel("ms of a mean step outside its passes", fontsize=9)
    plain(axes)
    axes.legend(fontsize=8, frameon=False, loc="upper right")
