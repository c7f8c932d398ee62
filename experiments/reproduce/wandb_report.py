"""The report of the papers' rows as one of W&B's own, which is kept there and sent by its address."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from experiments.reproduce.told import TITLE, Found, counted_states, row_markdown

if TYPE_CHECKING:
    from wandb_workspaces.reports.v2 import Report


def build_report(found: Sequence[Found], entity: str, project: str, group: str) -> Report:
    """Make the report; needs neither the network nor an account.

    Args:
        found: What there is to say, row by row.
        entity: W&B entity that will own it.
        project: W&B project of the runs.
        group: Of the runs, whose pictures it shows.

    Returns:
        A ``wandb_workspaces`` report, not yet saved: ``.save()`` publishes it.

    Raises:
        ImportError: the extra ``dashboard`` is not installed.
    """
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    import wandb_workspaces.reports.v2 as wr

    blocks: list[object] = [wr.TableOfContents()]
    for paper, rows in groupby(found, key=lambda one: one.row.paper):
        blocks.append(wr.H1(text=paper))
        for one in rows:
            blocks += [wr.H2(text=one.row.place), wr.MarkdownBlock(text="\n".join(row_markdown(one)))]
    pictures = [one.row.name for one in found if one.record and one.row.picture]
    if pictures:
        runs = wr.Runset(entity=entity, project=project, filters=f"Group = '{group}'")
        shown = [wr.MediaBrowser(title=name, media_keys=[name], num_columns=1) for name in pictures]
        blocks += [wr.H1(text="Pictures"), wr.PanelGrid(runsets=[runs], panels=shown)]
    return wr.Report(
        entity=entity,
        project=project,
        title=TITLE,
        description=counted_states(found),
        blocks=blocks,
        width="fluid",
    )
