"""The methods of a space that the pair can run: without a draft model, those that need none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specexp.config import Config, apply_overrides, build_drafter
from specexp.config.methods import METHOD, overrides_of
from specexp.pairs.pair import sources_of
from specexp.sweep.space import SpaceError


def without_draft_methods(
    config: Config, section: Mapping[str, Any]
) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """The sweep section without the methods, and what is measured first of them, that need a draft model.

    Args:
        config: of the experiment.
        section: its ``sweep``.

    Returns:
        The section, and the names of the methods left out: none where the pair has a draft model.

    Raises:
        SpaceError: all methods need one.
    """
    methods = section["space"].get(METHOD)
    if methods is None or sources_of(config.get("pair.target"), config.get("pair.draft"))[1] is not None:
        return section, ()
    out = tuple(choice["name"] for choice in methods["choices"] if _needs_draft(config, choice))
    kept = [choice for choice in methods["choices"] if choice["name"] not in out]
    if not kept:
        raise SpaceError(
            "sweep.space: every method needs a draft model and the pair has none: name one as pair.draft"
        )
    space = {**section["space"], METHOD: {**methods, "choices": kept}}
    first = [known for known in section["enqueue"] if known.get(METHOD) not in out]
    return {**section, "space": space, "enqueue": first}, out


def _needs_draft(config: Config, choice: Mapping[str, Any]) -> bool:
    drafter = build_drafter(apply_overrides(config, overrides_of(METHOD, choice), "sweep.space"))
    if drafter is None:
        return False
    try:
        drafter.use_draft_model(None)
    except ValueError:
        return True
    return False
