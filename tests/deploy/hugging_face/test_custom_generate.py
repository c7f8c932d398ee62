"""``model.generate(custom_generate=...)`` gives the output of plain ``model.generate``."""

import ast
import inspect
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import transformers
from helpers.small_models import FULL_ATTENTION, VOCABULARY, build
from transformers.generation import BaseStreamer

from specexp import Decoder
from specexp.artifacts import ArtifactError, fingerprint
from specexp.builders import Chain, TokenRecyclingTree
from specexp.config.artifacts import save_artifact
from specexp.constraints.grammar import constraint_of
from specexp.core.language_model import LanguageModel
from specexp.deploy.hugging_face import custom_generate as module, request
from specexp.deploy.hugging_face.custom_generate import custom_generate
from specexp.deploy.hugging_face.request import HIDDEN_ARGUMENTS, hidden_arguments
from specexp.drafters import PromptLookup, TokenRecycling
from specexp.models.pair import load_tokenizer
from specexp.models.runtime import runtime_of
from specexp.verifiers import KeyedSampling

GREEDY = {"do_sample": False, "max_new_tokens": 30}


def make(family, dtype=torch.float32):
    no_special = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    return build(family, {**FULL_ATTENTION[family], **no_special}, dtype=dtype)


@pytest.fixture(scope="module")
def llama():
    return make("Llama")


@pytest.fixture
def prompt():
    return torch.randint(4, VOCABULARY, (1, 9), generator=torch.Generator().manual_seed(1))


@pytest.fixture
def recycling():
    return custom_generate((TokenRecycling(), TokenRecyclingTree()))


def enough(ids, scores, **_):
    """A stopping criterion for each row."""
    return ids.sum(1) > 700


@pytest.mark.variants(1)
@pytest.mark.parametrize("family", ["Llama", "GPT2", "Qwen2"])
@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.float64, marks=pytest.mark.slow)])
def test_greedy_output_equals_plain_generate(family, dtype, recycling):
    model = make(family, dtype)
    for fast in (recycling, custom_generate((PromptLookup(), Chain()))):
        for seed in range(3):
            generator = torch.Generator().manual_seed(seed)
            ids = torch.randint(4, VOCABULARY, (1, 5 + 7 * seed), generator=generator)
            plain = model.generate(ids, max_new_tokens=40, do_sample=False)
            ours = model.generate(ids, max_new_tokens=40, do_sample=False, custom_generate=fast)
            assert ours.dtype == torch.long
            assert torch.equal(ours, plain)


@pytest.mark.variants(3)
@pytest.mark.parametrize(
    "settings",
    [
        {"max_new_tokens": 1},
        {"max_new_tokens": None, "max_length": 20},
        {"repetition_penalty": 1.3},
        {"no_repeat_ngram_size": 2},
        {"suppress_tokens": [5, 6, 7]},
        {"bad_words_ids": [[9], [10, 11]]},
        {"max_new_tokens": 60, "stopping_criteria": [enough]},
    ],
)
def test_the_generation_config_and_criteria_are_followed(llama, prompt, recycling, settings):
    settings = GREEDY | settings
    plain = llama.generate(prompt, **settings)
    assert torch.equal(llama.generate(prompt, custom_generate=recycling, **settings), plain)
    assert plain.shape[1] < 69
    again = llama.generate(prompt, custom_generate=recycling, **GREEDY)  # the next call is not disturbed
    assert torch.equal(again, llama.generate(prompt, **GREEDY))


@pytest.mark.variants(1)
@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("minimum", [None, 25])
def test_eos_ends_the_output_where_plain_generate_ends(llama, prompt, recycling, several, minimum):
    free = llama.generate(prompt, **GREEDY)[0].tolist()
    eos = [free[15], 3] if several else free[15]
    settings = {**GREEDY, "eos_token_id": eos, "pad_token_id": 0, "min_new_tokens": minimum}
    ours = llama.generate(prompt, custom_generate=recycling, **settings)
    assert torch.equal(ours, llama.generate(prompt, **settings))
    assert (ours.shape[1] < 39) == (minimum is None)


def test_sampling_is_keyed_sampling_with_the_generation_configs_temperature(llama, prompt, recycling):
    settings = {"do_sample": True, "temperature": 0.7, "top_k": 9, "top_p": 0.9, "max_new_tokens": 40}
    plain = Decoder(llama, verifier=KeyedSampling(0.7, top_k=9, top_p=0.9))
    for seed in (3, 4):
        ours = llama.generate(prompt, custom_generate=recycling, seed=seed, **settings)
        assert ours[0, 9:].tolist() == plain.generate(prompt, max_new_tokens=40, seed=seed).token_ids


def test_without_a_seed_torchs_generator_decides(llama, prompt, recycling):
    def samples():
        torch.manual_seed(5)
        given = {"custom_generate": recycling, "do_sample": True, "max_new_tokens": 20}
        return [llama.generate(prompt, **given)[0].tolist() for _ in range(2)]

    first, second = samples()
    assert samples() == [first, second]
    assert first != second


def test_one_cache_serves_all_calls_with_a_model(llama, prompt, recycling, monkeypatch):
    wrapped = []
    monkeypatch.setattr(module, "runtime_of", lambda model: wrapped.append(model) or runtime_of(model))
    for length in (9, 4):
        ids = prompt[:, :length]
        plain = llama.generate(ids, max_new_tokens=12)
        assert torch.equal(llama.generate(ids, max_new_tokens=12, custom_generate=recycling), plain)
    assert wrapped == [llama]


def test_inputs_other_than_tokens_are_refused_instead_of_left_out(prompt, recycling):
    model, settings = make("GPT2"), {"max_new_tokens": 5, "do_sample": False}
    with pytest.raises(
        ValueError, match="token_type_ids is not supported: leave it out, since the model is called with"
    ):
        model.generate(prompt, custom_generate=recycling, token_type_ids=torch.zeros_like(prompt), **settings)
    positions = torch.arange(9)[None]
    ours = model.generate(prompt, custom_generate=recycling, position_ids=positions, **settings)
    assert torch.equal(ours, model.generate(prompt, **settings))


@pytest.mark.parametrize("stopped", [False, True])
def test_a_streamer_gets_the_same_tokens_as_from_plain_generate(llama, prompt, recycling, stopped):
    class Collect(BaseStreamer):
        def __init__(self):
            self.tokens, self.ended = [], 0

        def put(self, value):
            assert not self.ended
            self.tokens += value.flatten().tolist()

        def end(self):
            self.ended += 1

    settings = GREEDY | ({"stopping_criteria": [enough], "max_new_tokens": 60} if stopped else {})
    plain, ours = Collect(), Collect()
    llama.generate(prompt, streamer=plain, **settings)
    output = llama.generate(prompt, custom_generate=recycling, streamer=ours, **settings)
    assert ours.tokens == plain.tokens == output[0].tolist()
    assert ours.ended == 1


def test_the_private_names_are_those_of_the_documented_version():
    """For another version: check whether ``generate`` passes callables their streamer, then change the table."""
    table = (Path(__file__).parents[3] / "docs" / "code.md").read_text()
    assert f"transformers {'.'.join(transformers.__version__.split('.')[:2])}, `tests/deploy" in table
    assert set(HIDDEN_ARGUMENTS) <= inspect.signature(transformers.GenerationMixin.generate).parameters.keys()


def test_arguments_that_cannot_be_read_are_an_error_and_not_lost(llama, prompt, recycling, monkeypatch):
    with pytest.raises(RuntimeError, match=r"cannot read .generate. of model\.generate"):
        hidden_arguments()
    monkeypatch.setattr(request, "HIDDEN_ARGUMENTS", ("renamed",))
    with pytest.raises(RuntimeError, match=f"cannot read 'renamed' .* transformers {transformers.__version__}"):
        llama.generate(prompt, custom_generate=recycling, **GREEDY)


def test_an_artifact_generates_and_refuses_a_foreign_model(llama, prompt, tmp_path):
    payloads = {
        "tree.json": [[0], [1], [0, 0], [0, 1], [0, 0, 0]],
        "parts.json": {"drafter": {"class_path": "TokenRecycling", "init_args": {"k": 4}}},
    }
    artifact = save_artifact(tmp_path / "tree", "static-tree", payloads, fingerprint=fingerprint(llama))
    fast = custom_generate(artifact)
    plain = llama.generate(prompt, max_new_tokens=24)
    assert torch.equal(llama.generate(prompt, custom_generate=fast, max_new_tokens=24), plain)
    assert artifact.decoder(llama).generate(prompt, max_new_tokens=24).token_ids == plain[0, 9:].tolist()
    foreign = make("GPT2")
    with pytest.raises(ArtifactError, match=r"fingerprint\.model\.model_type is llama"):
        foreign.generate(prompt, custom_generate=fast, max_new_tokens=24)
    with pytest.raises(ArtifactError, match="belongs to another model"):
        artifact.decoder(foreign)
    for path in (artifact.folder, str(artifact.folder)):
        with pytest.raises(ValueError, match=r"must be loaded, got the path .*; pass specexp\.load_artifact"):
            custom_generate(path)


def test_the_documented_lines_run(tmp_path, monkeypatch):
    payloads = {"tree.json": [[0], [0, 0]], "parts.json": {"drafter": {"class_path": "TokenRecycling"}}}
    save_artifact(tmp_path / "artifacts" / "tree_shape", "static-tree", payloads)
    monkeypatch.chdir(tmp_path)
    lines = ast.get_docstring(ast.parse(Path(module.__file__).read_text())).splitlines()
    exec("\n".join(line.removeprefix("    ") for line in lines if line.startswith("    ")), {})


@pytest.fixture
def schedule(tmp_path, llama):
    """Three drafting sequences whose trees grow in a thread."""
    strategy = {"n": 3, "verify_batch": 2, "workers": "thread"}
    parts = {
        "drafter": {"class_path": "TokenRecycling", "init_args": {"state": "carry"}},
        "builder": {"class_path": "KConfig", "init_args": {"widths": [2, 1]}},
    }
    payloads = {"schedule.json": {"class_path": "Scheduled", "init_args": strategy}, "parts.json": parts}
    return save_artifact(tmp_path / "schedule", "schedule", payloads, fingerprint=fingerprint(llama))


def test_a_schedule_continues_a_padded_batch_as_plain_generate_does(llama, prompt, schedule):
    batch = torch.cat((prompt, prompt.flip(1), prompt.roll(3)))
    batch[1, :4] = 0
    mask = torch.ones_like(batch)
    mask[1, :4] = 0
    eos = llama.generate(prompt, **GREEDY)[0].tolist()[17]
    settings = {
        **GREEDY, "max_new_tokens": 20, "attention_mask": mask, "repetition_penalty": 1.2, "eos_token_id": eos,
        "pad_token_id": 0,
    }  # fmt: skip
    with custom_generate(schedule) as fast:
        for extra in ({}, {"min_new_tokens": 12}):
            plain = llama.generate(batch, **settings, **extra)
            assert torch.equal(llama.generate(batch, custom_generate=fast, **settings, **extra), plain)


def test_calls_from_several_threads_take_turns(llama, prompt):
    fast = custom_generate((TokenRecycling(state="carry"), TokenRecyclingTree()))
    prompts = [prompt.roll(shift, 1) for shift in range(6)]
    settings = {"max_new_tokens": 15, "do_sample": False, "pad_token_id": 0}
    expected = [llama.generate(one, **settings) for one in prompts]
    with ThreadPoolExecutor(3) as pool:
        calls = [pool.submit(llama.generate, one, custom_generate=fast, **settings) for one in prompts]
    for call, plain in zip(calls, expected, strict=True):
        assert torch.equal(call.result(), plain)


def test_several_continuations_of_a_schedule_differ_and_repeat_with_the_seed(llama, prompt, schedule):
    settings = {"do_sample": True, "temperature": 0.7, "max_new_tokens": 12, "num_return_sequences": 4, "seed": 3}
    with custom_generate(schedule) as fast:
        rows = llama.generate(prompt, custom_generate=fast, **settings)
        assert torch.equal(rows, llama.generate(prompt, custom_generate=fast, **settings))
    assert len({tuple(row.tolist()) for row in rows}) == 4
    plain = Decoder(llama, verifier=KeyedSampling(0.7))
    for number, row in enumerate(rows):
        expected = plain.generate(prompt, max_new_tokens=12, seed=3, sequence=number).token_ids
        assert row[9:].tolist() == expected


def test_stopping_criteria_end_each_row_of_a_schedule(llama, prompt, schedule):
    settings = {"max_new_tokens": 60, "do_sample": False, "stopping_criteria": [enough]}
    batch = torch.stack((prompt[0], prompt[0].roll(2)))
    alone = [llama.generate(row[None], **settings)[0] for row in batch]
    assert len(alone[0]) != len(alone[1])
    with custom_generate(schedule) as fast:
        with pytest.raises(ValueError, match="pad_token_id must be set"):
            llama.generate(batch, custom_generate=fast, **settings)
        rows = llama.generate(batch, custom_generate=fast, pad_token_id=0, **settings)
    for row, expected in zip(rows, alone, strict=True):
        assert row[: len(expected)].tolist() == expected.tolist()
        assert not row[len(expected) :].any()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"num_beams": 2}, "num_beams=2 is not supported"),
        ({"attention_mask": torch.tensor([[1, 1, 1, 1, 0, 1, 1, 1, 1]])}, "must be padded on the left"),
        ({"streamer": SimpleNamespace(put=print)}, "streamer is not supported for an artifact with a schedule"),
    ],
)
def test_a_schedule_refuses_an_impossible_call_in_one_sentence(llama, prompt, schedule, given, message):
    with custom_generate(schedule) as fast, pytest.raises(ValueError, match=message):
        llama.generate(prompt, max_new_tokens=5, custom_generate=fast, **given)


@pytest.mark.variants(1)
@pytest.mark.parametrize("settings", [{"stop_strings": "e"}, {"low_memory": True}, {}])
def test_a_tokenizer_may_be_given_as_to_plain_generate(model_folder, recycling, settings):
    tokenizer = transformers.AutoTokenizer.from_pretrained(model_folder)
    tokenizer.pad_token = tokenizer.eos_token
    model = transformers.AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
    ids = tokenizer("The quick brown fox", return_tensors="pt").input_ids
    given = {**GREEDY, "max_new_tokens": 60, "tokenizer": tokenizer, "pad_token_id": 0, **settings}
    ours = model.generate(ids, custom_generate=recycling, **given)
    assert torch.equal(ours, model.generate(ids, **given))


def test_an_output_of_a_given_form_equals_constrained_plain_decoding(model_folder, recycling):
    tokenizer = transformers.AutoTokenizer.from_pretrained(model_folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
    ids = tokenizer("Who?", return_tensors="pt").input_ids
    form = {"json": {"type": "object", "properties": {"size": {"enum": ["S", "L"]}}, "required": ["size"],
                     "additionalProperties": False}}  # fmt: skip
    given = {**GREEDY, "max_new_tokens": 60, "tokenizer": tokenizer, "eos_token_id": tokenizer.eos_token_id}
    ours = model.generate(ids, custom_generate=recycling, structured_outputs=form, **given)[0, ids.shape[1] :].tolist()
    constraint = constraint_of(form, tokenizer, model.config.vocab_size, frozenset([tokenizer.eos_token_id]))
    expected = Decoder(LanguageModel(model)).generate(ids, max_new_tokens=60, constraint=constraint)
    assert ours == expected.token_ids
    assert json.loads(tokenizer.decode(ours, skip_special_tokens=True))["size"] in ("S", "L")
    with pytest.raises(ValueError, match="structured_outputs needs tokenizer"):
        model.generate(ids, custom_generate=recycling, structured_outputs=form, **{**given, "tokenizer": None})


@pytest.fixture(scope="module")
def smollm2():
    """SmolLM2's tokenizer and a small random model that has its tokens."""
    tokenizer = load_tokenizer("smollm2")
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 1, "num_key_value_heads": 1}
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer), num_hidden_layers=1, initializer_range=0.5, eos_token_id=None, **sizes
    )
    return tokenizer, transformers.LlamaForCausalLM(config).eval()


@pytest.mark.parametrize("text", ["The quick brown fo", "See https://ex ", "def f(x", "h"])
@pytest.mark.parametrize("begins_with_bos", [False, True])
@pytest.mark.slow
def test_healed_prompts_are_continued_as_by_plain_generate(smollm2, recycling, text, begins_with_bos):
    tokenizer, model = smollm2
    ids = tokenizer(f"{tokenizer.bos_token}{text}" if begins_with_bos else text, return_tensors="pt")
    given = {**GREEDY, "tokenizer": tokenizer, "pad_token_id": tokenizer.pad_token_id, "token_healing": True}
    plain = model.generate(**ids, **given)
    assert torch.equal(model.generate(**ids, custom_generate=recycling, **given), plain)
