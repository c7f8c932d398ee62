"""How large a recording is, and how large it will be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from specexp.core.messages import counted
from specexp.replay.format.recorded_turn import RecordedTurn
from specexp.replay.format.recording import parquet
from specexp.replay.format.trie import TrieWriter


def size_of(size: float) -> str:
    """Bytes for a person.

    Example:
        >>> size_of(1_300_000), size_of(4_200)
        ('1.3 MB', '4.2 kB')
    """
    return f"{size / 1e6:.1f} MB" if size >= 1e5 else f"{size / 1e3:.1f} kB"


def estimate(first: Sequence[RecordedTurn], turns: int, max_new_tokens: int, files: int) -> str:
    """How large a recording will be, told from its first turns.

    Args:
        first: turns recorded.
        turns: of the whole recording.
        max_new_tokens: of each.
        files: of the whole recording.
    """
    tokens = sum(turn.answer.size for turn in first)
    nodes = sum(len(turn.trie) for turn in first)
    file = len(parquet([_blank(first[0])]))
    each = (len(parquet(first)) - file) / tokens
    size = each * turns * max_new_tokens + file * files
    return (
        f"The first prompt took {each:.0f} bytes a token of output ({counted(round(nodes / tokens), 'node')}): "
        f"{counted(turns, 'answer')} of up to {counted(max_new_tokens, 'token')} will take up to {size_of(size)}."
    )


def _blank(turn: RecordedTurn) -> RecordedTurn:
    """A turn in which nothing was said."""
    nothing = TrieWriter(0, ())
    return replace(
        turn,
        prompt=turn.prompt[:1],
        answer=turn.answer[:0],
        asked=turn.asked[:0],
        asked_logits=turn.asked_logits[:0],
        trie=nothing.finish(),
        target_log_probs=turn.target_log_probs[:0],
        draft_log_probs=turn.draft_log_probs[:0],
    )
