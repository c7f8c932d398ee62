"""The prompts of a sweep's stages: those of the same set that come after the search's, unless a stage names its own."""

from __future__ import annotations

from typing import Any

from specexp.config.config import Config, apply_overrides
from specexp.config.errors import ConfigError

STAGES = ("confirm", "count_acceptances", "learn")
"""Stages of a sweep that may have prompts of their own."""


def with_prompts_of(config: Config, stage: str | None) -> Config:
    """An experiment with the prompts of its search, or of a stage of its sweep.

    Unless a stage names ``prompts`` or an ``offset`` of its own, it takes those of the same set that come next: after
    the search's the confirmation's, after these the others'.

    Args:
        config: The experiment.
        stage: One of :data:`STAGES`; None for the search.

    Raises:
        ConfigError: The search takes all prompts, so that none are left.
    """
    if stage is None:
        return config
    own = dict(config.get(f"sweep.{stage}.data"))
    if "prompts" in own:
        own.setdefault("field", None)  # the search's may be another file's
    if "prompts" not in own and "offset" not in own:
        own["offset"] = _end_of(config, None if stage == "confirm" else "confirm")
    return apply_overrides(config, {"data": own}, f"sweep.{stage}.data")


def _end_of(config: Config, stage: str | None) -> int:
    """Where the prompts of the search end, or of a stage that follows it."""
    search: dict[str, Any] = config.get("data")
    if search["max_prompts"] is None:
        raise ConfigError(
            f"{config.file}: data.max_prompts is null, so the search takes all prompts and leaves none for "
            "sweep.confirm and sweep.count_acceptances: set it, or give them prompts of their own"
        )
    end: int = search["offset"] + search["max_prompts"]
    follows = config.get(f"sweep.{stage}.data", None) if stage is not None else None
    if follows is None or "prompts" in follows or "offset" in follows:
        return end
    return end + int(follows.get("max_prompts") or search["max_prompts"])
