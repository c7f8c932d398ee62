"""Figures of requests: in answers and under ``/metrics``."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from specexp.deploy.server.output import Ended, OutputStep


def speculative_decoding(ended: Ended, most_drafted: int) -> dict[str, Any]:
    """Return figures of drafting for an output, in vLLM's schema of ``metrics.speculative_decoding``.

    All nodes of a tree count as drafted, and its depth as its length; the acceptance length includes the bonus token.
    ``most_drafted`` is the limit of a tree's nodes.
    """
    steps = [step for step in ended.steps if step.drafted]
    drafted, accepted = sum(step.drafted for step in steps), sum(step.accepted for step in steps)
    by_length: dict[str, list[int]] = {}
    for length in sorted({step.depth for step in steps}):
        by_length[str(length)] = _histogram([step for step in steps if step.depth == length])
    return {
        "mean_acceptance_length": 1 + accepted / len(steps) if steps else None,
        "draft_acceptance_rate": accepted / drafted if drafted else None,
        "acceptance_histogram": _histogram(steps),
        "acceptance_histogram_by_draft_length": by_length,
        "num_spec_steps": len(steps),
        "num_draft_tokens": drafted,
        "num_accepted_draft_tokens": accepted,
        "num_spec_tokens": most_drafted,
    }


def _histogram(steps: Sequence[OutputStep]) -> list[int]:
    """Steps by how many drafted tokens were accepted, from none on."""
    tally = Tally(step.accepted for step in steps)
    return [tally[number] for number in range(max(tally, default=-1) + 1)]


_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)


class Figures:
    """Counters of a server, as Prometheus reads them."""

    def __init__(self, running: Callable[[], float], waiting: Callable[[], float]) -> None:
        self._registry = CollectorRegistry()
        about: dict[str, Any] = {"namespace": "specexp", "registry": self._registry}
        self.requests = Counter("requests", "Requests answered, by HTTP status.", ["status"], **about)
        self.cancelled = Counter("cancelled", "Requests whose client went away.", **about)
        self.prompt_tokens = Counter("prompt_tokens", "Tokens of prompts.", **about)
        self.cached_tokens = Counter("cached_prompt_tokens", "Of these, tokens a lane held already.", **about)
        self.new_tokens = Counter("generated_tokens", "Tokens generated.", **about)
        self.steps = Counter("steps", "Steps of outputs; lanes of one pass count each.", **about)
        self.drafted = Counter("drafted_tokens", "Nodes drafted.", **about)
        self.accepted = Counter("accepted_tokens", "Drafted nodes that became output.", **about)
        self.first_token = Histogram(
            "first_token_seconds", "Until the first token.", buckets=_SECONDS, **about
        )
        self.whole = Histogram("request_seconds", "Until the last token.", buckets=_SECONDS, **about)
        Gauge("lanes_running", "Outputs that have a lane.", **about).set_function(running)
        Gauge("outputs_waiting", "Outputs that wait for a lane.", **about).set_function(waiting)

    def count(self, ended: Ended) -> None:
        """Add an output that is complete."""
        self.cached_tokens.inc(ended.cached)
        self.new_tokens.inc(len(ended.result.token_ids))
        self.steps.inc(ended.result.steps)
        self.drafted.inc(ended.result.drafted_nodes)
        self.accepted.inc(ended.result.accepted_drafts)

    def text(self) -> bytes:
        """All of them, in Prometheus' text format."""
        return generate_latest(self._registry)
