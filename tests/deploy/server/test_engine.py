"""Requests as lanes of the one loop: each says what it says alone, whatever comes and goes beside it."""

import pytest
import torch
from helpers.served import Client, alone, check_schedule, text_of

from specexp.builders import Chain, StaticTree
from specexp.controllers import DraftLengths
from specexp.core.language_model import LanguageModel
from specexp.core.parts import Parts
from specexp.deploy.server.engine import ClosedError, Engine, FullError
from specexp.drafters import PromptLookup, TokenRecycling
from specexp.testing.fakes import FakeDrafter, counting_model, hashed_model

VOCABULARY, EOS = 12, (3,)


def counting(lanes=2, waiting=4, drafter=None, **others):
    """A target that counts, and a draft that counts with it."""
    parts = Parts(drafter or FakeDrafter(lambda tokens: [(tokens[-1] + 1) % VOCABULARY]), Chain(3))
    target = LanguageModel(counting_model(VOCABULARY))
    return Engine(target, parts, lanes=lanes, waiting=waiting, **others)


def rounds(engine, number=60):
    with torch.inference_mode():
        for _ in range(number):
            engine.round()


def strategies():
    """Learning from nothing, from one sequence, from all sequences together."""
    return [
        Parts(PromptLookup(), Chain(4)),
        Parts(TokenRecycling(k=3), StaticTree([[0], [1], [0, 0], [0, 1]])),
        Parts(TokenRecycling(k=3, state="carry"), StaticTree([[0], [1], [0, 0]])),
        Parts(),
    ]


def check_fakes(seed):
    model = hashed_model(VOCABULARY)
    parts = strategies()[seed % 4]
    engine = check_schedule(LanguageModel(model), LanguageModel(model), parts, seed, VOCABULARY, EOS)
    assert not engine._decoding.lanes


@pytest.mark.parametrize("seed", range(24))
def test_a_request_says_what_it_says_alone(seed):
    check_fakes(seed)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(20))
def test_a_thousand_schedules(block):
    for seed in range(50 * block, 50 * block + 50):
        check_fakes(1000 + seed)


def test_one_pass_of_the_target_answers_all_lanes():
    engine = counting(lanes=4)
    clients = [Client([start], most=8) for start in range(4)]
    engine.submit([client.output for client in clients])
    with torch.inference_mode():
        engine.round()
        before = engine.target.passes
        engine.round()
    assert engine.target.passes == before + 1
    assert [len(client.tokens) for client in clients] == [8] * 4  # two steps of a chain of three and a bonus


def test_fed_by_themselves_lanes_take_a_pass_each_and_say_the_same():
    engine = counting(lanes=3, deterministic=True)
    clients = [Client([start], most=4) for start in range(3)]
    engine.submit([client.output for client in clients])
    rounds(engine, 3)
    assert engine.target.passes >= 3
    assert [client.tokens for client in clients] == [[1, 2, 3, 4], [2, 3, 4, 5], [3, 4, 5, 6]]


@pytest.mark.parametrize(
    "parts",
    [
        Parts(TokenRecycling(k=3, state="carry"), Chain(2)),
        Parts(PromptLookup(), Chain(2), controller=DraftLengths({1: 2, 4: 0})),
    ],
)
def test_drafts_that_hang_on_others_are_refused_where_rounding_would_hang_on_them(parts):
    with pytest.raises(ValueError, match="set their state to cold"):
        Engine(LanguageModel(hashed_model(VOCABULARY)), parts, deterministic=True)


def test_without_speculation_a_step_is_a_token():
    engine, client = counting(), Client([0], most=5, speculative=False)
    engine.submit([client.output])
    rounds(engine)
    assert client.end.result.steps == 5
    assert client.end.result.drafted_nodes == 0


def test_a_cancelled_request_leaves_its_lane_to_the_next_at_the_next_step():
    engine = counting(lanes=1)
    first, second = Client([0], most=100), Client([5], most=2)
    engine.submit([first.output])
    rounds(engine, 1)
    engine.submit([second.output])
    first.output.cancelled = True
    rounds(engine, 1)
    assert (len(first.tokens), first.end) == (4, None)
    assert second.tokens == [6, 7]


def test_what_is_late_ends_whether_it_runs_or_waits():
    engine = counting(lanes=1)
    runs, waits = Client([0], most=100), Client([0], most=100)
    engine.submit([runs.output, waits.output])
    rounds(engine, 1)
    runs.output.deadline = waits.output.deadline = 0.0
    rounds(engine, 1)
    assert (runs.end.why, runs.end.tokens) == ("deadline", 4)
    assert (waits.end.why, waits.end.tokens) == ("deadline", 0)


def test_more_than_may_wait_is_refused_whole():
    engine = counting(lanes=2, waiting=1)
    engine.submit([Client([0]).output, Client([1]).output])
    with pytest.raises(FullError) as refused:
        engine.submit([Client([2]).output, Client([3]).output])
    assert refused.value.retry_after >= 1
    engine.submit([Client([2]).output])


def test_the_next_turn_feeds_only_what_is_new():
    engine = counting()
    first = Client([0, 1, 2], most=5)
    engine.submit([first.output])
    rounds(engine)
    turn = Client([0, 1, 2, *first.tokens, 9, 9], most=3)
    engine.submit([turn.output])
    rounds(engine)
    assert (first.end.cached, turn.end.cached) == (0, 7)  # the last token of an output is never fed
    assert turn.tokens == [10, 11, 0]


def test_samples_of_a_prompt_share_its_prefill():
    engine = counting(lanes=3)
    clients = [Client([4, 5, 6, 7], sequence=number, most=3) for number in range(3)]
    engine.submit([client.output for client in clients])
    rounds(engine)
    assert [client.end.cached for client in clients] == [0, 3, 3]


def test_a_free_lane_that_holds_the_prompt_is_preferred_to_the_oldest():
    engine = counting(lanes=2)
    for prompt in ([1, 2, 3, 4], [7, 7, 7, 7], [7, 7, 7, 9]):
        client = Client(prompt, most=1)
        engine.submit([client.output])
        rounds(engine, 2)
    assert client.end.cached == 3


@pytest.mark.parametrize(("seconds", "sizes"), [(0.0, [4, 4, 2]), (60.0, [4, 6]), (None, [10])])
def test_updates_come_no_more_often_than_asked_and_the_first_at_once(seconds, sizes):
    engine, client = counting(), Client([0], most=10, update_seconds=seconds)
    engine.submit([client.output])
    rounds(engine)
    assert [len(update.tokens) for update in client.updates] == sizes
    assert client.text == text_of(client.tokens)


def test_a_stop_string_ends_the_output_in_front_of_it():
    engine, client = counting(), Client([0], most=11, stop=["ef"])
    engine.submit([client.output])
    rounds(engine)
    assert (client.text, client.end.result.finish_reason) == ("bcd", "stop")
    assert text_of(client.tokens) == "bcdef"


def test_tokens_come_with_the_targets_probabilities():
    engine, client = counting(), Client([0], most=3, log_probs=2)
    engine.submit([client.output])
    rounds(engine)
    chosen = [one for update in client.updates for one in update.log_probs]
    assert [one.token for one in chosen] == client.tokens
    assert all(one.log_prob == pytest.approx(0.0, abs=1e-6) and one.best[0][0] == one.token for one in chosen)
    assert all(len(one.best) == 2 and one.best[1][1] == pytest.approx(-50.0, abs=1e-3) for one in chosen)


def test_a_step_that_fails_ends_who_takes_part_and_nobody_else():
    failing = FakeDrafter(lambda tokens: [tokens[-1] + 1] if tokens[-1] < 8 else [][0])
    engine = counting(lanes=1, drafter=failing)
    fails, goes_on = Client([5], most=9), Client([0], most=4)
    engine.submit([fails.output, goes_on.output])
    rounds(engine)
    assert (fails.end.why, fails.tokens) == ("error", [6, 7, 8, 9])
    assert goes_on.tokens == [1, 2, 3, 4]


def test_closing_finishes_what_was_taken_in_and_takes_in_nothing_more():
    engine = counting(lanes=1)
    clients = [Client([start], most=6) for start in range(3)]
    engine.submit([client.output for client in clients])
    engine.start()
    engine.close()
    assert [client.tokens for client in clients] == [alone(engine.target, client, None) for client in clients]
    with pytest.raises(ClosedError):
        engine.submit([Client([0]).output])


def test_whoever_cannot_be_told_any_more_is_taken_for_gone():
    engine, client = counting(), Client([0], most=50)

    def gone(update):
        raise RuntimeError("the loop is closed")

    client.output.notify = gone
    engine.submit([client.output])
    rounds(engine, 2)
    assert engine.running == 0
