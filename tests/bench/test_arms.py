"""Every arm emits the engine's tokens, and counts what it took."""

import dataclasses

import pytest
import torch
from helpers.small_models import EOS, tiny_llama

from specexp import Decoder
from specexp.bench.arm import Generation, describe
from specexp.bench.decoder_arm import DecoderArm
from specexp.bench.hugging_face_arm import HuggingFaceArm
from specexp.builders import Chain, TokenRecyclingTree
from specexp.core.contracts import Verifier
from specexp.drafters import PhraseCache, PromptLookup, TokenRecycling, Union
from specexp.verifiers import Greedy, KeyedSampling

VERIFIERS = (Greedy(), KeyedSampling(0.7), KeyedSampling(1.0, top_k=20, top_p=0.9))
REFERENCES = ("hf-eager", "hf-assisted", "hf-prompt-lookup")


def names(verifier: Verifier) -> str:
    return f"{type(verifier).__name__}{getattr(verifier, 'temperature', '')}"


@pytest.mark.parametrize(
    ("verifier", "stop_at_eos"),
    [
        pytest.param(
            one, stops, marks=[] if stops == (number != 1) else pytest.mark.slow, id=f"{names(one)}-{stops}"
        )
        for number, one in enumerate(VERIFIERS)
        for stops in (True, False)
    ],
)
def test_all_arms_emit_the_same_tokens(target, draft, tokenizer, prompts, verifier, stop_at_eos):
    generation = Generation(max_new_tokens=24, seed=7, stop_at_eos=stop_at_eos)
    plain = DecoderArm("engine", Decoder(target, verifier=verifier), tokenizer, generation)
    recycling = Decoder(target, TokenRecycling(), TokenRecyclingTree(), verifier)
    arms = [DecoderArm("tree", recycling, tokenizer, generation)]
    arms += [
        HuggingFaceArm(name, name, target, tokenizer, generation, verifier, draft) for name in REFERENCES
    ]
    for number, prompt in enumerate(prompts[:4]):
        sample = number // 2 % 2  # of a prompt of one turn and of one of two
        expected = plain.decode(prompt, sample)
        for arm in arms:
            found = arm.decode(prompt, sample)
            assert found.token_ids == expected.token_ids, (arm.name, prompt.prompt_id)
            assert found.turn_tokens == expected.turn_tokens
            assert found.finish_reasons == expected.finish_reasons
            assert found.prompt_tokens == expected.prompt_tokens
            assert found.verifier == expected.verifier
            assert found.accepted_drafts + found.bonus_tokens == found.new_tokens
            if not stop_at_eos:
                assert found.turn_tokens == (24,) * len(prompt.turns)


def test_speculation_is_counted(target, draft, tokenizer, prompts):
    generation = Generation(max_new_tokens=24, stop_at_eos=False)
    assisted = HuggingFaceArm(
        "a", "hf-assisted", target, tokenizer, generation, None, draft, num_assistant_tokens=3
    )
    found = assisted.decode(prompts[0])
    assert found.accepted_drafts > 0
    assert found.steps == found.bonus_tokens < found.new_tokens == 24
    assert found.drafted_nodes <= 3 * found.steps
    assert found.draft_passes >= found.drafted_nodes
    eager = HuggingFaceArm("e", "hf-eager", target, tokenizer, generation).decode(prompts[0])
    assert (eager.steps, eager.drafted_nodes, eager.decode_tokens) == (24, 0, 23)


def test_prefill_and_decoding_add_up_to_the_call(target, tokenizer, prompts):
    arm = HuggingFaceArm("e", "hf-eager", target, tokenizer, Generation(max_new_tokens=24))
    run = arm.generate(list(prompts[0].token_ids), "p#0", None)
    assert run.prefill_seconds > 0
    assert run.prefill_seconds + run.decode_seconds == pytest.approx(run.finished - run.started)
    assert run.clock.counts == [len(prompts[0].token_ids), *[1] * len(run.token_ids)]


def test_models_are_left_as_they_were(target, draft, tokenizer, prompts):
    before = target.generation_config, draft.generation_config
    arm = HuggingFaceArm("a", "hf-assisted", target, tokenizer, Generation(max_new_tokens=8), None, draft)
    arm.decode(prompts[0])
    assert (target.generation_config, draft.generation_config) == before
    assert not target._forward_pre_hooks
    assert not draft._forward_pre_hooks


def test_all_arms_stop_at_the_context_limit(tokenizer, prompts):
    target = tiny_llama(seed=1, context=40)
    generation = Generation(max_new_tokens=60, stop_at_eos=False)
    prompt = dataclasses.replace(prompts[2], turns=("only",))
    plain = DecoderArm("engine", Decoder(target), tokenizer, generation).decode(prompt)
    eager = HuggingFaceArm("e", "hf-eager", target, tokenizer, generation).decode(prompt)
    assert eager.token_ids == plain.token_ids
    assert plain.finish_reason == eager.finish_reason == "context"


def test_an_arm_states_what_it_is(target, tokenizer, prompts):
    both = Union([PromptLookup(), TokenRecycling(state="carry")])
    arm = DecoderArm("u", Decoder(target, both, Chain(3)), tokenizer, Generation(max_new_tokens=4))
    found = arm.decode(prompts[0])
    assert (found.state, found.dtype, found.device) == ("carry", "float32", "cpu")
    assert (found.lossless, found.keyed, found.verifier) == (True, True, "ArgmaxVerifier")
    cache = PhraseCache(TokenRecycling(state="carry"), state="cold")
    assert DecoderArm("c", Decoder(target, cache, Chain(3)), tokenizer, Generation()).state == "carry+cold"
    keyed = Decoder(target, verifier=KeyedSampling(0.7, top_k=5))
    found = DecoderArm("k", keyed, tokenizer, Generation(max_new_tokens=4)).decode(prompts[0])
    assert (
        found.verifier == describe(KeyedSampling(0.7, top_k=5)) == "KeyedSampling(temperature=0.7, top_k=5)"
    )
    assert describe(Greedy()) == "Greedy"


def test_phases_add_up(target, tokenizer, prompts):
    decoder = Decoder(target, TokenRecycling(), Chain(3))
    found = DecoderArm("c", decoder, tokenizer, Generation(max_new_tokens=24)).decode(prompts[1])
    assert sum(found.seconds.values()) == pytest.approx(found.decode_seconds)


def test_assisted_generation_without_a_draft_is_refused(target, tokenizer):
    with pytest.raises(ValueError, match="'a' is hf-assisted and the pair has no draft model"):
        HuggingFaceArm("a", "hf-assisted", target, tokenizer, Generation())


def test_float64_and_eos_of_the_model_config(tokenizer, prompts):
    target = tiny_llama(seed=3, dtype=torch.float64)
    target.generation_config.eos_token_id = [EOS, 9]
    generation = Generation(max_new_tokens=40)
    plain = DecoderArm("engine", Decoder(target), tokenizer, generation)
    eager = HuggingFaceArm("e", "hf-eager", target, tokenizer, generation)
    assert plain.eos == eager.eos == {EOS, 9}
    for prompt in prompts:
        assert eager.decode(prompt).token_ids == plain.decode(prompt).token_ids
