"""Expected counts given the output: against every way a run can go, and against runs of the real decoder."""

from collections import defaultdict
from dataclasses import replace
from functools import cache
from itertools import product
from math import erfc, sqrt

import numpy as np
import pytest
import torch
from helpers.branching import logits_of, outcomes
from helpers.examples import examples
from helpers.fake_turns import LIMIT, recorded_draft, recorded_turn, save_recording
from hypothesis import given, strategies as st

from specexp.bench.record import read_records, write_records
from specexp.builders import Chain, KConfig, StaticTree
from specexp.config.schema import Generation
from specexp.controllers import Fixed
from specexp.core.decoder import Decoder
from specexp.core.latency import LatencyProfile
from specexp.core.parts import Parts
from specexp.core.tree import NodeKind, TokenTree, TreeShape
from specexp.data import Prompt
from specexp.drafters import DraftModel
from specexp.replay.format.errors import NotRecordedError, RecordingError
from specexp.replay.format.trie import Ranked
from specexp.replay.play.chain_law import expected_counts
from specexp.replay.play.fidelity import Grade
from specexp.replay.play.player import Player
from specexp.replay.play.replay_arm import ReplayArm, source_for
from specexp.replay.play.verification import RecordedTarget
from specexp.testing.fakes import hashed_model
from specexp.verifiers import RejectionSampling, rejection_sampling

EOS = 2
PROFILE = LatencyProfile(
    "of a test",
    {1: 9.0, 4: 12.0},
    {1: 1.0, 2: 1.5},
    step_ms=0.7,
    node_ms=0.05,
    token_ms=0.11,
    prefix_tokens=3,
    target_prefix_ms=50.0,
    draft_prefix_token_ms=20.0,
)


def distributions(seed, parts=16, vocabulary=3):
    """A distribution after every path, in 16ths."""

    @cache
    def after(path):
        generator = np.random.default_rng([seed, *path])
        weights = generator.random(vocabulary) + 0.05
        return tuple((generator.multinomial(parts, weights / weights.sum()) / parts).tolist())

    return after


def every_step(p, q, prefix, length):
    """Probability of every output of a step of the real verifier, over every chain the draft may draw."""
    found = defaultdict(float)
    for drawn in product(range(3), repeat=length):
        paths = [(*prefix, *drawn[:depth]) for depth in range(length + 1)]
        weight = float(np.prod([q(path)[token] for path, token in zip(paths, drawn, strict=False)]))
        if weight == 0:
            continue
        rows = np.arange(length + 1)
        tree = TokenTree(
            TreeShape(rows - 1, np.where(rows == 0, -1, 0)),
            np.array([0, *drawn]),
            None,
            np.full(length + 1, NodeKind.DRAWN, dtype=np.int8),
            {row: np.array(q(path), dtype=np.float32) for row, path in enumerate(paths[:-1])},
        )
        logits = np.stack([logits_of(p(path)) for path in paths])
        for output, probability in outcomes(RejectionSampling(), tree, logits, rejection_sampling).items():
            found[output] += weight * probability
    return found


def every_run(p, q, length, tokens):
    """For every output its probability, and the probability-weighted sums of what its runs took."""
    sums = defaultdict(lambda: np.zeros(5))  # probability, steps, accepted, drafted, seconds
    waiting = [((), 1.0, np.zeros(4), 1)]
    while waiting:
        prefix, probability, counts, fed = waiting.pop()
        chain = min(length, tokens - len(prefix) - 1)
        for output, share in every_step(p, q, prefix, chain).items():
            accepted = len(output) - 1
            new = list(output)
            if EOS in new:
                new = new[: new.index(EOS) + 1]
            cost = PROFILE.step_seconds(
                chain + 1, [fed, *[1] * (chain - 1)] if chain else [], len(new), 2 + len(prefix)
            )
            after = counts + np.array([1, min(accepted, len(new)), chain, cost])
            whole = (*prefix, *new)
            if new[-1] == EOS or len(whole) == tokens:
                sums[whole] += probability * share * np.array([1.0, *after])
            else:
                waiting.append((whole, probability * share, after, 1 + (accepted == chain > 0)))
    return sums


@given(st.integers(0, 10_000), st.integers(1, 3), st.integers(1, 4))
@examples(12)
def test_expected_counts_are_those_of_every_run_that_gives_the_output(seed, length, tokens):
    p, q = distributions(2 * seed), distributions(2 * seed + 1)
    found = every_run(p, q, length, tokens)
    assert sum(sums[0] for sums in found.values()) == pytest.approx(1)
    for output, sums in found.items():
        turn = turn_of(output, p, q, "eos" if output[-1] == EOS else "length")
        counts = expected_counts(turn, length, max_new_tokens=tokens, context_limit=LIMIT, latency=PROFILE)
        steps, accepted, drafted, seconds = sums[1:] / sums[0]
        assert counts.steps == pytest.approx(steps)
        assert counts.accepted_drafts == pytest.approx(accepted)
        assert counts.accepted_drafts + counts.bonus_tokens == pytest.approx(len(output))
        assert counts.drafted_nodes == counts.draft_passes == pytest.approx(drafted)
        assert sum(counts.drafted_at) == pytest.approx(drafted)
        assert sum(counts.accepted_at) == pytest.approx(accepted)
        assert sum(counts.seconds.values()) == pytest.approx(seconds)


def turn_of(output, p, q, ends_by):
    """A recorded turn with this output, and its probabilities."""
    paths = [tuple(output[:place]) for place in range(len(output))]
    with np.errstate(divide="ignore"):
        target, draft = (
            np.log([one(path)[token] for path, token in zip(paths, output, strict=True)]) for one in (p, q)
        )
    return recorded_turn([0] * len(output), ends_by=ends_by, target_log_probs=target, draft_log_probs=draft)


def test_by_hand():
    """Two of three tokens may come by acceptance, each with probability 1/2: from steps of 1, 2 or 3 tokens."""
    turn = recorded_turn([0] * 3, target_log_probs=np.zeros(3), draft_log_probs=np.log([0.5, 0.5, 0.5]))
    counts = expected_counts(turn, 4, max_new_tokens=3, context_limit=LIMIT)
    # both accepted: 1 step; first alone: 2; not the first: a second step at root 1, whose chain of one token is
    # accepted (2 steps) or not (3)
    assert counts.steps == pytest.approx(0.25 * 1 + 0.25 * 2 + 0.5 * (0.5 * 2 + 0.5 * 3))
    assert counts.drafted_nodes == pytest.approx(2 + 0.5 * 1)
    assert counts.accepted_drafts == pytest.approx(0.5 + 0.25 + 0.5 * 0.5)
    assert counts.seconds == {}


def test_a_draft_that_is_the_target_is_always_accepted_and_one_that_cannot_is_never():
    same = recorded_turn([0] * 6)
    assert expected_counts(same, 2, max_new_tokens=6, context_limit=LIMIT).steps == 2
    never = replace(same, draft_log_probs=np.full(6, -np.inf, dtype=np.float32))
    counts = expected_counts(never, 2, max_new_tokens=6, context_limit=LIMIT)
    assert (counts.steps, counts.accepted_drafts) == (6, 0)


def test_a_chain_of_no_length_is_plain_decoding():
    counts = expected_counts(
        recorded_turn([0] * 6), 0, max_new_tokens=6, context_limit=LIMIT, latency=PROFILE
    )
    assert (counts.steps, counts.drafted_nodes, counts.draft_passes) == (6, 0, 0)
    assert sum(counts.seconds.values()) == pytest.approx(PROFILE.plain_seconds(3, 6))


def test_passes_beyond_the_profile_are_counted():
    counts = expected_counts(
        recorded_turn([0] * 6), 5, max_new_tokens=6, context_limit=LIMIT, latency=PROFILE
    )
    assert (counts.steps, counts.beyond_profile) == (1, 1)


def test_missing_probabilities_are_refused_where_they_are_needed():
    known = np.array([0, np.nan], dtype=np.float32)  # nothing is drafted for the last token
    turn = recorded_turn([0, 0], draft_log_probs=known)
    assert expected_counts(turn, 4, max_new_tokens=2, context_limit=LIMIT).steps == 1
    with pytest.raises(
        NotRecordedError, match="draft's probability of new token 1 was not recorded; record with"
    ):
        expected_counts(replace(turn, finish_reason="eos"), 4, max_new_tokens=9, context_limit=LIMIT)


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
    said = [
        torch.tensor([model.next_logits(tokens) for tokens in seen]).log_softmax(dim=-1)
        for model in (target, draft)
    ]
    log_probs = [row[range(len(answer)), answer].numpy() for row in said]
    values, ranked = said[1].sort(dim=-1, descending=True, stable=True)
    turn = recorded_turn(
        [0] * len(answer), prompt=PROMPT, target_log_probs=log_probs[0], draft_log_probs=log_probs[1]
    )
    turn = replace(turn, answer=np.array(answer, dtype=np.int32))
    turn.trie.tokens[1:] = answer
    counts = np.full(len(answer) + 1, VOCABULARY, dtype=np.int32)
    counts[-1] = 0
    candidates = Ranked(counts, ranked.numpy().astype(np.int32).ravel(), values.numpy().ravel())
    trie = type(turn.trie)(turn.trie.parents, turn.trie.tokens, candidates, turn.trie.target, len(answer))
    return result, replace(turn, trie=trie)


def test_live_runs_take_on_average_what_is_expected_of_their_outputs():
    """A z-test: what a run took, less what is expected given its output, has mean 0."""
    drafter = DraftModel(models()[1], temperature=1.0)
    off = []
    for seed in range(70):
        result, turn = live_turn(Chain(4, candidates="drawn"), drafter, seed)
        expected = expected_counts(turn, 4, max_new_tokens=TOKENS, context_limit=512)
        off.append((result.steps - expected.steps, result.drafted_nodes - expected.drafted_nodes))
    for differences in np.array(off).T:
        z = differences.mean() / (differences.std(ddof=1) / sqrt(differences.size))
        assert erfc(abs(z) / sqrt(2)) > 0.01
        assert differences.std() > 0.3, "the output alone would decide"


@pytest.mark.parametrize(
    "builder", [Chain(3), KConfig([3, 2]), StaticTree([[1], [0], [1, 0], [1, 3], [0, 2], [1, 0, 0]])]
)
def test_of_ranked_candidates_the_output_alone_decides_the_counts(builder):
    """Rejection sampling of point masses: a child is accepted exactly where it is the output's token."""
    drafter = DraftModel(models()[1])
    replayed, source = recorded_draft()
    player = Player(Parts(replayed, builder, RejectionSampling(), Fixed()), source, RecordedTarget(512), 0)
    several = set()
    for seed in range(15):
        result, turn = live_turn(builder, drafter, seed)
        (counts,) = player.play([turn], TOKENS, "s")
        found = (counts.steps, counts.accepted_drafts, counts.drafted_nodes, counts.draft_passes)
        assert found == (result.steps, result.accepted_drafts, result.drafted_nodes, result.draft_passes)
        several.add(counts.steps)
    assert len(several) > 1


def arm_of(recording, builder, controller=None):
    drafter = DraftModel()
    drafter.use_draft_model(source_for(recording))
    parts = Parts(drafter, builder, RejectionSampling(temperature=1.0), controller or Fixed())
    return ReplayArm("expected", recording, parts, Generation(max_new_tokens=TOKENS), PROFILE)


def test_an_arm_of_drawn_chains_records_expected_values(tmp_path):
    _, turn = live_turn(Chain(4, candidates="drawn"), DraftModel(models()[1], temperature=1.0), 0)
    recording = save_recording([turn], tmp_path, TOKENS, temperature=1.0, vocabulary=VOCABULARY)
    arm = arm_of(recording, Chain(4, candidates="drawn"))
    assert arm.fidelity.grade is Grade.EXPECTED
    prompt = Prompt("p", "fake", ("a question",), PROMPT, 0)
    record = arm.decode(prompt)
    expected = expected_counts(turn, 4, max_new_tokens=TOKENS, context_limit=LIMIT, latency=PROFILE)
    assert (record.steps, record.drafted_nodes) == (expected.steps, expected.drafted_nodes)
    assert record.steps != round(record.steps)
    assert record.decode_seconds == pytest.approx(sum(expected.seconds.values()))
    assert record.tokens_per_step == pytest.approx(len(turn.answer) / expected.steps)
    write_records(tmp_path / "records.jsonl", [record])
    assert read_records(tmp_path / "records.jsonl") == [record]

    shorter = arm_of(recording, Chain(4, candidates="drawn"), Fixed(max_depth=2)).decode(prompt)
    assert shorter.steps == expected_counts(turn, 2, max_new_tokens=TOKENS, context_limit=LIMIT).steps


def test_expected_values_have_no_steps_to_watch(tmp_path):
    _, turn = live_turn(Chain(2), DraftModel(models()[1]), 0)
    recording = save_recording([turn], tmp_path, TOKENS, temperature=1.0, vocabulary=VOCABULARY)
    arm = arm_of(recording, Chain(2, candidates="drawn"))
    prompt = Prompt("p", "fake", ("a question",), PROMPT, 0)
    with pytest.raises(
        RecordingError, match="no steps to watch: leave the analyses out, or set candidates to top-k"
    ):
        arm.decode_observed(prompt, 0, print)
    arm.observers = [print]
    with pytest.raises(RecordingError, match="no steps to watch"):
        arm.decode(prompt)
