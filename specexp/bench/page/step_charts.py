"""Charts of what a step gave and where its time went, as Vega-Lite specifications."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from specexp.bench.page.charts import SCHEMA
from specexp.bench.page.sections import first_words
from specexp.bench.page.tokens import tokens_at_a_step
from specexp.bench.phases import breakdown
from specexp.bench.record import PromptRecord

_MOST_PROMPTS = 40
_EXCERPT = 160


def steps_chart(
    records: Iterable[PromptRecord], arm: str, title: str, texts: Mapping[str, str]
) -> dict[str, Any] | None:
    """How many tokens the steps of each prompt gave; None where no single steps were seen.

    Args:
        records: Records of a run.
        arm: Whose steps.
        title: Its name for a person.
        texts: Prompts by id.
    """
    own = [one for one in records if one.arm == arm and one.sources and not one.error and one.sample == 0]
    own = sorted(own, key=lambda one: -(one.tokens_per_step or 0))[:_MOST_PROMPTS]
    if not own:
        return None
    values = [
        {
            "prompt": one.prompt_id,
            "tokens": size,
            "share": round(share, 4),
            "tokens a step": round(one.tokens_per_step or 0, 2),
            "text": first_words(texts.get(one.prompt_id, ""), _EXCERPT),
        }
        for one in own
        for size, share in tokens_at_a_step(one).items()
    ]
    order = list(dict.fromkeys(value["prompt"] for value in values))
    return {
        "$schema": SCHEMA,
        "description": f"Tokens the steps of {title} gave, prompt by prompt, the best first: hover for the prompt.",
        "width": "container",
        "height": {"step": 16},
        "data": {"values": values},
        "mark": {"type": "rect"},
        "encoding": {
            "x": {
                "field": "tokens",
                "type": "ordinal",
                "title": "tokens of a step",
                "axis": {"labelAngle": 0},
            },
            "y": {
                "field": "prompt",
                "type": "nominal",
                "title": None,
                "sort": order,
                "axis": {"labelLimit": 160},
            },
            "color": {
                "field": "share",
                "type": "quantitative",
                "title": "share of steps",
                "scale": {"scheme": "yellowgreenblue", "domainMin": 0},
                "legend": {"format": ".0%", "orient": "top", "gradientLength": 160},
            },
            "tooltip": [
                {"field": "prompt"},
                {"field": "text"},
                {"field": "tokens", "title": "tokens of a step"},
                {"field": "share", "format": ".1%", "title": "share of steps"},
                {"field": "tokens a step", "title": "mean"},
            ],
        },
    }


def phases_chart(records: Sequence[PromptRecord], titles: Mapping[str, str]) -> dict[str, Any] | None:
    """Where a step's time goes, arm by arm; None where it is not split.

    Args:
        records: Records of a run.
        titles: Arms to show, with their names for a person.
    """
    values = [
        {
            "arm": title,
            "phase": phase,
            "ms a step": round(1e3 * found.step_seconds * share, 4),
            "place": place,
        }
        for arm, title in titles.items()
        if (found := breakdown(records, arm)) is not None
        for place, (phase, share) in enumerate(found.shares.items())
    ]
    if not values:
        return None
    phases = list(dict.fromkeys(value["phase"] for value in values))
    return {
        "$schema": SCHEMA,
        "description": "Where a step's time goes: milliseconds of each phase; hover for the figure.",
        "width": "container",
        "height": {"step": 24},
        "data": {"values": values},
        "mark": {"type": "bar"},
        "encoding": {
            "x": {"field": "ms a step", "type": "quantitative", "title": "ms a step"},
            "y": {
                "field": "arm",
                "type": "nominal",
                "title": None,
                "sort": list(titles.values()),
                "axis": {"labelLimit": 160},
            },
            "color": {
                "field": "phase",
                "type": "nominal",
                "sort": phases,
                "legend": {"orient": "top", "title": None, "columns": 3},
            },
            "order": {"field": "place"},
            "tooltip": [{"field": name} for name in ("arm", "phase", "ms a step")],
        },
    }
