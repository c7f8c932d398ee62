"""Requests as lanes of the one loop: an output does not depend on the others."""

from time import sleep

import pytest
import torch
from helpers.served import Client, alone, check_schedule, text_of

from specexp.builders import Chain, StaticTree
from specexp.controllers import DraftLengths, NodeBudget
from specexp.core.language_model import LanguageModel
from specexp.core.parts import Parts
from specexp.deploy.server.decoding_thread import DecodingThread, UnavailableError
from specexp.drafters import PromptLookup, TokenRecycling
from specexp.testing.fakes import FakeDrafter, counting_model, hashed_model

VOCABULARY, EOS = 12, (3,)


def counting(lanes=2, waiting=4, drafter=None, **others):
    """A target that counts, and a draft that counts with it."""
    parts = Parts(drafter or FakeDrafter(lambda tokens: [(tokens[-1] + 1) % VOCABULARY]), Chain(3))
    target = LanguageModel(counting_model(VOCABULARY))
    return DecodingThread(target, parts, lanes=lanes, waiting=waiting, **others)


def rounds(thread, number=60):
    with torch.inference_mode():
        for _ in range(number):
            thread.round()


STRATEGIES = [  # learning from nothing, from one sequence, from all sequences together
    lambda: Parts(PromptLookup(), Chain(4)),
    lambda: Parts(TokenRecycling(k=3), StaticTree([[0], [1], [0, 0], [0, 1]])),
    lambda: Parts(TokenRecycling(k=3, state="carry"), StaticTree([[0], [1], [0, 0]])),
    Parts,
]


def check_fakes(seed):
    model = hashed_model(VOCABULARY)
    parts = STRATEGIES[seed % 4]()
    thread = check_schedule(LanguageModel(model), LanguageModel(model), parts, seed, VOCABULARY, EOS)
    assert not thread._decoding.lanes


@pytest.mark.parametrize(
    "seeds", [range(24), *(pytest.param(range(at, at + 50), marks=pytest.mark.slow) for at in range(1000, 2000, 50))]
)  # fmt: skip
def test_an_output_equals_that_of_a_single_request(seeds):
    for seed in seeds:
        check_fakes(seed)


def test_one_pass_of_the_target_answers_all_lanes():
    thread = counting(lanes=4)
    clients = [Client([start], most=8) for start in range(4)]
    thread.submit([client.output for client in clients])
    with torch.inference_mode():
        thread.round()
        before = thread.target.passes
        thread.round()
    assert thread.target.passes == before + 1
    assert [len(client.tokens) for client in clients] == [8] * 4  # two steps of a chain of three and a bonus


def test_deterministic_lanes_take_a_pass_each():
    thread = counting(lanes=3, deterministic=True)
    clients = [Client([start], most=4) for start in range(3)]
    thread.submit([client.output for client in clients])
    rounds(thread, 3)
    assert thread.target.passes >= 3
    assert [client.tokens for client in clients] == [[1, 2, 3, 4], [2, 3, 4, 5], [3, 4, 5, 6]]


@pytest.mark.parametrize(
    "parts",
    [
        Parts(TokenRecycling(k=3, state="carry"), Chain(2)),
        Parts(PromptLookup(), Chain(2), controller=DraftLengths({1: 2, 4: 0})),
    ],
)
def test_drafts_that_depend_on_others_are_refused_for_deterministic_lanes(parts):
    with pytest.raises(ValueError, match="set the parts' state to cold"):
        DecodingThread(LanguageModel(hashed_model(VOCABULARY)), parts, deterministic=True)


def test_a_cancelled_request_frees_its_lane_before_the_next_step():
    thread = counting(lanes=1)
    first, second = Client([0], most=100), Client([5], most=2)
    thread.submit([first.output])
    rounds(thread, 1)
    thread.submit([second.output])
    first.output.cancelled = True
    rounds(thread, 1)
    assert (len(first.tokens), first.end) == (4, None)
    assert second.tokens == [6, 7]


def test_a_deadline_ends_running_and_waiting_outputs():
    thread = counting(lanes=1)
    runs, waits = Client([0], most=100), Client([0], most=100)
    thread.submit([runs.output, waits.output])
    rounds(thread, 1)
    runs.output.deadline = waits.output.deadline = 0.0
    rounds(thread, 1)
    assert (runs.end.why, runs.end.tokens) == ("deadline", 4)
    assert (waits.end.why, waits.end.tokens) == ("deadline", 0)


def submitted(thread, *clients, number=60):
    """The clients, after their outputs were decoded."""
    thread.submit([client.output for client in clients])
    rounds(thread, number)
    return clients


def test_the_next_turn_feeds_only_new_tokens_and_samples_share_a_prefill():
    thread = counting(lanes=3)
    (first,) = submitted(thread, Client([0, 1, 2], most=5))
    (turn,) = submitted(thread, Client([0, 1, 2, *first.tokens, 9, 9], most=3))
    assert (first.end.cached, turn.end.cached) == (0, 7)  # the last token of an output is never fed
    assert turn.tokens == [10, 11, 0]
    clients = submitted(thread, *(Client([4, 5, 6, 7], sequence=number, most=3) for number in range(3)))
    assert [client.end.cached for client in clients] == [0, 3, 3]


def test_only_a_request_that_is_alone_learns_from_the_logits_of_its_prompt(monkeypatch):
    thread, learned = counting(lanes=2, drafter=TokenRecycling(k=3)), []
    start = thread._decoding.start
    monkeypatch.setattr(thread._decoding, "start", lambda lane, learns: learned.append(learns) or start(lane, learns))
    submitted(thread, Client([0, 1, 2], most=5))
    submitted(thread, *(Client([first, 1, 2], most=5) for first in range(2)))
    submitted(thread, Client([4, 1, 2], most=5))
    assert learned == [True, False, False, True]


def test_a_free_lane_that_holds_the_prompt_is_preferred_to_the_oldest():
    thread = counting(lanes=2)
    for prompt in ([1, 2, 3, 4], [7, 7, 7, 7], [7, 7, 7, 9]):
        (client,) = submitted(thread, Client(prompt, most=1), number=2)
    assert client.end.cached == 3


@pytest.mark.parametrize(("seconds", "sizes"), [(0.0, [4, 4, 2]), (60.0, [4, 6]), (None, [10])])
def test_the_first_update_comes_at_once_and_further_ones_not_too_often(seconds, sizes):
    (client,) = submitted(counting(), Client([0], most=10, update_seconds=seconds))
    assert [len(update.tokens) for update in client.updates] == sizes
    assert client.text == text_of(client.tokens)


def test_a_step_that_fails_ends_its_lanes_alone():
    failing = FakeDrafter(lambda tokens: [tokens[-1] + 1] if tokens[-1] < 8 else [][0])
    thread = counting(lanes=1, drafter=failing)
    fails, goes_on = submitted(thread, Client([5], most=9), Client([0], most=4))
    assert (fails.end.why, fails.tokens) == ("error", [6, 7, 8, 9])
    assert goes_on.tokens == [1, 2, 3, 4]


def test_closing_finishes_accepted_outputs_and_refuses_new_ones():
    thread = counting(lanes=1)
    clients = [Client([start], most=6) for start in range(3)]
    thread.submit([client.output for client in clients])
    thread.start()
    thread.close()
    assert [client.tokens for client in clients] == [alone(thread.target, client, None) for client in clients]
    with pytest.raises(UnavailableError, match="shutting down"):
        thread.submit([Client([0]).output])


def test_an_output_that_cannot_be_notified_is_cancelled():
    thread, client = counting(), Client([0], most=50)
    client.output.notify = None  # calling it fails, as a closed event loop does
    submitted(thread, client, number=2)
    assert thread.running == 0


def slow(model):
    """Let each pass of a model take at least 10 ms, whatever its width."""
    forward = model.forward

    def slowly(*arguments, **others):
        sleep(0.01)
        return forward(*arguments, **others)

    model.forward = slowly
    return model


def test_a_request_without_gain_switches_its_own_drafts_off():
    """Drafts of a prompt that counts are right, and the others are wrong and take as long as three passes."""

    def draft(tokens):
        if tokens[0] == 0:
            return [(tokens[-1] + 1) % VOCABULARY]
        sleep(0.03)
        return [tokens[-1]]

    target = LanguageModel(slow(counting_model(VOCABULARY)))
    parts = Parts(FakeDrafter(draft), Chain(3), controller=NodeBudget())
    thread = DecodingThread(target, parts, lanes=1)
    good, bad = Client([0], most=60), Client([5], most=60)
    thread.submit([good.output, bad.output])
    rounds(thread, 110)
    drafting = [[step.drafted > 0 for step in client.end.steps] for client in (good, bad)]
    assert sum(drafting[0]) >= len(drafting[0]) - 8  # all but the plain steps that are measured first
    assert sum(drafting[1]) <= 9  # within the first 30 tokens, and probes
