"""Recorded turns made of ranks: the rank of each output token among the draft's candidates."""

from dataclasses import asdict, replace

import numpy as np

from specexp.drafters import DraftModel
from specexp.drafters.ranking import Scoring
from specexp.replay.format.recording import RecordedTurn, Recording, RecordingManifest, write_turns
from specexp.replay.format.trie import TrieWriter
from specexp.replay.play.player import RecordedSource
from specexp.replay.play.ranks import MISSED

VOCABULARY = 100
EOS = 1
LIMIT = 64
"""Context of both models."""


def recorded_turn(ranks, width=4, *, ends_by="length", prompt=(5, 6, 7), prompt_id="p", answer=None, target=None):
    """Return a turn with output tokens of these ranks among ``width`` candidates, or of none (``MISSED``).

    ``target`` holds the target's best tokens after the prompt and after every token of the ``answer``.
    """
    if answer is None:
        answer = [10 + (7 * place + len(prompt)) % 50 for place in range(len(ranks))]
    if ends_by == "eos":
        answer[-1] = EOS
    writer = TrieWriter(prompt[-1], answer)
    for node, (token, rank) in enumerate(zip(answer, ranks, strict=True)):
        candidates = np.arange(VOCABULARY - width, VOCABULARY)
        if rank != MISSED:
            candidates[rank] = token
        writer.draft[node] = candidates, -np.arange(1.0, width + 1)
        writer.target[node] = np.array([token]), np.zeros(1)
    for node, best in enumerate(target if target is not None else ()):
        writer.target[node] = np.array(best), -np.arange(1.0, len(best) + 1)
    return RecordedTurn(
        prompt_id=prompt_id,
        category="fake",
        index=0,
        sample=0,
        turn=0,
        turns=1,
        prompt=np.array(prompt, dtype=np.int32),
        answer=np.array(answer, dtype=np.int32),
        finish_reason=ends_by,
        prefill_top=np.zeros((len(prompt) - 1, 1), dtype=np.int32),
        prefill_logits=np.zeros((len(prompt) - 1, 1), dtype=np.float32),
        trie=writer.finish(),
    )


def conversation(first, second, width=4):
    """Return two turns of one prompt with these ranks."""
    one = replace(recorded_turn(first, width), turns=2)
    prompt = (*one.prompt.tolist(), *one.answer.tolist(), 8, 9)
    return [one, replace(recorded_turn(second, width, prompt=prompt), turns=2, turn=1)]


def recorded_draft(missing="unknown"):
    """Return a draft model that answers from a turn, and its source."""
    source = RecordedSource(VOCABULARY + 100_000, LIMIT, Scoring(), missing)
    drafter = DraftModel()
    drafter.use_draft_model(source)
    return drafter, source


def save_recording(turns, folder, max_new_tokens, *, temperature=0.7, drafts=True, vocabulary=VOCABULARY):
    """Write a finished recording of these turns, as the command does."""
    folder.mkdir(exist_ok=True)
    name = "turns-00000.parquet"
    made_of = {
        "pair": {"target": "a fake", "target_dtype": "float32", "device": "cpu"},
        "law": {"temperature": temperature, "top_k": None, "top_p": None},
        "scoring": asdict(Scoring()) if drafts else None,
        "generation": {"seed": 0, "max_new_tokens": max_new_tokens, "samples": 1, "stop_at_eos": True},
    }
    limits = {"target": LIMIT, "draft": LIMIT}
    files = {name: write_turns(folder / name, turns)}
    RecordingManifest({}, made_of, vocabulary, limits, files, True).save(folder)
    return Recording(folder)
