"""``python -m specexp.dashboard EXPERIMENT.yaml``: publishes what compares a study's runs in W&B."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from specexp.config import Config, ConfigError, load_config
from specexp.tracking.mode import logged_in
from specexp.wording import first_line

if TYPE_CHECKING:
    from wandb_workspaces.workspaces import Workspace

USAGE = "python -m specexp.dashboard experiments/X.yaml [--entity E] [--project P] [--dry-run] [--key value]"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code: 0, 1 where nothing could be published, 2 for a mistake."""
    parser = argparse.ArgumentParser(
        prog="python -m specexp.dashboard", usage=USAGE, description=__doc__, allow_abbrev=False
    )
    parser.add_argument("experiment", help="a YAML file with a sweep: section")
    parser.add_argument("--entity", help="W&B user or team that will own it; tracking.entity")
    parser.add_argument("--project", help="W&B project of the study's runs; tracking.project")
    parser.add_argument("--dry-run", action="store_true", help="show the panels, and stop")
    given, rest = parser.parse_known_args(argv)
    try:
        for name in ("entity", "project"):
            if getattr(given, name) is not None:
                rest += [f"--tracking.{name}", getattr(given, name)]
        config = load_config(given.experiment, rest)
        workspace = dashboard_of(config, given.experiment, needs_entity=not given.dry_run)
    except ConfigError as mistake:
        print(mistake, file=sys.stderr)
        return 2
    except ImportError:
        print('The dashboard needs wandb-workspaces: pip install -e ".[dashboard]"', file=sys.stderr)
        return 1
    if given.dry_run:
        show(workspace)
        return 0
    return publish(workspace)


def dashboard_of(config: Config, file: str, needs_entity: bool = True) -> Workspace:
    """Build the workspace of an experiment's study, from its name, search space and ``tracking`` section.

    Raises:
        ConfigError: the file has no sweep section, or nothing says who will own the workspace.
        ImportError: the extra ``dashboard`` is not installed.
    """
    sweep = config.section("sweep")
    if not sweep:
        raise ConfigError(f"{file} has no sweep: section, so there is no study to compare")
    tracking = config.section("tracking")
    entity = tracking.get("entity")
    if not entity and needs_entity:
        raise ConfigError(
            "tracking.entity is not set: --entity names the W&B user or team that will own the dashboard"
        )
    from specexp.tracking.dashboard import build_dashboard

    latency = config.section("latency")
    return build_dashboard(
        config.get("name"),
        list(sweep["space"]),
        entity or "your-entity",
        tracking["project"],
        modelled=bool(latency and latency["modelled"]),
    )


def show(workspace: Workspace) -> None:
    """Print what would be published."""
    print(f"{workspace.name} -> {workspace.entity}/{workspace.project}")
    for section in workspace.sections:
        print(f"  {section.name}")
        for panel in section.panels:
            title = getattr(panel, "title", None)
            print(f"    {type(panel).__name__}" + (f": {title}" if title else ""))


def publish(workspace: Workspace) -> int:
    """Save the workspace to W&B; returns the exit code, and says in one sentence what went wrong."""
    if not logged_in():
        print("Nobody is logged in to W&B: run wandb login first, or look with --dry-run", file=sys.stderr)
        return 1
    try:
        saved = workspace.save()
        print(saved.url)
    except Exception as error:  # wandb-workspaces lets requests', GraphQL's and its own errors through
        place = f"{workspace.entity}/{workspace.project}"
        print(f"W&B did not take the dashboard for {place}: {first_line(error)}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
