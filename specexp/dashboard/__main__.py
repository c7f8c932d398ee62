"""``python -m specexp.dashboard EXPERIMENT.yaml``: publishes what compares a study's runs in W&B."""

from __future__ import annotations

if __name__ == "__main__":  # before what takes seconds to import
    from specexp.core.start import begin

    begin()

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from specexp.config import Config, ConfigError
from specexp.config.command import fail, run_command
from specexp.config.here import check_tracking
from specexp.config.told import told
from specexp.core.messages import first_line
from specexp.tracking.dashboard import Dashboard, build_workspace, describe_dashboard
from specexp.tracking.mode import logged_in

if TYPE_CHECKING:
    from wandb_workspaces.workspaces import Workspace

USAGE = """usage: python -m specexp.dashboard EXPERIMENT.yaml [--dry-run] [--entity E] [--project P] [--key value ...]

Publishes what compares the runs of an experiment's sweep in W&B.
--dry-run shows the panels; --entity E names the W&B user or team that will own them, --project P the study's project;
any other --dotted.key overrides the file."""

SHORT = {"entity": "tracking.entity", "project": "tracking.project"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code: 0, 1 where nothing could be published, 2 for a mistake."""
    return run_command(USAGE, argv, _act, SHORT)


def _act(config: Config, dry_run: bool) -> int:
    dashboard = dashboard_of(config, config.file, needs_entity=not dry_run)
    if dry_run:
        show(dashboard)
        return 0
    try:
        workspace = build_workspace(dashboard)
    except ImportError:
        return fail('the dashboard needs wandb-workspaces: pip install -e ".[dashboard]"', 1)
    return publish(workspace)


def dashboard_of(config: Config, file: str, needs_entity: bool = True) -> Dashboard:
    """What the workspace of an experiment's study shows, from its name, search space and ``tracking`` section.

    Raises:
        ConfigError: the file has no sweep section, nothing says who will own the workspace, or W&B takes no such name.
    """
    sweep = config.section("sweep")
    if not sweep:
        raise ConfigError(f"{file} has no sweep: section, so there is no study to compare")
    check_tracking(config)
    tracking = config.section("tracking")
    entity = tracking.get("entity")
    if not entity and needs_entity:
        raise ConfigError(
            "tracking.entity is not set: --entity names the W&B user or team that will own the dashboard"
        )
    latency = config.section("latency")
    return describe_dashboard(
        config.get("name"),
        list(sweep["space"]),
        entity or "your-entity",
        tracking["project"],
        modelled=bool(latency and latency["modelled"]),
    )


def show(dashboard: Dashboard) -> None:
    """Print what would be published."""
    print(f"{dashboard.name} -> {dashboard.entity}/{dashboard.project}")
    for name, panels in dashboard.sections.items():
        print(f"  {name}")
        for panel in panels:
            print(f"    {panel.kind}" + (f": {panel.title}" if panel.title else ""))


def publish(workspace: Workspace) -> int:
    """Save the workspace to W&B; returns the exit code, and says in one sentence what went wrong."""
    if not logged_in():
        return fail("nobody is logged in to W&B: run wandb login first, or look with --dry-run", 1)
    try:
        saved = workspace.save()
        print(saved.url)
        told().next = f"open {saved.url}"
    except Exception as error:  # wandb-workspaces lets requests', GraphQL's and its own errors through
        place = f"{workspace.entity}/{workspace.project}"
        return fail(f"W&B did not take the dashboard for {place}: {first_line(error)}", 1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
