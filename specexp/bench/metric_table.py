"""``python -m specexp.bench.metric_table``: every metric with unit, meaning and direction, as markdown."""

from __future__ import annotations

from specexp.bench import metrics
from specexp.bench.table import Column, Table


def documentation() -> Table:
    """All metrics as a table."""
    heads = ("metric", "unit", "what it is", "better", "over prompts", "two arms")
    table = Table("Metrics", [Column(head) for head in heads])
    for metric in metrics.METRICS:
        told = (metric.name, metric.unit, metric.description, metric.better, metric.aggregate, metric.paired)
        table.rows.append(list(told))
    return table


if __name__ == "__main__":
    print(documentation().to_markdown(), end="")
