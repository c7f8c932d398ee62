"""What a study optimises, and within which limits: metrics of the bench."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from specexp.bench.metrics import constraints, objectives
from specexp.config.check import Checker
from specexp.config.sweep import Sweep
from specexp.core.messages import did_you_mean
from specexp.tracking.names import MODELLED, SPEEDUP

MAX_DRAFT_NODES = "max_draft_nodes"
"""Most nodes a tree may have: the one limit that is known before anything is measured."""


def check_goals(settings: Sweep, checker: Checker) -> None:
    """Refuse objectives and constraints that are no metrics.

    Args:
        settings: The sweep section.
        checker: Knows the file that errors name.

    Raises:
        ConfigError: One is unknown, with the nearest name.
    """
    allowed: tuple[tuple[str, Iterable[str], Iterable[str]], ...] = (
        ("objectives", settings.objectives, objectives()),
        ("constraints", settings.constraints, (MAX_DRAFT_NODES, *constraints())),
    )
    for key, given, known in allowed:
        for name in given:
            if name not in known:
                raise checker.error(("sweep", key), f": unknown key {name!r}{did_you_mean(name, known)}")
    limit = settings.constraints.get(MAX_DRAFT_NODES, 0)
    if limit < 0:
        raise checker.error(
            ("sweep", "constraints", MAX_DRAFT_NODES),
            f" is {limit:g}, which no tree keeps to; allowed is 0 or more",
        )


def directions_of(settings: Sweep) -> dict[str, str]:
    """Which way each objective is optimised: as stated, or else the way that is better."""
    given = settings.objectives
    ways = {**objectives(), SPEEDUP: settings.direction}
    stated: Mapping[str, str | None] = given if isinstance(given, Mapping) else dict.fromkeys(given)
    return {name: way or ways[name] for name, way in stated.items()}


def figure_of(name: str, figures: Mapping[str, float]) -> float | None:
    """A metric's figure, measured or modelled; None where there is none."""
    return figures.get(name, figures.get(f"{MODELLED}{name}"))
