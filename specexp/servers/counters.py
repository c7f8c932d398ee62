"""Counts of drafted and accepted tokens, from a server's answers or its Prometheus counters."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from specexp.bench.record import by_position
from specexp.engines import openai_client as client
from specexp.engines.engine import EngineError

_COUNTER = re.compile(
    r"^(?:vllm|llamacpp):spec_decode_num_(\w+?)_total(?:\{(?:[^}]*?position=\"(\d+)\")?[^}]*\})? (\S+)$", re.M
)
_ITERATION_FIELDS = {
    "numRequestsWithDraftTokens": "drafts",
    "numDraftTokens": "draft_tokens",
    "numAcceptedTokens": "accepted_tokens",
}
"""TensorRT-LLM's names for an iteration's counts, mapped to vLLM's names."""


class Drafts(NamedTuple):
    """Counts of drafting steps, drafted tokens and accepted tokens. The ``*_at`` fields count steps by position."""

    steps: int
    drafted: int
    accepted: int
    drafted_at: tuple[int, ...] = ()
    accepted_at: tuple[int, ...] = ()

    @classmethod
    def of(cls, own: Mapping[str, Any], counters: Mapping[str, int]) -> Drafts | None:
        """Return a request's counts from the answer's ``own`` or, failing that, from the server's ``counters``."""
        by_length = own.get("acceptance_histogram_by_draft_length") or {}
        if not by_length and counters.get("draft_tokens"):
            steps, drafted, accepted = (counters[name] for name in ("drafts", "draft_tokens", "accepted_tokens"))
            length = -(-drafted // steps)
            cut = length * steps - drafted  # an answer's last draft may be shortened
            # positions are used only if all other drafts have the same length; every draft has a first token
            tries = [steps] * (length - cut) + [steps - 1] * cut if cut < length else [steps]
            at = [counters[str(place)] for place in range(len(tries)) if str(place) in counters]
            at = at or [min(steps, accepted)]
            return cls(steps, drafted, accepted, tuple(tries[: len(at)]), tuple(at))
        if "num_draft_tokens" not in own:
            return None
        drafted = own["num_draft_tokens"]
        depths = range(max(map(int, by_length), default=0))
        steps = own.get("num_spec_steps", 0) if drafted else 0
        drafted_at = (sum(sum(n) for length, n in by_length.items() if int(length) > at) for at in depths)
        accepted_at = (sum(sum(n[at + 1 :]) for n in by_length.values()) for at in depths)
        return cls(steps, drafted, own["num_accepted_draft_tokens"], tuple(drafted_at), tuple(accepted_at))

    def within(self, tokens: int) -> Drafts:
        """Return the counts of an answer of this many tokens, without drafts accepted after its end."""
        accepted = client.accepted_in(tokens, self.steps, self.accepted)
        excess, kept = self.accepted - accepted, [*self.accepted_at]
        for at in reversed(range(len(kept))):  # they are the deepest ones
            kept[at] -= (taken := min(excess, kept[at]))
            excess -= taken
        return self._replace(accepted=accepted, accepted_at=tuple(kept))

    @classmethod
    def sum(cls, found: Sequence[Drafts]) -> Drafts:
        """Return the totals over several requests."""
        drafted_at, accepted_at = (
            tuple(by_position(getattr(one, name) for one in found)) for name in ("drafted_at", "accepted_at")
        )
        steps = sum(one.steps for one in found)
        drafted = sum(one.drafted for one in found)
        return cls(steps, drafted, sum(one.accepted for one in found), drafted_at, accepted_at)

    @property
    def shares(self) -> list[float]:
        """Acceptance rate at each position, among the steps that drafted that position."""
        return [hits / tries for hits, tries in zip(self.accepted_at, self.drafted_at, strict=False) if tries]


def draft_counters(url: str, seconds: float, read: Counter[str]) -> Counter[str]:
    """Return a server's Prometheus draft counters, keyed by their vLLM and llama.cpp names; empty if it has none.

    TensorRT-LLM sends each iteration's counts only once, as JSON. They are added to ``read``, and a copy is returned.
    """
    found = Counter[str]()
    try:
        text = client.fetch(f"{url}/metrics", seconds).decode(errors="replace")
    except EngineError:
        return found
    if text.startswith("["):
        for sent, name in _ITERATION_FIELDS.items():
            read[name] += sum(map(int, re.findall(rf'"{sent}": *(\d+)', text)))
        return Counter(read)
    for name, position, value in _COUNTER.findall(text):
        found[position or name] += int(float(value))
    return found
