"""Saving what W&B keeps itself, a workspace or a report, or one sentence why it could not be."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specexp.core.messages import first_line
from specexp.tracking.mode import logged_in

if TYPE_CHECKING:
    from wandb_workspaces.reports.v2 import Report
    from wandb_workspaces.workspaces import Workspace

NEEDS = 'wandb-workspaces is needed: pip install -e ".[dashboard]"'


class NotPublishedError(Exception):
    """W&B does not have it; one sentence says why."""


def published(view: Workspace | Report, called: str) -> str:
    """Save a workspace or a report to W&B.

    Args:
        view: What is saved.
        called: What it is called in an error, such as ``dashboard``.

    Returns:
        Its address.

    Raises:
        NotPublishedError: nobody is logged in, or W&B does not take it.
    """
    if not logged_in():
        raise NotPublishedError("nobody is logged in to W&B: run wandb login first")
    try:
        return str(view.save().url)
    except Exception as error:  # wandb-workspaces lets requests', GraphQL's and its own errors through
        place = f"{view.entity}/{view.project}"
        raise NotPublishedError(f"W&B did not take the {called} for {place}: {first_line(error)}") from error
