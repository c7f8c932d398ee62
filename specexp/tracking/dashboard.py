"""W&B workspaces defined in code: the panels that compare the trials of a study, or the studies of a project."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from specexp.core.outcome import PHASES
from specexp.tracking import names
from specexp.tracking.names import MODELLED, PLAIN, SPEEDUP, TOKENS_PER_SECOND, TOKENS_PER_STEP

if TYPE_CHECKING:
    from wandb_workspaces.workspaces import Workspace


@dataclass(frozen=True)
class DashboardPanel:
    """A panel of a workspace, described independently of W&B."""

    kind: str  # name of its class in ``wandb_workspaces.reports.v2``
    title: str = ""
    # further arguments: ``x`` and ``y`` are names of summary values, ``searched`` has keys of the space, and ``by`` is
    # the configuration key by which runs are grouped, or ``Group``
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Dashboard:
    """A workspace, described independently of W&B."""

    name: str
    runs: tuple[str, str]  # filter for the runs shown: an attribute, ``Group`` or ``JobType``, and its value
    speedup: str  # summary value by which runs are sorted
    pinned: tuple[str, ...]  # summary values shown next to a run's name
    sections: dict[str, list[DashboardPanel]]  # panels by heading


def describe_studies(modelled: bool = False) -> Dashboard:
    """Return the workspace for all studies of a project, with the winners grouped by study, method, model and device.

    ``modelled`` selects studies with modelled seconds instead of measured ones.
    """
    before, word = (MODELLED, "modelled ") if modelled else ("", "")
    speedup, rate = f"{before}confirmed_{SPEEDUP}", f"{before}{TOKENS_PER_SECOND}"
    groups = {"study": "Group", "method": "method", "model": "model", "device": "device_name"}
    won = [_bars(f"{word}confirmed speedup over plain decoding by {by}", speedup, by=key) for by, key in groups.items()]
    fast = [_bars(f"{word}tokens per second by {by}", rate, by=groups[by]) for by in ("model", "device")]
    title = f"{word}confirmed speedup by tokens per step".capitalize()
    return Dashboard(
        f"specexp {word}studies",
        ("JobType", names.STUDY),
        speedup,
        ("winner", speedup, f"{speedup}_low", f"{speedup}_high", rate),
        {
            "What won, and by how much": won,
            "How fast that is": [*fast, _scatter(title, TOKENS_PER_STEP, speedup)],
        },
    )


def describe_comparison(name: str, arms: Sequence[str], modelled: bool = False) -> Dashboard:
    """Return the workspace for an experiment that compares ``arms``. It covers all devices, models and prompts."""
    before, word = (MODELLED, "modelled ") if modelled else ("", "")
    speedups = [f"{arm}/{before}{SPEEDUP}" for arm in arms]
    rates = [f"{arm}/{before}{TOKENS_PER_SECOND}" for arm in (PLAIN, *arms)]
    accepted = [f"{arm}/{TOKENS_PER_STEP}" for arm in arms]
    return Dashboard(
        f"specexp {name}",
        ("Group", name),
        speedups[0],
        tuple(speedups),
        {
            "Which setup is fastest": [
                _bars(f"{word}speedup over plain decoding".capitalize(), *speedups),
                _bars(f"{word}tokens per second".capitalize(), *rates),
                _bars("Tokens per step", *accepted),
                _bars("Share of random decisions", *(f"{arm}/random_share" for arm in arms)),
                _bars("Epsilon after a prompt", *(f"{arm}/epsilon" for arm in arms)),
                _table("arms"),
                _table("positions"),
            ],
            "Prompts, token by token": [_table("prompts"), _media("Outputs", "prompts_view")],
        },
    )


def describe_dashboard(study: str, searched: Sequence[str], modelled: bool = False) -> Dashboard:
    """Return the workspace for a study, with one axis for each dotted key in ``searched``.

    ``modelled`` specifies whether the study's seconds come from a latency profile.
    """
    before = MODELLED if modelled else ""
    speedup, word = f"{before}{SPEEDUP}", before.replace("_", " ")
    called = speedup.replace("_", " ")
    phases = [before + names.PHASE_PREFIX + phase for phase in PHASES]
    return Dashboard(
        f"specexp {study}",
        ("Group", study),
        speedup,
        (speedup, names.NODES, names.DEPTH, TOKENS_PER_STEP),
        {
            "Which setup is fastest": [
                _scatter(f"{called.capitalize()} over plain decoding by nodes", names.NODES, speedup),
                _scatter("Tokens per step by nodes", names.NODES, TOKENS_PER_STEP),
                _scatter(f"{called.capitalize()} over plain decoding by tokens per step", TOKENS_PER_STEP, speedup),
                DashboardPanel(
                    "ParallelCoordinatesPlot", f"Searched values and {called}", {"searched": list(searched)}
                ),
                DashboardPanel("ParameterImportancePlot", options={"with_respect_to": speedup}),
            ],
            "Where a step spends its time": [
                _bars(f"{word}seconds per phase".capitalize(), *phases, title_x=f"{word}seconds"),
                _bars(f"{word}tokens per second".capitalize(), before + TOKENS_PER_SECOND),
            ],
            "Trials and trees": [_table("trials"), _media("Tree", "tree_view")],
            "Prompts, token by token": [_table("prompts"), _media("Outputs", "prompts_view")],
        },
    )


def _scatter(title: str, x: str, y: str) -> DashboardPanel:
    return DashboardPanel("ScatterPlot", title, {"x": x, "y": y, "regression": False})


def _bars(title: str, *metrics: str, **options: str) -> DashboardPanel:
    return DashboardPanel("BarPlot", title, {"metrics": list(metrics), **options})


def _table(name: str) -> DashboardPanel:
    return DashboardPanel("WeavePanelSummaryTable", options={"table_name": name})


def _media(title: str, key: str) -> DashboardPanel:
    return DashboardPanel("MediaBrowser", title, {"media_keys": [key], "num_columns": 1})


def build_workspace(dashboard: Dashboard, entity: str, project: str) -> Workspace:
    """Build the workspace of a project, without needing a network or account. Its ``.save()`` method publishes it.

    Raises ImportError if the extra ``dashboard`` is not installed.
    """
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    import wandb_workspaces.workspaces as ws

    attribute, value = dashboard.runs
    sections = [
        ws.Section(
            name=name,
            panels=[_panel(panel, dashboard.speedup) for panel in panels],
            is_open=True,
            pinned=place == 0,
        )
        for place, (name, panels) in enumerate(dashboard.sections.items())
    ]
    runset = ws.RunsetSettings(
        filters=ws.And(ws.Metric(attribute) == value),
        order=[ws.Ordering(ws.Summary(dashboard.speedup), ascending=False)],
        pinned_columns=[f"summary:{name}" for name in dashboard.pinned],
    )
    return ws.Workspace(entity=entity, project=project, name=dashboard.name, sections=sections, runset_settings=runset)


def _panel(panel: DashboardPanel, speedup: str) -> Any:
    import wandb_workspaces.reports.v2 as wr

    options = dict(panel.options)
    for axis in {"x", "y"} & options.keys():
        options[axis] = wr.SummaryMetric(options[axis])
    if "searched" in options:
        searched = options.pop("searched")
        column = wr.ParallelCoordinatesPlotColumn
        keys = [names.parameter_key(key, searched) for key in searched]
        columns = [column(wr.Config(f"{names.PARAMETERS}.{key}"), display_name=key) for key in keys]
        options["columns"] = [*columns, column(wr.SummaryMetric(speedup))]
    if "by" in options:
        key = options.pop("by")
        options |= {"groupby": key if key == "Group" else wr.Config(key), "groupby_aggfunc": "mean"}
    if panel.title:
        options["title"] = panel.title
    return getattr(wr, panel.kind)(**options)
