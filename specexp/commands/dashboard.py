"""``python -m specexp.dashboard EXPERIMENT.yaml``: saves a W&B workspace that compares trials, arms or studies."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial

from specexp.base.messages import first_line
from specexp.bench.experiment import check_experiment, is_plain
from specexp.config import Config, ConfigError
from specexp.config.command import check_tracking, current_result, fail, run_command
from specexp.tracking.dashboard import build_workspace, describe_comparison, describe_dashboard, describe_studies
from specexp.tracking.mode import logged_in, project_of

USAGE = """usage: python -m specexp.dashboard EXPERIMENT.yaml [--studies] [--dry-run] [--entity E] [--project P]
                                   [--key value ...]

Publishes the W&B workspace of an experiment's question: it compares the trials of its sweep, or its arms. With
--studies, the workspace compares the winners of all studies in the project, by method, model and device.
--dry-run lists the panels. --entity E sets the W&B user or team that will own them, --project P the study's project.
Any other --dotted.key overrides the file."""

STUDIES = "--studies"
SHORT = {"entity": "tracking.entity", "project": "tracking.project"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Return its exit code: 0, 1 if nothing could be published, or 2 for invalid input."""
    given = list(sys.argv[1:] if argv is None else argv)
    rest = [one for one in given if one != STUDIES]
    return run_command(USAGE, rest, partial(_act, studies=STUDIES in given), SHORT)


def _act(config: Config, dry_run: bool, studies: bool) -> int:
    sweep = config.sweep
    arms = [] if sweep else [arm.title for arm in check_experiment(config)]
    if not sweep and is_plain(config):
        raise ConfigError(f"{config.file} has neither a sweep: section nor arms, so there is nothing to compare")
    check_tracking(config)
    entity = config.tracking.entity
    project = project_of(config.tracking.project)
    if not entity and not dry_run:
        raise ConfigError("tracking.entity must be a W&B user or team, got null: set it with --entity")
    owner = entity or "your-entity"
    modelled = bool((config.get("latency") or {}).get("modelled"))
    if studies:
        dashboard = describe_studies(modelled)
    elif sweep is not None:
        dashboard = describe_dashboard(config.name, list(sweep.space), modelled)
    else:
        dashboard = describe_comparison(config.name, arms, modelled)
    if dry_run:
        print(f"{dashboard.name} -> {owner}/{project}")
        for name, panels in dashboard.sections.items():
            print(f"  {name}")
            for panel in panels:
                print(f"    {panel.kind}" + (f": {panel.title}" if panel.title else ""))
        return 0
    try:
        workspace = build_workspace(dashboard, owner, project)
    except ImportError:
        return fail('the dashboard needs wandb-workspaces: pip install -e ".[dashboard]"', 1)
    if not logged_in():
        return fail("not logged in to W&B: run wandb login first, or list the panels with --dry-run", 1)
    try:
        url = str(workspace.save().url)
    except Exception as error:  # wandb-workspaces raises its own errors and those of requests and GraphQL
        why = f"W&B refused the dashboard of {owner}/{project}: {first_line(error)}"
        return fail(f"{why}; --dry-run shows the panels", 1)
    print(url)
    current_result().next = f"open {url}"
    return 0
