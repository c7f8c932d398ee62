"""The decoder: requests, conversations, samples and refusals."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from specexp.builders import Chain, StaticTree
from specexp.core.context import Context
from specexp.core.language_model import LanguageModel
from specexp.core.loop import Decoder
from specexp.core.parts import Parts
from specexp.drafters import DraftModel, PromptLookup, TokenRecycling, Union
from specexp.scheduling import Job, Serial
from specexp.testing.fakes import FakeDrafter, counting_model, hashed_model
from specexp.verifiers import Greedy, KeyedSampling

STRATEGIES = {
    "plain": lambda: (None, None),
    "recycling": lambda: (TokenRecycling(k=3), StaticTree([[0], [1], [2], [0, 0], [0, 1], [1, 0]])),
    "recycling-carry": lambda: (TokenRecycling(k=2, state="carry", prefill_update=False), StaticTree([[0], [1]])),
    "lookup": lambda: (PromptLookup(), Chain(3)),
    "union": lambda: (Union([PromptLookup(), TokenRecycling(k=2)]), StaticTree([[0], [1], [0, 0]])),
}


@pytest.fixture(params=STRATEGIES, ids=str)
def strategy(request):
    return STRATEGIES[request.param]


@pytest.fixture(params=[Greedy, lambda: KeyedSampling(0.8)], ids=["greedy", "keyed"])
def verifier(request):
    return request.param()


def test_lists_arrays_and_tensors_are_the_same_prompt():
    decoder = Decoder(counting_model(9))
    for prompt in ([3, 4], (3, 4), np.array([3, 4]), torch.tensor([3, 4]), torch.tensor([[3, 4]])):
        assert decoder.generate(prompt, max_new_tokens=2).token_ids == [5, 6]


@pytest.mark.parametrize(
    "eos",
    [6, [6], (7, 6), {6}, np.int64(6), np.array([6]), torch.tensor(6), torch.tensor([6, 7]), [torch.tensor(6)]],
    ids=repr,
)
def test_eos_may_come_as_a_number_or_as_several_of_any_library(eos):
    decoder = Decoder(counting_model(9), FakeDrafter(lambda tokens: [(tokens[-1] + 1) % 9]), Chain(8))
    assert decoder.generate([3], max_new_tokens=20, eos_token_id=eos).token_ids == [4, 5, 6]


def test_an_interrupted_commit_leaves_no_rows_in_the_conversation(monkeypatch):
    decoder = Decoder(hashed_model(20), DraftModel(hashed_model(20)), Chain(3))  # accepted to the end

    def interrupted(context, tokens):  # whose rows are in the cache already
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Context, "append", interrupted)
        with pytest.raises(KeyboardInterrupt):
            decoder.generate([1, 2, 3], max_new_tokens=30)
    text = [1, 2, 3, 9]
    expected = Decoder(hashed_model(20)).generate(text, max_new_tokens=20).token_ids
    assert decoder.generate(text, max_new_tokens=20, continue_conversation=True).token_ids == expected


def test_a_distant_limit_reserves_little_room(monkeypatch):
    drafter, builder = FakeDrafter(lambda tokens: [(tokens[-1] + 1) % 9]), Chain(2)
    decoder = Decoder(counting_model(9, context_limit=10**6), drafter, builder)
    decoder.generate([1], max_new_tokens=10**6, eos_token_id=4)
    assert decoder.model.cache.capacity < 5000
    monkeypatch.setattr("specexp.core.loop._ROOM_AHEAD", 8)
    decoder = Decoder(counting_model(9, context_limit=10**6), drafter, builder)
    storages = set()
    result = decoder.generate(
        [1], max_new_tokens=1500, observers=[lambda _: storages.add(decoder.model.cache.storage.data_ptr())]
    )
    assert result.token_ids == [(2 + position) % 9 for position in range(1500)]
    assert len(storages) < 8


def test_calls_from_several_threads_wait_for_each_other(strategy):
    model = LanguageModel(hashed_model(20))
    one, two = Decoder(model, *strategy()), Decoder(model)
    prompts = [[token, 3, token] for token in range(8)]
    expected = [two.generate(prompt, max_new_tokens=12).token_ids for prompt in prompts]
    with ThreadPoolExecutor(4) as pool:
        calls = [
            pool.submit(decoder.generate, prompt, max_new_tokens=12) for prompt in prompts for decoder in (one, two)
        ]
    assert [call.result().token_ids for call in calls] == [said for said in expected for _ in range(2)]


def test_an_observer_that_decodes_with_the_model_it_observes_is_refused():
    decoder = Decoder(counting_model(9))
    with pytest.raises(ValueError, match="the model is decoding already"):
        decoder.generate([1], max_new_tokens=4, observers=[lambda _: decoder.generate([5], max_new_tokens=1)])
    assert decoder.generate([1], max_new_tokens=4).token_ids == [2, 3, 4, 5]


def test_a_call_leaves_no_state_for_the_next(strategy, verifier):
    model = hashed_model(20)
    decoder = Decoder(model, *strategy(), verifier)
    decoder.generate([1, 2, 3, 4, 5], max_new_tokens=20, seed=0)
    expected = Decoder(model, verifier=verifier).generate([9, 8], max_new_tokens=20, seed=0).token_ids
    assert decoder.generate([9, 8], max_new_tokens=20, seed=0).token_ids == expected


def test_a_later_turn_equals_a_fresh_decode_of_the_same_text(strategy, verifier):
    model = hashed_model(20)
    decoder = Decoder(model, *strategy(), verifier)
    plain = Decoder(model, verifier=verifier)
    text = [1, 2, 3]
    for turn in range(4):
        passes = decoder.model.passes
        result = decoder.generate(text, max_new_tokens=9, continue_conversation=turn > 0, eos_token_id=5, seed=0)
        assert result.token_ids == plain.generate(text, max_new_tokens=9, eos_token_id=5, seed=0).token_ids
        assert decoder.model.passes - passes <= result.steps + 1
        text = text + result.token_ids + [4, turn]


def test_a_later_turn_feeds_only_new_tokens():
    decoder = Decoder(counting_model(9))
    first = decoder.generate([1, 2, 3], max_new_tokens=4).token_ids
    fed = []
    forward = decoder.model.model.forward
    decoder.model.model.forward = lambda **inputs: fed.append(inputs["input_ids"].tolist()) or forward(**inputs)
    decoder.generate([1, 2, 3, *first, 0, 0, 5], max_new_tokens=1, continue_conversation=True)
    assert fed == [[[first[-1], 0, 0]], [[5]]]


@pytest.mark.parametrize("prompt", [[1, 2, 3], [1, 2], [1, 9, 3, 4, 5, 6]])
def test_a_prompt_that_does_not_continue_is_refused_and_the_conversation_kept(prompt):
    decoder = Decoder(counting_model(11))
    first = decoder.generate([1, 2], max_new_tokens=1).token_ids
    with pytest.raises(ValueError, match="does not continue the conversation"):
        decoder.generate(prompt, continue_conversation=True)
    text = [1, 2, *first, 7]
    assert decoder.generate(text, max_new_tokens=2, continue_conversation=True).token_ids == [8, 9]


def test_a_call_without_a_seed_draws_and_returns_one() -> None:
    decoder = Decoder(hashed_model(20), verifier=KeyedSampling(1.0))
    drawn = [decoder.generate([1, 2, 3], max_new_tokens=12) for _ in range(3)]
    assert len({one.seed for one in drawn}) == 3
    assert len({tuple(one.token_ids) for one in drawn}) > 1, "every user would get the same sample for ever"
    again = decoder.generate([1, 2, 3], max_new_tokens=12, seed=drawn[0].seed)
    assert (again.token_ids, again.seed) == (drawn[0].token_ids, drawn[0].seed)
    text = [1, 2, 3, *again.token_ids, 4]
    assert decoder.generate(text, max_new_tokens=3, continue_conversation=True).seed == again.seed


@pytest.mark.parametrize(("name", "other", "kept"), [("seed", 0, 3), ("sequence", "another#0", "'prompt#0'")])
def test_a_conversation_keeps_its_seed_and_sequence(name, other, kept):
    decoder = Decoder(counting_model(11))
    first = decoder.generate([1, 2], max_new_tokens=1, seed=3, sequence="prompt#0").token_ids
    text = [1, 2, *first, 7]
    with pytest.raises(ValueError, match=f"{name} must be left out or {kept} as in the conversation, got {other!r}"):
        decoder.generate(text, continue_conversation=True, **{name: other})
    own = {"seed": 3, "sequence": "prompt#0"}
    assert decoder.generate(text, max_new_tokens=2, continue_conversation=True, **own).token_ids == [8, 9]
    text = [*text, 8, 9, 1]
    assert decoder.generate(text, max_new_tokens=1, continue_conversation=True).token_ids == [2]


def test_a_conversation_survives_an_executors_run_on_the_same_model(verifier):
    model = LanguageModel(hashed_model(20))
    decoder = Decoder(model, verifier=verifier)
    text = [1, 2, 3]
    text = text + decoder.generate(text, max_new_tokens=5, seed=0).token_ids + [4]
    with Serial().open(model, Parts(None, None, verifier)) as executor:
        executor.run([Job((7, 8), 0, max_new_tokens=3)])
    expected = Decoder(hashed_model(20), verifier=verifier).generate(text, max_new_tokens=5, seed=0).token_ids
    assert decoder.generate(text, max_new_tokens=5, continue_conversation=True).token_ids == expected


NO_TOKENS = "input_ids must be token ids"


@pytest.mark.parametrize(
    ("prompt", "arguments", "message"),
    [
        ({"input_ids": [3, 4], "attention_mask": [1, 1]}, {}, NO_TOKENS),
        ("12", {}, NO_TOKENS),
        (torch.tensor([1.5, 2.0]), {}, NO_TOKENS),
        ([True, False], {}, NO_TOKENS),
        (torch.ones(1, 2, 2, dtype=torch.long), {}, NO_TOKENS),
        ([[1, 2], [3]], {}, NO_TOKENS),
        (torch.ones(2, 3, dtype=torch.long), {}, NO_TOKENS),
        ([], {}, "the prompt is empty"),
        ([1] * 32, {}, "the prompt has 32 tokens and the model's context holds 32"),
        ([1, 9], {}, "token id 9; the target's vocabulary has ids 0 to 8"),
        ([1, -1], {}, "token id -1; the target's vocabulary has ids 0 to 8"),
        ([1], {"max_new_tokens": 0}, "max_new_tokens must be >= 1, got 0"),
        ([1], {"max_new_tokens": 2.5}, "max_new_tokens must be an integer, got 2.5"),
        ([1], {"eos_token_id": "6"}, "eos_token_id must be a token id or several, got '6'"),
        ([1], {"eos_token_id": 6.0}, "eos_token_id must be a token id or several"),
        ([1], {"eos_token_id": [None]}, "eos_token_id must be a token id or several"),
        ([1], {"continue_conversation": True}, "there is no conversation yet"),
    ],
)
def test_wrong_requests_are_refused_in_one_sentence(prompt, arguments, message):
    decoder = Decoder(counting_model(9, context_limit=32))
    with pytest.raises(ValueError, match=message):
        decoder.generate(prompt, **arguments)


def test_decoders_that_share_a_model_do_not_mix_their_conversations(strategy, verifier):
    model = LanguageModel(hashed_model(20))
    one, two = Decoder(model, *strategy(), verifier), Decoder(model, verifier=verifier)
    text = [1, 2, 3]
    for turn in ([4], [5, 6], [7]):
        text = text + one.generate(text, max_new_tokens=8, continue_conversation=len(text) > 3, seed=0).token_ids + turn
        two.generate([9] * 40, max_new_tokens=3, seed=0)
    expected = Decoder(hashed_model(20), verifier=verifier).generate(text, max_new_tokens=8, seed=0)
    assert one.generate(text, max_new_tokens=8, continue_conversation=True).token_ids == expected.token_ids
