"""What is counted and drawn for each paper's tables and figures: a folder a paper, a file an analysis.

Nothing lists them: an analysis is found in these folders by the name of its class.
"""

from __future__ import annotations

from typing import Any

from specexp.bench.analysis import Analysis
from specexp.config.families import find_part


def __getattr__(name: str) -> Any:
    found = find_part(Analysis, name)
    if found is None:
        raise AttributeError(f"module {__name__!r} has no analysis {name!r}")
    return found
