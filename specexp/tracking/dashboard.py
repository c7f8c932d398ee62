"""What compares runs in W&B, kept as code: the panels of a study, or of a project's studies, and their workspace."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from specexp.tracking.names import (
    DEPTH,
    MODELLED,
    NODES,
    PARAMETERS,
    PHASE_PREFIX,
    PHASES,
    SPEEDUP,
    STUDY,
    TOKENS_PER_SECOND,
    TOKENS_PER_STEP,
    parameter_key,
)

if TYPE_CHECKING:
    from wandb_workspaces.workspaces import Workspace

TRIAL_TABLE = "trials"
TREE_PICTURE = "tree"
PROMPT_TABLE = "prompts"
VIEWS = ("prompts_view", "tree_view")
"""Sections of the report's page: outputs token by token, and the tree that folds."""


@dataclass(frozen=True)
class DashboardPanel:
    """One panel.

    Attributes:
        kind: Name of its class in ``wandb_workspaces.reports.v2``.
        title: Heading; empty where it has none.
        options: Its other arguments; ``x`` and ``y`` are names of summary values, ``searched`` keys of the space,
            ``by`` is a key of the configuration that runs are taken together by, or ``Group``.
    """

    kind: str
    title: str = ""
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Dashboard:
    """A workspace, before anything of W&B is needed.

    Attributes:
        name: Name of the workspace.
        runs: Attribute of a run, ``Group`` or ``JobType``, and the value of those that it shows.
        entity: W&B entity that will own it.
        project: W&B project of the runs.
        speedup: Summary value that the runs are ordered by.
        pinned: Summary values that stand beside a run's name.
        sections: Panels by heading.
    """

    name: str
    runs: tuple[str, str]
    entity: str
    project: str
    speedup: str
    pinned: tuple[str, ...]
    sections: dict[str, list[DashboardPanel]]


def describe_studies(entity: str, project: str, modelled: bool = False) -> Dashboard:
    """Say what the workspace of all studies of a project shows: their winners, by study, method, model and device.

    Args:
        entity: W&B entity that will own it.
        project: W&B project of the runs.
        modelled: Whether the studies are those whose seconds are a latency profile's.
    """
    before, word = (MODELLED, "modelled ") if modelled else ("", "")
    speedup, rate = f"{before}confirmed_{SPEEDUP}", f"{before}{TOKENS_PER_SECOND}"

    def bars(of: str, by: str, key: str, called: str) -> DashboardPanel:
        return DashboardPanel("BarPlot", f"{called} by {by}", {"metrics": [of], "by": key})

    places = {"study": "Group", "method": "method", "model": "model", "device": "device_name"}
    return Dashboard(
        f"specexp {word}studies",
        ("JobType", STUDY),
        entity,
        project,
        speedup,
        ("winner", speedup, f"{speedup}_low", f"{speedup}_high", rate),
        {
            "What won, and by how much": [
                bars(speedup, by, key, f"{word}confirmed speedup over AR") for by, key in places.items()
            ],
            "How fast that is": [
                *(
                    bars(rate, by, key, f"{word}tokens per second")
                    for by, key in places.items()
                    if by in ("model", "device")
                ),
                _scatter(
                    f"{word}confirmed speedup by tokens per step".capitalize(), TOKENS_PER_STEP, speedup
                ),
            ],
        },
    )


def describe_dashboard(
    study: str, searched: Sequence[str], entity: str, project: str, modelled: bool = False
) -> Dashboard:
    """Say what the workspace of a study shows.

    Args:
        study: Name of the study.
        searched: Dotted keys of the search space, as in ``sweep.space``; an axis of the plot each.
        entity: W&B entity that will own it.
        project: W&B project of the runs.
        modelled: Whether the study's seconds are a latency profile's, so that its runs call them modelled.

    Example:
        >>> describe_dashboard("tree_shape", ["builder.init_args.nodes"], "me", "specexp").name
        'specexp tree_shape'
    """
    before = MODELLED if modelled else ""
    speedup, word = f"{before}{SPEEDUP}", before.replace("_", " ")
    called = speedup.replace("_", " ")
    return Dashboard(
        f"specexp {study}",
        ("Group", study),
        entity,
        project,
        speedup,
        (speedup, NODES, DEPTH, TOKENS_PER_STEP),
        {
            "Which setup is fastest": [
                _scatter(f"{called.capitalize()} over AR by nodes", NODES, speedup),
                _scatter("Tokens per step by nodes", NODES, TOKENS_PER_STEP),
                _scatter(f"{called.capitalize()} over AR by tokens per step", TOKENS_PER_STEP, speedup),
                DashboardPanel(
                    "ParallelCoordinatesPlot", f"Searched values and {called}", {"searched": list(searched)}
                ),
                DashboardPanel("ParameterImportancePlot", options={"with_respect_to": speedup}),
            ],
            "Where a step spends its time": [
                DashboardPanel(
                    "BarPlot",
                    f"{word}seconds per phase".capitalize(),
                    {
                        "metrics": [before + PHASE_PREFIX + phase for phase in PHASES],
                        "title_x": f"{word}seconds",
                    },
                ),
                DashboardPanel(
                    "BarPlot",
                    f"{word}tokens per second".capitalize(),
                    {"metrics": [before + TOKENS_PER_SECOND]},
                ),
            ],
            "Trials and trees": [
                DashboardPanel("WeavePanelSummaryTable", options={"table_name": TRIAL_TABLE}),
                DashboardPanel("MediaBrowser", "Tree", {"media_keys": [TREE_PICTURE], "num_columns": 1}),
            ],
            "Prompts, token by token": [
                DashboardPanel("WeavePanelSummaryTable", options={"table_name": PROMPT_TABLE}),
                *(
                    DashboardPanel("MediaBrowser", words, {"media_keys": [view], "num_columns": 1})
                    for view, words in zip(VIEWS, ("Outputs", "Tree, folding"), strict=True)
                ),
            ],
        },
    )


def _scatter(title: str, x: str, y: str) -> DashboardPanel:
    return DashboardPanel("ScatterPlot", title, {"x": x, "y": y, "regression": False})


def build_workspace(dashboard: Dashboard) -> Workspace:
    """Make the workspace; needs neither the network nor an account.

    Returns:
        A ``wandb_workspaces`` workspace, not yet saved: ``.save()`` publishes it.

    Raises:
        ImportError: the extra ``dashboard`` is not installed.
    """
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    import wandb_workspaces.workspaces as ws

    attribute, value = dashboard.runs
    return ws.Workspace(
        entity=dashboard.entity,
        project=dashboard.project,
        name=dashboard.name,
        sections=[
            ws.Section(
                name=name,
                panels=[_panel(panel, dashboard.speedup) for panel in panels],
                is_open=True,
                pinned=place == 0,
            )
            for place, (name, panels) in enumerate(dashboard.sections.items())
        ],
        runset_settings=ws.RunsetSettings(
            filters=ws.And(ws.Metric(attribute) == value),
            order=[ws.Ordering(ws.Summary(dashboard.speedup), ascending=False)],
            pinned_columns=[f"summary:{name}" for name in dashboard.pinned],
        ),
    )


def _panel(panel: DashboardPanel, speedup: str) -> Any:
    import wandb_workspaces.reports.v2 as wr

    options = dict(panel.options)
    for axis in {"x", "y"} & options.keys():
        options[axis] = wr.SummaryMetric(options[axis])
    if "searched" in options:
        searched = options.pop("searched")
        keys = [parameter_key(key, searched) for key in searched]
        options["columns"] = [
            *(
                wr.ParallelCoordinatesPlotColumn(wr.Config(f"{PARAMETERS}.{key}"), display_name=key)
                for key in keys
            ),
            wr.ParallelCoordinatesPlotColumn(wr.SummaryMetric(speedup)),
        ]
    if "by" in options:
        key = options.pop("by")
        options |= {"groupby": key if key == "Group" else wr.Config(key), "groupby_aggfunc": "mean"}
    if panel.title:
        options["title"] = panel.title
    return getattr(wr, panel.kind)(**options)
