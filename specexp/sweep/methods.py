"""The methods of a space that the pair can run: without a draft model, those that need none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from specexp.config import Config, apply_overrides, build_drafter
from specexp.config.methods import METHOD, overrides_of
from specexp.config.search_space import Categorical
from specexp.config.sweep import Sweep
from specexp.models.sources import sources_of


def without_draft_methods(config: Config, sweep: Sweep) -> tuple[Sweep, tuple[str, ...]]:
    """A study without the methods, and what is measured first of them, that need a draft model.

    Args:
        config: The experiment.
        sweep: Its sweep section.

    Returns:
        The study, and the names of the methods left out: none where the pair has a draft model.

    Raises:
        ConfigError: All methods need one.
    """
    methods = sweep.space.get(METHOD)
    if (
        not isinstance(methods, Categorical)
        or sources_of(config.get("pair.target"), config.get("pair.draft"))[1]
    ):
        return sweep, ()
    out = tuple(choice["name"] for choice in methods.choices if _needs_draft(config, choice))
    kept = [choice for choice in methods.choices if choice["name"] not in out]
    if not kept:
        raise config.checker.error(
            ("sweep", "space"),
            ": every method needs a draft model and the pair has none: name one as pair.draft",
        )
    space = {**sweep.space, METHOD: replace(methods, choices=kept)}
    first = [known for known in sweep.enqueue if known.get(METHOD) not in out]
    return replace(sweep, space=space, enqueue=first), out


def _needs_draft(config: Config, choice: Any) -> bool:
    drafter = build_drafter(apply_overrides(config, overrides_of(METHOD, choice), "sweep.space"))
    if drafter is None:
        return False
    try:
        drafter.use_draft_model(None)
    except ValueError:
        return True
    return False
