"""Every arm emits the same tokens, counts its passes, and takes measured or modelled seconds."""

import dataclasses
from contextlib import ExitStack

import pytest
from helpers.made_records import PHASES, record
from helpers.small_models import byte_tokenizer, tiny_llama

from specexp import Decoder
from specexp.bench.arm import Generation, describe, eos_of
from specexp.bench.hugging_face_arm import HuggingFaceArm
from specexp.bench.live import DecoderArm
from specexp.bench.statistics import paired_speedup, summarize
from specexp.builders import Chain, TokenRecyclingTree
from specexp.controllers import QLearning
from specexp.core.latency import LatencyProfile, Overhead
from specexp.drafters import DraftModel, PhraseCache, PromptLookup, TokenRecycling, Union
from specexp.report.comparison import category_table, long_table, phase_table, results_table
from specexp.verifiers import Greedy, KeyedSampling

REFERENCES = ("hf-eager", "hf-assisted", "hf-prompt-lookup")
slow = pytest.mark.slow


@pytest.mark.variants(1)
@pytest.mark.parametrize(
    ("verifier", "stop_at_eos"),
    [
        (Greedy(), True),
        (KeyedSampling(0.7), False),
        (KeyedSampling(1.0, top_k=20, top_p=0.9), True),
        pytest.param(Greedy(), False, marks=slow),
        pytest.param(KeyedSampling(0.7), True, marks=slow),
    ],
    ids=lambda value: str(value) if isinstance(value, bool) else describe(value),
)
def test_all_arms_emit_the_same_tokens(target, draft, tokenizer, prompts, verifier, stop_at_eos):
    generation = Generation(max_new_tokens=24, seed=7, stop_at_eos=stop_at_eos)
    plain = DecoderArm("plain", Decoder(target, verifier=verifier), tokenizer, generation)
    recycling = Decoder(target, TokenRecycling(), TokenRecyclingTree(), verifier)
    arms = [DecoderArm("tree", recycling, tokenizer, generation)]
    arms += [HuggingFaceArm(name, name, target, tokenizer, generation, verifier, draft) for name in REFERENCES]
    for sample, prompt in enumerate(prompts[1:3]):  # of two turns and of one
        expected = plain.decode(prompt, sample)
        for arm in arms:
            found = arm.decode(prompt, sample)
            for field in ("token_ids", "turn_tokens", "finish_reasons", "prompt_tokens", "verifier"):
                assert getattr(found, field) == getattr(expected, field), (arm.name, prompt.prompt_id, field)
            assert found.accepted_drafts + found.bonus_tokens == found.new_tokens
            if not stop_at_eos:
                assert found.turn_tokens == (24,) * len(prompt.turns)


def without_attention(seed: int):
    """A model whose next token depends on the last one alone, so that its greedy answers end in a loop."""
    model = tiny_llama(seed=seed)
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight.data.zero_()
    return model


def test_all_arms_end_an_answer_where_it_begins_to_repeat(tokenizer, prompts):
    target, draft = without_attention(0), without_attention(0)
    generation = Generation(max_new_tokens=120, stop_at_eos=False)
    endless = generation.model_copy(update={"stop_at_repetition": False})
    uncut = DecoderArm("uncut", Decoder(target), tokenizer, endless).decode(prompts[2])
    recycling = Decoder(target, TokenRecycling(), TokenRecyclingTree())
    arms = [
        DecoderArm("plain", Decoder(target), tokenizer, generation),
        DecoderArm("tree", recycling, tokenizer, generation),
        *(HuggingFaceArm(name, name, target, tokenizer, generation, draft=draft) for name in REFERENCES),
    ]
    expected = arms[0].decode(prompts[2])
    assert 24 <= expected.new_tokens < uncut.new_tokens == 120
    assert expected.token_ids == uncut.token_ids[: expected.new_tokens]
    for arm in arms:
        found = arm.decode(prompts[2])
        assert (found.token_ids, found.finish_reasons) == (expected.token_ids, ("repetition",)), arm.name
        assert found.accepted_drafts + found.bonus_tokens == found.new_tokens
        assert summarize([found], arm.name).loop_share == 1


def test_speculation_is_counted_and_models_are_left_as_they_were(target, draft, tokenizer, prompts):
    before = target.generation_config, draft.generation_config
    generation = Generation(max_new_tokens=24, stop_at_eos=False)
    assisted = HuggingFaceArm("a", "hf-assisted", target, tokenizer, generation, None, draft, num_assistant_tokens=3)
    found = assisted.decode(prompts[0])
    assert found.accepted_drafts > 0
    assert found.steps == found.bonus_tokens < found.new_tokens == 24
    assert found.drafted_nodes <= 3 * found.steps
    assert found.draft_passes >= found.drafted_nodes
    with pytest.raises(ValueError, match=r"'a' is hf-assisted and needs a draft model: set pair.draft"):
        HuggingFaceArm("a", "hf-assisted", target, tokenizer, generation)
    eager = HuggingFaceArm("e", "hf-eager", target, tokenizer, generation)
    plain = eager.decode(prompts[0])
    assert (plain.steps, plain.drafted_nodes, plain.decode_tokens) == (24, 0, 23)
    run = eager.generate(list(prompts[0].token_ids), "p#0", None)
    assert run.tokens_of_pass == [1] * 24
    assert min(run.prefill_seconds, run.decode_seconds) > 0
    assert (target.generation_config, draft.generation_config) == before
    assert not {**target._forward_pre_hooks, **draft._forward_pre_hooks}


def test_all_arms_stop_at_the_context_limit(tokenizer, prompts):
    target = tiny_llama(seed=1, context=40)
    generation = Generation(max_new_tokens=60, stop_at_eos=False)
    prompt = dataclasses.replace(prompts[2], turns=("only",))
    plain = DecoderArm("plain", Decoder(target), tokenizer, generation).decode(prompt)
    eager = HuggingFaceArm("e", "hf-eager", target, tokenizer, generation).decode(prompt)
    assert eager.token_ids == plain.token_ids
    assert plain.finish_reasons == eager.finish_reasons == ("context",)


def test_a_record_states_what_the_arm_is_and_its_phases_add_up(target, tokenizer, prompts):
    both = Union([PromptLookup(), TokenRecycling(state="carry")])
    generation = Generation(max_new_tokens=4)
    found = DecoderArm("u", Decoder(target, both, Chain(3)), tokenizer, generation).decode(prompts[0])
    assert (found.state, found.dtype, found.device) == ("carry", "float32", "cpu")
    assert (found.lossless, found.keyed, found.verifier) == (True, True, "ArgmaxVerifier")
    assert sum(found.seconds.values()) == pytest.approx(found.decode_seconds)
    cache = PhraseCache(TokenRecycling(state="carry"), state="cold")
    assert DecoderArm("c", Decoder(target, cache, Chain(3)), tokenizer, generation).state == "carry+cold"
    assert describe(KeyedSampling(0.7, top_k=5)) == "KeyedSampling(temperature=0.7, top_k=5)"
    assert describe(Greedy()) == "Greedy"


CHATML = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}ENDS\n{% endfor %}"


@pytest.mark.parametrize(
    ("template", "ends"),
    [
        (CHATML.replace("ENDS", "<|turn|>"), True),
        (CHATML.replace("ENDS", "\n<|turn|>"), True),
        (CHATML.replace("ENDS", ""), False),
        (CHATML.replace("ENDS", "</turn>"), False),  # not a token
        ("{{ raise_exception('no users here') }}", False),
        (None, False),
    ],
)
def test_answers_end_where_the_chat_template_ends_a_turn(template, ends):
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|turn|>"]})
    tokenizer.chat_template = template
    turn = tokenizer.convert_tokens_to_ids("<|turn|>")
    assert (turn in eos_of(tokenizer, tiny_llama(seed=3))) is ends


PROFILE = LatencyProfile("made up", {1: 100, 9: 180}, {1: 10, 3: 20}, step_ms=4, source="published")
CLOCK = "modelled: made up (published)"
GENERATION = Generation(max_new_tokens=24, stop_at_eos=False)


def arm_of(target, tokenizer, *parts, latency=PROFILE):
    return DecoderArm("arm", Decoder(target, *parts), tokenizer, GENERATION, latency=latency)


def test_plain_decoding_takes_a_target_pass_a_token(target, tokenizer, prompts):
    arm = arm_of(target, tokenizer)
    found = arm.decode(prompts[0])
    assert found.decode_seconds == pytest.approx(24 * 0.1)
    assert (found.prefill_seconds, found.clock) == (0, CLOCK)
    assert arm.decode(prompts[0]) == found  # no measured second is left in it


def test_a_composition_takes_its_passes_by_the_tokens_fed(target, draft, tokenizer, prompts):
    steps = []
    arm = arm_of(target, tokenizer, DraftModel(draft), Chain(3))
    arm.observers = [lambda outcome: steps.append((outcome.tree.num_nodes + 1, outcome.pass_tokens))]
    found = arm.decode(prompts[0])
    passes = [tokens for _, fed in steps for tokens in fed]
    assert len(passes) == found.draft_passes
    expected = {
        "target": sum(0.1 + 0.01 * (tokens - 1) for tokens, _ in steps),
        "draft": sum(0.01 + 0.005 * (tokens - 1) for tokens in passes),
        "update": sum(0.004 for tokens, _ in steps if tokens > 1),
    }
    assert found.seconds == pytest.approx(dict.fromkeys(PHASES, 0.0) | expected)
    assert (found.decode_seconds, found.beyond_profile) == (pytest.approx(sum(expected.values())), 0)
    fours = sum(tokens == 4 for tokens, _ in steps)
    arm.latency = dataclasses.replace(PROFILE, target_ms={1: 100, 3: 120})
    assert arm.decode(prompts[0]).beyond_profile == fours > 0


FURTHER = dataclasses.replace(
    PROFILE,
    target_prefix_ms=1000,
    prefix_tokens=7,
    overheads={"DraftModel + StaticTree": Overhead(node_ms=2, token_ms=3), "plain": Overhead(token_ms=1)},
)


def test_nodes_new_tokens_and_the_prefix_are_charged_too(target, draft, tokenizer, prompts):
    prompt = dataclasses.replace(prompts[0], turns=("only",))
    known = len(prompt.token_ids) - 1  # in the cache: all but the root
    plain = [0.1 + (known + place - 7) / 1e3 + 0.001 for place in range(24)]
    engine = arm_of(target, tokenizer, latency=FURTHER).decode(prompt)
    assert engine.decode_seconds == pytest.approx(sum(plain))
    assert engine.decode_seconds == pytest.approx(FURTHER.plain_seconds(known + 1, 24))
    eager = HuggingFaceArm("e", "hf-eager", target, tokenizer, GENERATION, latency=FURTHER).decode(prompt)
    assert eager.decode_seconds == pytest.approx(sum(plain[1:]))

    steps = []
    arm = arm_of(target, tokenizer, DraftModel(draft), Chain(3), latency=FURTHER)
    arm.observers = [steps.append]
    found = arm.decode(prompt)
    expected, prefix = 0.0, known
    for step in steps:
        nodes, new_tokens = step.tree.num_nodes, len(step.new_token_ids)
        expected += 0.1 + 0.01 * nodes + (prefix - 7) / 1e3 + 0.002 * nodes + 0.003 * new_tokens
        expected += sum(0.01 + 0.005 * (tokens - 1) for tokens in step.pass_tokens)
        prefix += new_tokens
    assert prefix == known + 24
    assert found.decode_seconds == pytest.approx(expected)


def test_a_profile_that_models_nothing_leaves_the_clock(target, tokenizer, prompts):
    found = arm_of(target, tokenizer, latency=dataclasses.replace(PROFILE, modelled=False)).decode(prompts[0])
    assert found.clock == "measured"
    assert 0 < found.decode_seconds < 24 * 0.1
    assert found.prefill_seconds > 0


def test_hugging_faces_loops_take_the_passes_after_the_prompts_own(target, draft, tokenizer, prompts):
    prompt = dataclasses.replace(prompts[0], turns=("only",))

    def ran(name, *draft, **settings):
        arm = HuggingFaceArm("a", name, target, tokenizer, GENERATION, None, *draft, latency=PROFILE, **settings)
        fed, drafted = [], []  # rows of target passes; target passes before, and rows of, each draft pass
        notes = [lambda rows: fed.append(rows), lambda rows: drafted.append((len(fed), rows))]
        with ExitStack() as hooks:
            for model, note in zip((target, *draft), notes, strict=False):
                hook = model.register_forward_pre_hook(
                    lambda m, a, k, n=note: n(k["input_ids"].shape[1]), with_kwargs=True
                )
                hooks.callback(hook.remove)
            found = arm.decode(prompt)
        return drafted, found, sum(0.1 + 0.01 * (rows - 1) + (0.004 if rows > 1 else 0) for rows in fed[1:])

    _, eager, _ = ran("hf-eager")
    assert eager.decode_seconds == pytest.approx(23 * 0.1)  # the first token came with the prompt
    assert (eager.decode_tokens, eager.clock, eager.prefill_seconds) == (23, CLOCK, 0)
    _, lookup, passes = ran("hf-prompt-lookup")
    assert lookup.decode_seconds == pytest.approx(passes)
    drafted, assisted, passes = ran("hf-assisted", draft, num_assistant_tokens=3)
    assert drafted[0] == (0, len(prompt.token_ids))  # the draft's prompt, in the pass that is prefill
    expected = passes + sum(0.01 + 0.005 * (rows - 1) for step, rows in drafted if step > 0)
    assert assisted.decode_seconds == pytest.approx(expected)
    assert assisted.draft_passes == len(drafted)


@pytest.fixture
def modelled():
    shares = dict.fromkeys(PHASES, 0.0) | {"draft": 0.1, "target": 0.35, "update": 0.05}
    tree = {"steps": 2, "drafted_nodes": 20, "seconds": shares}
    return [
        record(arm, prompt, seconds, clock=CLOCK, **given)
        for prompt in range(8)
        for arm, seconds, given in (("plain", 1.0, {}), ("tree", 0.5, tree))
    ]


def test_tables_call_modelled_figures_so(modelled):
    published = [
        {"method": "theirs", "tokens_per_second": 14.78, "speedup": 3.23},
        {"method": "theirs", "category": "a", "speedup": 2.5},
        {"method": "theirs", "category": "z", "speedup": 1.5},
    ]
    table = results_table(modelled, "Which?", published=published)
    assert table.title == "Which? (modelled: made up (published))"
    assert table.titles[4:6] == ["modelled tokens/s", "modelled vs plain"]
    rows = {row[0]: row for row in table.shown()}
    assert rows["tree"][4:6] == ["8.00", "2.00x [2.00, 2.00]"]
    assert rows["theirs (not run here)"][4:6] == ["14.78 published", "3.23x published"]
    assert len(rows) == 3
    assert any("Seconds are modelled: made up (published)" in note for note in table.notes)
    assert not any("beyond" in note for note in table.notes)
    beyond = [dataclasses.replace(one, beyond_profile=1) for one in modelled]
    assert any("16 of 48 target passes fed more tokens" in note for note in results_table(beyond).notes)
    categories = category_table(modelled, published=published)
    assert categories.title == "By category (modelled: made up (published))"
    assert categories.titles == ["arm", "a", "b", "z", "all"]
    assert categories.shown()[-1] == ["theirs (not run here)", "2.50x", "-", "1.50x", "-"]
    assert categories.notes[0].startswith("Modelled speedup over plain")
    phases = phase_table(modelled)
    assert phases.titles[:5] == ["arm", "modelled ms/step", "draft", "target", "update"]
    heads = long_table(modelled).to_csv().splitlines()[0].split(",")
    assert {"clock", "modelled_tokens_per_second", "modelled speedup vs plain"} <= set(heads)
    assert "tokens_per_second" not in heads


def test_different_clocks_are_never_put_together(modelled):
    mixed = [dataclasses.replace(one, clock="measured") if one.arm == "tree" else one for one in modelled]
    ours, tree = results_table(mixed, "Which?").shown()
    assert (ours[0], tree[0]) == ("plain (modelled)", "tree")
    assert tree[5].startswith("refused: clock differs (tree: measured, plain: modelled")
    one_arm = [dataclasses.replace(modelled[0], clock="measured", prompt_id="other"), *modelled]
    with pytest.raises(ValueError, match="records must have the same clock, got measured, modelled"):
        summarize(one_arm, "plain")
    mixed = [dataclasses.replace(one, clock="measured") if one.prompt_id == "p0" else one for one in modelled]
    assert "clock differs between prompts" in str(paired_speedup(mixed, "tree", "plain"))


def test_an_arm_learns_until_few_of_its_decisions_are_random(target, draft, tokenizer, prompts):
    controller = QLearning(draft_cost=0.2, warm_up=30, epsilon_decay=0.98, exploration="decision")
    decoder = Decoder(target, DraftModel(draft), Chain(4), Greedy(), controller)
    arm = DecoderArm("learned", decoder, tokenizer, Generation(max_new_tokens=8))
    first = arm.decode(prompts[1])
    assert first.epsilon == 0.5
    assert 0 < first.decisions[1] < first.decisions[0]
    arm.learn(prompts[1:2])
    after = arm.decode(prompts[1])
    assert after.epsilon == 0.01, "its minimum"
    assert after.decisions[1] <= 0.05 * after.decisions[0]
    assert controller.steps > 30 + 193  # 0.5 * 0.98 ** 194 is below 0.01


def test_an_arm_that_explores_no_more_in_the_end_learns_until_it_hardly_does(target, draft, tokenizer, prompts):
    controller = QLearning(draft_cost=0.2, warm_up=30, epsilon_decay=0.9, epsilon_min=0, exploration="decision")
    decoder = Decoder(target, DraftModel(draft), Chain(4), Greedy(), controller)
    arm = DecoderArm("learned", decoder, tokenizer, Generation(max_new_tokens=8))
    arm.learn(prompts[1:2])
    assert 0 < arm.decode(prompts[1]).epsilon <= 0.0001, "one of a hundred steps could make 5 % of the decisions"
