"""What could be changed of a composition: settings that can be set, and costs that could at most go."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from specexp.core.latency import LatencyProfile

if TYPE_CHECKING:
    from specexp.config import Config

THRESHOLDS = (0.2, 0.4, 0.6, 0.8)
"""Of a chain that ends where the draft is unsure."""
_SIZES = ("length", "nodes", "max_nodes", "budget", "depth", "max_depth", "width")
"""Arguments of builders that say how much is drafted."""


@dataclass(frozen=True)
class Change:
    """One thing that would be another.

    Attributes:
        name: What tables call it: the keys to set, or the cost that would go.
        overrides: Of the experiment; empty for a cost that goes.
        latency: Costs of every pass and step then.
    """

    name: str
    overrides: Mapping[str, Any]
    latency: LatencyProfile


def settings_to_try(config: Config, latency: LatencyProfile) -> Iterator[Change]:
    """Settings near those of the file: without speculation, less and more drafted, an end where the draft is unsure,
    and n-grams in the place of a draft model.

    Args:
        config: The experiment, whose composition drafts.
        latency: What steps cost here.
    """
    plain = {"drafter": None, "builder": None, "controller": {"class_path": "Fixed"}}
    yield Change("drafter: null (no speculation)", plain, latency)
    arguments = config.get("builder.init_args") or {}
    for name in _SIZES:
        value = arguments.get(name)
        if not isinstance(value, int) or isinstance(value, bool):
            continue
        for other in sorted({1, value // 2, value - 1, value + 1, value * 2} - {0, value}):
            key = f"builder.init_args.{name}"
            yield Change(f"{key}: {other}", {key: other}, latency)
    if config.get("controller.class_path").rpartition(".")[2] in ("Fixed", "ConfidenceThreshold"):
        for threshold in THRESHOLDS:
            if config.get("controller.init_args.threshold", None) != threshold:
                part = {"class_path": "ConfidenceThreshold", "init_args": {"threshold": threshold}}
                yield Change(
                    f"controller: ConfidenceThreshold, threshold {threshold:g}", {"controller": part}, latency
                )
    if config.get("drafter.class_path").rpartition(".")[2] != "PromptLookup":
        lookup = {"drafter": {"class_path": "PromptLookup"}}
        yield Change("drafter: PromptLookup", lookup, latency)


def costs_that_could_go(latency: LatencyProfile, composition: str) -> Iterator[Change]:
    """Of each share of a step's time the profile without it: what the best that could be done about it would bring.

    Args:
        latency: What steps cost here.
        composition: Whose overheads are charged.
    """
    known = latency.of(composition)
    if known.draft_ms:
        free = dict.fromkeys(known.draft_ms, 0.0)
        yield Change(
            "draft passes",
            {},
            replace(known, draft_ms=free, draft_prefix_ms=0.0, draft_prefix_token_ms=0.0),
        )
    one = known.target_ms[1]
    flat = {rows: min(one, ms) for rows, ms in known.target_ms.items()}
    yield Change("rows beyond the first", {}, replace(known, target_ms=flat, target_prefix_token_ms=0.0))
    yield Change("beside the passes", {}, replace(known, step_ms=0.0, node_ms=0.0, token_ms=0.0))
