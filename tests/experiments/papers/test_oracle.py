"""The optimum in hindsight: no schedule of draft lengths takes less time."""

from functools import cache

import numpy as np
import pytest
from helpers.examples import examples
from hypothesis import given, strategies as st
from lightning import Trainer
from torch.utils.data import DataLoader

from experiments.papers.oracle import Hindsight, Oracle, best_schedule, draft_matches, look_ahead
from specexp.bench.arm import Generation
from specexp.bench.live import DecoderArm
from specexp.bench.module import EvaluationModule
from specexp.builders import Chain, KConfig
from specexp.core.context import Context
from specexp.core.latency import LatencyProfile
from specexp.core.loop import Decoder
from specexp.data import Prompt
from specexp.drafters import DraftModel, PhraseCache
from specexp.testing.controllers import FrozenControllerContract
from specexp.testing.fakes import FakeCausalLM, hashed_model
from specexp.verifiers import Greedy, KeyedSampling, RejectionSampling

PAPER = LatencyProfile("made up", {1: 152.0, 64: 155.0}, {1: 21.0, 64: 21.4}, step_ms=2.2)
VOCABULARY = 7


class TestOracle(FrozenControllerContract):
    """With schedules set by hand."""

    def make_controller(self):
        oracle = Oracle(max_depth=4)
        for sequence in range(3):
            oracle.set_schedule(Context([1], sequence=sequence), {place: place % 4 for place in range(200)})
        return oracle

    def test_it_can_be_switched_off(self, controller):
        """By itself: where a draft pass costs more than it can bring, all lengths are 0."""
        dear = LatencyProfile("made up", {1: 10.0}, {1: 100.0})
        assert best_schedule(np.ones(20, dtype=bool), dear, 8, 20) == [0] * 20


@cache
def target():
    return hashed_model(VOCABULARY, seed=3)


@cache
def draft():
    """As the target, but at random where the last two tokens add up to a multiple of 3."""
    other = hashed_model(VOCABULARY, seed=4)
    return FakeCausalLM(lambda text: (target() if sum(text[-2:]) % 3 else other).next_logits(text), VOCABULARY)


class Tokenizer:
    """Makes two tokens of any text."""

    eos_token_id = 5

    def __call__(self, text, add_special_tokens):
        return {"input_ids": [4, 6]}


def arm(controller, profile, verifier=None, tokens=24, drafter=None):
    controller.use_latency(profile)
    decoder = Decoder(target(), drafter or DraftModel(draft()), Chain(8), verifier or Greedy(), controller)
    return DecoderArm("arm", decoder, Tokenizer(), Generation(max_new_tokens=tokens), latency=profile)


def plain_arm(verifier):
    return DecoderArm("plain", Decoder(target(), verifier=verifier), Tokenizer(), Generation(max_new_tokens=24))


def prompt(*tokens, turns=1):
    return Prompt("p", "made", ("only",) * turns, tokens, 0)


profiles = st.builds(
    lambda target_ms, target_slope, draft_ms, draft_slope, step_ms, further: LatencyProfile(
        "made up",
        {1: target_ms, 9: target_ms * (1 + target_slope)},
        {1: draft_ms, 9: draft_ms * (1 + draft_slope)},
        step_ms,
        **further,
    ),
    st.sampled_from([10.0, 50.0]),
    st.sampled_from([0.0, 0.05, 1.0]),
    st.sampled_from([0.5, 3.0, 12.0]),
    st.sampled_from([0.0, 0.5, 4.0]),
    st.sampled_from([0.0, 2.0]),
    st.sampled_from(
        [
            {},
            {"node_ms": 0.5, "token_ms": 3.0},
            {"target_prefix_ms": 4000.0, "draft_prefix_token_ms": 500.0, "prefix_tokens": 4},
        ]
    ),
)
PREFIX = 3


def least_seconds(matches, profile, deepest, room):
    """Return the least seconds of all schedules, step by step, with the tokens that the draft model has not seen."""

    def from_here(place, unseen):
        if place >= len(matches):
            return 0.0
        found = []
        for depth in range(min(deepest, room - place - 1) + 1):
            accepted = 0
            while accepted < depth and place + accepted < len(matches) and matches[place + accepted]:
                accepted += 1
            taken, left = step_of(profile, matches, place, depth, accepted, unseen)
            found.append(taken + from_here(place + accepted + 1, left))
        return min(found)

    return from_here(0, 1)


def step_of(profile, matches, place, depth, accepted, unseen):
    """Return the seconds of a step, and the number of tokens that the draft model has not seen after it."""
    passes = [unseen, *[1] * (depth - 1)] if depth else []
    new_tokens = min(accepted + 1, len(matches) - place)
    seconds = profile.step_seconds(depth + 1, passes, new_tokens, PREFIX + place)
    return seconds, unseen + 1 if depth == 0 else 2 if accepted == depth else 1


def seconds_of(depths, matches, profile):
    place, unseen, total = 0, 1, 0.0
    while place < len(matches):
        depth, accepted = depths[place], 0
        while accepted < depth and place + accepted < len(matches) and matches[place + accepted]:
            accepted += 1
        seconds, unseen = step_of(profile, matches, place, depth, accepted, unseen)
        total += seconds
        place += accepted + 1
    return total


@examples(60)
@given(st.lists(st.booleans(), min_size=1, max_size=7), profiles, st.integers(0, 4), st.integers(0, 2))
def test_the_schedule_is_the_best_of_all(matches, profile, deepest, unused_room):
    room = len(matches) + unused_room
    depths = best_schedule(np.array(matches), profile, deepest, room, PREFIX)
    expected = least_seconds(matches, profile, deepest, room)
    assert seconds_of(depths, matches, profile) == pytest.approx(expected)


def test_a_run_takes_the_seconds_of_its_schedule():
    """The modelled seconds of the run are those of the schedule, also with a coupled draft."""
    for verifier, coupled in ((Greedy(), False), (KeyedSampling(0.7), True)):
        oracle = Oracle(max_depth=8)
        whole = arm(oracle, PAPER, verifier, 40, DraftModel(draft(), coupled=coupled))
        look_ahead(whole, oracle, prompt(1, 2, 4))
        record = whole.decode(prompt(1, 2, 4))
        matches = draft_matches(
            DraftModel(draft(), coupled=coupled),
            [1, 2, 4],
            record.token_ids,
            sequence="p#0",
            noise_temperature=verifier.noise_temperature,
        )
        depths = [
            oracle.plan(Context([1, 2, 4, *record.token_ids[:place]], sequence="p#0")).max_depth
            for place in range(len(record.token_ids))
        ]
        assert matches.any()
        assert not matches.all()
        assert record.decode_seconds == pytest.approx(seconds_of(depths, matches, PAPER))


def test_a_run_decodes_every_turn_and_sample_by_its_schedule():
    """The callback goes before each prompt; the outputs are those of plain decoding."""
    oracle = Oracle(max_depth=4, step_ms=10.0, draft_pass_ms=1.0)
    arms = [arm(oracle, PAPER, KeyedSampling(0.7)), plain_arm(KeyedSampling(0.7))]
    module = EvaluationModule(arms, samples=2)
    loader = DataLoader([prompt(1, 2, 4, turns=3)], batch_size=1, collate_fn=lambda batch: batch[0])
    off = ("logger", "enable_checkpointing", "enable_model_summary", "enable_progress_bar")
    trainer = Trainer(accelerator="cpu", callbacks=[Hindsight()], **dict.fromkeys(off, False))
    trainer.test(module, loader, verbose=False)
    records = {(record.arm, record.sample): record for record in module.records}
    assert len(records) == 4
    for sample in range(2):
        assert records["arm", sample].error is None
        assert records["arm", sample].token_ids == records["plain", sample].token_ids
        assert len(records["arm", sample].turn_tokens) == 3
    assert sum(record.drafted_nodes for record in records.values()) > 0


def test_teacher_forcing_of_a_long_output_goes_block_by_block(monkeypatch):
    output = Decoder(target()).generate([1, 2], max_new_tokens=40).token_ids
    whole = draft_matches(DraftModel(draft()), [1, 2], output)
    monkeypatch.setattr("experiments.papers.oracle.BLOCK", 7)
    calls, propose = [], DraftModel.propose
    monkeypatch.setattr(DraftModel, "propose", lambda *given: calls.append(given) or propose(*given))
    assert draft_matches(DraftModel(draft()), [1, 2], output).tolist() == whole.tolist()
    assert len(calls) == 6


def test_missing_costs_and_schedules_are_refused():
    with pytest.raises(ValueError, match="set both, or neither"):
        Oracle(step_ms=3.0)
    with pytest.raises(ValueError, match="needs the costs of passes: compose a latency profile"):
        Oracle().use_latency(None)
    with pytest.raises(ValueError, match="has no schedule for sequence 0 after 1 tokens"):
        Decoder(target(), DraftModel(draft()), Chain(2), controller=Oracle()).generate([1])


@pytest.mark.parametrize(
    ("wrap", "builder", "verifier", "message"),
    [
        (lambda drafter: drafter, Chain(2), RejectionSampling(), "got RejectionSampling: verify with"),
        (PhraseCache, Chain(2), Greedy(), "got PhraseCache: use another controller"),
        (lambda drafter: drafter, KConfig([2]), Greedy(), "needs a Chain of top-k candidates"),
        (lambda drafter: drafter, Chain(2, "drawn"), Greedy(), "needs a Chain of top-k candidates"),
    ],
)
def test_parts_without_a_schedule_are_refused(wrap, builder, verifier, message):
    with pytest.raises(ValueError, match=message):
        Decoder(target(), wrap(DraftModel(draft())), builder, verifier, Oracle())
