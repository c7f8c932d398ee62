"""The report on a measured profile, with tables and a figure."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import fill
from typing import TYPE_CHECKING

from specexp.base.messages import counted
from specexp.core.latency import experts_sentence
from specexp.profile.check import check_table, headline
from specexp.profile.roofline import changed, verdict
from specexp.report.pictures import CURVE_COLORS, INK, bare_axes, bare_figure, rule
from specexp.report.publish import Attached, Report
from specexp.report.table import Cell, Column, Table, columns

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from specexp.artifacts.kinds.latency_profile import Measured, MeasuredPass, Roofline
    from specexp.config.artifacts import LoadedArtifact
    from specexp.core.latency import LatencyProfile, Overhead
    from specexp.profile.check import LiveCheck


def report(
    profile: LatencyProfile, measured: Measured, checks: Sequence[LiveCheck], artifact: LoadedArtifact
) -> Report:
    """Return a report on the live check, the passes, the overhead of steps, and the fit."""
    metrics = artifact.metrics.items()
    experts = experts_sentence(artifact.fingerprint.get("model", {}))
    limits = measured.roofline
    points = columns("pass | tokens:.4 | prefix:.4 | ms:.4 | low:.4 | high:.4")
    rows: list[list[Cell]] = [
        [model, point.tokens, point.prefix, point.ms, point.low, point.high]
        for model, passes in _passes_of(measured)
        for point in passes
    ]
    return Report(
        {
            "check": check_table(checks),
            **({"rows": _rows(profile, limits)} if limits else {}),
            "passes": _passes(profile, measured),
            "beside_the_passes": _overheads(profile),
        },
        {"profile": draw(profile, measured)},
        data={"profile": Table("Passes", points, rows)},
        sentences=[
            *(filter(None, [verdict(profile, limits), changed(limits)]) if limits else ()),
            *([f"{experts}."] if experts else []),
            f"The profile is in {artifact.folder}.",
        ],
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


def _rows(profile: LatencyProfile, limits: Roofline) -> Table:
    bytes_read = f"{limits.weight_bytes / 1e6:,.0f} MB at {limits.bandwidth / 1e9:.1f} GB/s"
    operations = f"{limits.parameters / 1e6:,.0f} M parameters at {limits.flops / 1e9:,.0f} GFLOP/s"
    rows: list[list[Cell]] = []
    for tokens, ms in sorted(profile.target_ms.items()):
        least = limits.least_ms(tokens)
        rows.append([tokens, ms, ms / profile.target_ms[1], least, ms / least])
    return Table(
        "The cost of a target pass by its rows, and its limit",
        columns("rows | ms:.2 | over one row:.2x | limit ms:.2 | over the limit:.2x"),
        rows,
        [
            f"The limit is max(bytes / bandwidth, 2 * parameters * rows / flops): {bytes_read}, {operations}. "
            f"Passes are after {profile.prefix_tokens} tokens."
        ],
    )


def _overheads(profile: LatencyProfile) -> Table:
    costs: dict[str, Overhead | LatencyProfile] = {**profile.overheads, "any other with a drafter": profile}
    return Table(
        "Step overhead outside the passes",
        columns("composition | per drafting step:.4 ms | per node:.4 ms | per new token:.4 ms"),
        [[label, cost.step_ms, cost.node_ms, cost.token_ms] for label, cost in costs.items()],
        ["Fitted to the steps of the arms. A composition that is not listed gets the costs of its drafter."],
    )


def draw(profile: LatencyProfile, measured: Measured) -> Figure:
    """Plot the time of a pass against its new tokens, with a line and a 95 % interval for each prefix length."""
    models = _passes_of(measured)
    figure = bare_figure(9.5, 4.2)
    figure.suptitle(fill(f"{profile.name} ({profile.source})", 100), fontsize=11, color=INK)
    for axes, (name, points) in zip(figure.subplots(1, len(models), squeeze=False)[0], models, strict=True):
        _draw_pass(axes, name, points)
        if name == "target" and (limits := measured.roofline):
            sizes = sorted(profile.target_ms)
            least = [limits.least_ms(size) for size in sizes]
            axes.plot(sizes, least, color=INK, ls="--", lw=1.2, label="limit")
            axes.legend(title="tokens in the cache", fontsize=8, title_fontsize=8, frameon=False)
    return figure


def _draw_pass(axes: Axes, name: str, points: Sequence[MeasuredPass]) -> None:
    for number, prefix in enumerate(sorted({point.prefix for point in points})):
        own = sorted((point for point in points if point.prefix == prefix), key=lambda point: point.tokens)
        sizes = [point.tokens for point in own]
        color = CURVE_COLORS[number % len(CURVE_COLORS)]
        low, high = [point.low for point in own], [point.high for point in own]
        axes.fill_between(sizes, low, high, color=color, alpha=0.25, lw=0)
        times = [point.ms for point in own]
        axes.plot(sizes, times, color=color, marker="o", ms=3, lw=1.4, label=str(prefix))
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
    bare_axes(axes)
    axes.legend(title="tokens in the cache", fontsize=8, title_fontsize=8, frameon=False)
