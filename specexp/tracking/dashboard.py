"""The W&B workspace that compares the runs of a study, kept as code."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from specexp.tracking.names import (
    DEPTH,
    MODELLED,
    NODES,
    PARAMETERS,
    PHASE_PREFIX,
    PHASES,
    SPEEDUP,
    TOKENS_PER_SECOND,
    TOKENS_PER_STEP,
    parameter_key,
)

if TYPE_CHECKING:
    from wandb_workspaces.workspaces import Workspace

TRIAL_TABLE = "trials"
TREE_PICTURE = "tree"


def build_dashboard(
    study: str, searched: Sequence[str], entity: str, project: str, modelled: bool = False
) -> Workspace:
    """Build the workspace of a study; needs neither the network nor an account.

    Args:
        study: Name of the study: the group its runs are filtered by.
        searched: Dotted keys of the search space, as in ``sweep.space``; an axis of the plot each.
        entity: W&B entity that will own it.
        project: W&B project of the runs.
        modelled: Whether the study's seconds are a latency profile's, so that its runs call them modelled.

    Returns:
        A ``wandb_workspaces`` workspace, not yet saved: ``.save()`` publishes it.

    Raises:
        ImportError: the extra ``dashboard`` is not installed.

    Example:
        >>> build_dashboard("tree_shape", ["builder.init_args.nodes"], "me", "specexp").name
        'specexp tree_shape'
    """
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    import wandb_workspaces.workspaces as ws

    before = MODELLED if modelled else ""
    speedup = f"{before}{SPEEDUP}"
    return ws.Workspace(
        entity=entity,
        project=project,
        name=f"specexp {study}",
        sections=[
            ws.Section(
                name="Which setup is fastest",
                panels=_speed_panels(searched, speedup),
                is_open=True,
                pinned=True,
            ),
            ws.Section(name="Where a step spends its time", panels=_phase_panels(before), is_open=True),
            ws.Section(name="Trials and trees", panels=_study_panels(), is_open=True),
        ],
        runset_settings=ws.RunsetSettings(
            filters=ws.And(ws.Metric("Group") == study),
            order=[ws.Ordering(ws.Summary(speedup), ascending=False)],
            pinned_columns=[f"summary:{name}" for name in (speedup, NODES, DEPTH, TOKENS_PER_STEP)],
        ),
    )


def _speed_panels(searched: Sequence[str], speedup: str) -> list[Any]:
    import wandb_workspaces.reports.v2 as wr

    axes = [
        wr.ParallelCoordinatesPlotColumn(
            wr.Config(f"{PARAMETERS}.{parameter_key(key, searched)}"),
            display_name=parameter_key(key, searched),
        )
        for key in searched
    ]
    axes.append(wr.ParallelCoordinatesPlotColumn(wr.SummaryMetric(speedup)))
    called = speedup.replace("_", " ")
    return [
        _scatter(f"{called.capitalize()} over AR by nodes", NODES, speedup),
        _scatter("Tokens per step by nodes", NODES, TOKENS_PER_STEP),
        _scatter(f"{called.capitalize()} over AR by tokens per step", TOKENS_PER_STEP, speedup),
        wr.ParallelCoordinatesPlot(title=f"Searched values and {called}", columns=axes),
        wr.ParameterImportancePlot(with_respect_to=speedup),
    ]


def _scatter(title: str, x: str, y: str) -> Any:
    import wandb_workspaces.reports.v2 as wr

    return wr.ScatterPlot(title=title, x=wr.SummaryMetric(x), y=wr.SummaryMetric(y), regression=False)


def _phase_panels(before: str) -> list[Any]:
    import wandb_workspaces.reports.v2 as wr

    phases = [before + PHASE_PREFIX + phase for phase in PHASES]
    word = before.replace("_", " ")
    return [
        wr.BarPlot(title=f"{word}seconds per phase".capitalize(), metrics=phases, title_x=f"{word}seconds"),
        wr.BarPlot(title=f"{word}tokens per second".capitalize(), metrics=[before + TOKENS_PER_SECOND]),
    ]


def _study_panels() -> list[Any]:
    import wandb_workspaces.reports.v2 as wr

    return [
        wr.WeavePanelSummaryTable(table_name=TRIAL_TABLE),
        wr.MediaBrowser(title="Tree", media_keys=[TREE_PICTURE], num_columns=1),
    ]
