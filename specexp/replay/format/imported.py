"""Another engine's chains as a recording, in which one candidate a position is known: what a chain needs.

The tokens themselves are not in such metrics, and are stood in for by 1 where the draft was right and 0 where it was
not. After a chain that was accepted to its end nobody asked the draft for the bonus token, and the prompt's pass gave
the first one: as many of those are taken for right as the draft was at this place in a chain, evenly spread. So what
is replayed is approximate, but for chains of the length that was served.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from specexp.replay.format.chain_metrics import ChainRun, chain_runs, conditional_rates
from specexp.replay.format.recorded_turn import RecordedTurn
from specexp.replay.format.recording import Recording, RecordingManifest
from specexp.replay.format.trie import TrieWriter

_RIGHT, _WRONG = 1, 0


class ImportedRecording(Recording):
    """A recording made of metrics, in memory.

    Args:
        file: what :func:`~specexp.replay.format.chain_metrics.chain_runs` reads.
        made_of: sections of the configuration that it is replayed by; the file names neither models nor sampling.

    Raises:
        RecordingError: the file cannot be read, or is none.
    """

    note = (
        "It is made of another engine's metrics, which tell no tokens: chains of the length that was served take "
        "the steps they took, others are approximate, and models and sampling are taken to be those configured."
    )

    def __init__(self, file: Path, made_of: Mapping[str, Any]) -> None:
        self.folder = file
        runs = chain_runs(file)
        longest = max(run.prompt_tokens + run.new_tokens for run in runs) + 1
        self.manifest = RecordingManifest(
            {}, dict(made_of), 2, {"target": longest, "draft": longest}, complete=True
        )
        self.turns = {(turn.prompt_id, 0): [turn] for turn in imported_turns(runs)}


def imported_turns(runs: Sequence[ChainRun]) -> list[RecordedTurn]:
    """A turn for every request."""
    rates = conditional_rates(list(runs))
    due = [0.5] * (len(rates) + 1)  # hits by place that the spreading still owes; a half rounds

    def guessed(place: int) -> int:
        place = min(place, len(rates) - 1)
        due[place] += rates[place] if rates else 0.0
        right = due[place] >= 1
        due[place] -= right
        return _RIGHT if right else _WRONG

    found = []
    for number, run in enumerate(runs):
        said = [guessed(0)]
        for drafted, accepted in zip(run.drafted, run.accepted, strict=True):
            said += [_RIGHT] * accepted + [_WRONG if accepted < drafted else guessed(drafted)]
        found.append(_turn(number, run.prompt_tokens, said))
    return found


def _turn(number: int, prompt_tokens: int, said: Sequence[int]) -> RecordedTurn:
    """A turn whose every token is 1, and whose draft said these."""
    writer = TrieWriter(_RIGHT, [_RIGHT] * len(said))
    for node, token in enumerate(said):
        writer.draft[node] = (np.array([token], dtype=np.int32), np.zeros(1, dtype=np.float32))
    unknown = np.full(len(said), np.nan, dtype=np.float32)
    return RecordedTurn(
        prompt_id=f"request-{number}",
        category="imported",
        index=number,
        sample=0,
        turn=0,
        turns=1,
        prompt=np.full(prompt_tokens, _RIGHT, dtype=np.int32),
        answer=np.full(len(said), _RIGHT, dtype=np.int32),
        finish_reason="length",
        asked=np.empty((0, 0), dtype=np.int32),
        asked_logits=np.empty((0, 0), dtype=np.float32),
        trie=writer.finish(),
        target_log_probs=unknown,
        draft_log_probs=unknown,
    )
