"""Replay of rejection sampling: ranked candidates take what live runs take, drawn ones are refused."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from helpers.fake_turns import recorded_draft, recorded_turn

from specexp.builders import Chain, KConfig, StaticTree
from specexp.controllers import Fixed
from specexp.core.loop import Decoder
from specexp.core.parts import Parts
from specexp.drafters import DraftModel
from specexp.replay.format.trie import Ranked, RecordingError
from specexp.replay.play.fidelity import Grade, fidelity
from specexp.replay.play.player import Player
from specexp.testing.fakes import hashed_model
from specexp.verifiers import Greedy, RejectionSampling

VOCABULARY, TOKENS, PROMPT = 12, 14, (3, 1, 4)


@cache
def models():
    """A target and a draft that agrees with it now and then."""
    return hashed_model(VOCABULARY, seed=1), hashed_model(VOCABULARY, seed=2, spread=1.0)


@torch.inference_mode()
def live_turn(builder, drafter, seed):
    """A run of the real decoder, and its output as a recording would hold it."""
    target, draft = models()
    decoder = Decoder(target, drafter, builder, RejectionSampling(temperature=1.0))
    result = decoder.generate(list(PROMPT), max_new_tokens=TOKENS, seed=seed)
    answer = result.token_ids
    seen = [(*PROMPT, *answer[:place]) for place in range(len(answer))]
    said = torch.tensor([draft.next_logits(tokens) for tokens in seen]).log_softmax(dim=-1)
    values, ranked = said.sort(dim=-1, descending=True, stable=True)
    turn = recorded_turn([0] * len(answer), prompt=PROMPT)
    turn = replace(turn, answer=np.array(answer, dtype=np.int32))
    turn.trie.tokens[1:] = answer
    counts = np.full(len(answer) + 1, VOCABULARY, dtype=np.int32)
    counts[-1] = 0
    candidates = Ranked(counts, ranked.numpy().astype(np.int32).ravel(), values.numpy().ravel())
    trie = type(turn.trie)(turn.trie.parents, turn.trie.tokens, candidates, turn.trie.target, len(answer))
    return result, replace(turn, trie=trie)


@pytest.mark.parametrize(
    "builder", [Chain(3), KConfig([3, 2]), StaticTree([[1], [0], [1, 0], [1, 3], [0, 2], [1, 0, 0]])]
)
def test_of_ranked_candidates_the_output_alone_decides_the_counts(builder):
    """Rejection sampling of point masses: a child is accepted exactly where it is the output's token."""
    drafter = DraftModel(models()[1])
    replayed, source = recorded_draft()
    player = Player(Parts(replayed, builder, RejectionSampling(), Fixed()), source, 512, 0)
    several = set()
    for seed in range(15):
        result, turn = live_turn(builder, drafter, seed)
        (counts,) = player.play([turn], TOKENS, "s")
        found = (counts.steps, counts.accepted_drafts, counts.drafted_nodes, counts.draft_passes)
        assert found == (result.steps, result.accepted_drafts, result.drafted_nodes, result.draft_passes)
        several.add(counts.steps)
    assert len(several) > 1


@pytest.mark.parametrize("verifier", [RejectionSampling(), Greedy()])
def test_drawn_candidates_are_refused(verifier):
    with pytest.raises(RecordingError, match=r"Chain draws its candidates.*set candidates to top-k"):
        fidelity(Parts(DraftModel(), Chain(4, candidates="drawn"), verifier, Fixed()))
    parts = Parts(DraftModel(), Chain(4), verifier, Fixed())
    assert fidelity(parts).grade is (Grade.EXACT if isinstance(verifier, Greedy) else Grade.IN_LAW)
