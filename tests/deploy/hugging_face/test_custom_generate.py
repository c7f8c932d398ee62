"""``model.generate(custom_generate=...)`` gives what plain ``model.generate`` gives."""

import ast
import inspect
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
)
from transformers.generation import BaseStreamer

import specexp.deploy.hugging_face.custom_generate
from specexp import Decoder
from specexp.artifacts import Artifact, ArtifactError, fingerprint
from specexp.builders import Chain, TokenRecyclingTree
from specexp.config.artifacts import save_artifact
from specexp.deploy.hugging_face.custom_generate import custom_generate
from specexp.deploy.hugging_face.request import HIDDEN_ARGUMENTS
from specexp.drafters import PromptLookup, TokenRecycling
from specexp.models.runtime import runtime_of
from specexp.verifiers import KeyedSampling

VOCABULARY = 61
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 160,
}
NO_SPECIAL: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}


def make(family: str, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    torch.manual_seed(0)
    model: PreTrainedModel
    if family == "gpt2":
        gpt2 = GPT2Config(
            vocab_size=VOCABULARY, n_positions=160, n_embd=32, n_layer=2, n_head=4, **NO_SPECIAL
        )
        model = GPT2LMHeadModel(gpt2)
    elif family == "qwen2":
        model = Qwen2ForCausalLM(Qwen2Config(**SIZES, **NO_SPECIAL))
    else:
        model = LlamaForCausalLM(LlamaConfig(**SIZES, **NO_SPECIAL))
    for parameter in model.parameters():
        parameter.data *= 4  # far from ties
    return model.to(dtype).eval()


@pytest.fixture(scope="module")
def llama() -> PreTrainedModel:
    return make("llama")


@pytest.fixture
def prompt() -> torch.Tensor:
    return torch.randint(4, VOCABULARY, (1, 9), generator=torch.Generator().manual_seed(1))


@pytest.fixture
def artifact(tmp_path: Path, llama: PreTrainedModel) -> Artifact:
    return save_artifact(
        tmp_path / "artifacts" / "tree_shape",
        "static-tree",
        {
            "tree.json": [[0], [1], [0, 0], [0, 1], [0, 0, 0]],
            "parts.json": {"drafter": {"class_path": "TokenRecycling", "init_args": {"k": 4}}},
        },
        fingerprint=fingerprint(llama),
    )


@pytest.mark.parametrize(
    ("family", "dtype"),
    [
        ("llama", torch.float32),
        ("llama", torch.float64),
        ("gpt2", torch.float32),
        ("qwen2", torch.float32),
        pytest.param("gpt2", torch.float64, marks=pytest.mark.slow),
        pytest.param("qwen2", torch.float64, marks=pytest.mark.slow),
    ],
)
def test_greedy_output_is_that_of_plain_generate(family: str, dtype: torch.dtype) -> None:
    model = make(family, dtype)
    for fast in (
        custom_generate((TokenRecycling(), TokenRecyclingTree())),
        custom_generate((PromptLookup(), Chain())),
    ):
        for seed in range(3):
            ids = torch.randint(
                4, VOCABULARY, (1, 5 + 7 * seed), generator=torch.Generator().manual_seed(seed)
            )
            plain = model.generate(ids, max_new_tokens=40, do_sample=False)
            ours = model.generate(ids, max_new_tokens=40, do_sample=False, custom_generate=fast)
            assert ours.dtype == torch.long
            torch.testing.assert_close(ours, plain, rtol=0, atol=0)


@pytest.mark.parametrize(
    "settings",
    [
        {"max_new_tokens": 1},
        {"max_length": 20},
        {"max_new_tokens": 30, "repetition_penalty": 1.3},
        {"max_new_tokens": 30, "no_repeat_ngram_size": 2},
        {"max_new_tokens": 30, "suppress_tokens": [5, 6, 7]},
        {"max_new_tokens": 30, "bad_words_ids": [[9], [10, 11]]},
    ],
)
def test_the_generation_config_is_respected(
    llama: PreTrainedModel, prompt: torch.Tensor, settings: dict[str, Any]
) -> None:
    fast = custom_generate((TokenRecycling(), TokenRecyclingTree()))
    plain = llama.generate(prompt, do_sample=False, **settings)
    assert torch.equal(llama.generate(prompt, do_sample=False, custom_generate=fast, **settings), plain)


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("minimum", [None, 25])
def test_eos_ends_the_output_where_plain_generate_ends(
    llama: PreTrainedModel, prompt: torch.Tensor, several: bool, minimum: int | None
) -> None:
    free = llama.generate(prompt, max_new_tokens=30, do_sample=False)[0].tolist()
    eos = [free[15], 3] if several else free[15]
    settings = {"max_new_tokens": 30, "eos_token_id": eos, "pad_token_id": 0, "min_new_tokens": minimum}
    fast = custom_generate((TokenRecycling(), TokenRecyclingTree()))
    plain = llama.generate(prompt, do_sample=False, **settings)
    ours = llama.generate(prompt, do_sample=False, custom_generate=fast, **settings)
    assert torch.equal(ours, plain)
    assert (ours.shape[1] < 39) == (minimum is None)


def test_stopping_criteria_end_the_output_where_plain_generate_ends(
    llama: PreTrainedModel, prompt: torch.Tensor
) -> None:
    def enough(ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        return torch.tensor([int(ids.sum()) > 700])

    fast = custom_generate((TokenRecycling(), TokenRecyclingTree()))
    settings: dict[str, Any] = {"max_new_tokens": 60, "do_sample": False, "stopping_criteria": [enough]}
    plain = llama.generate(prompt, **settings)
    assert plain.shape[1] < 69
    assert torch.equal(llama.generate(prompt, custom_generate=fast, **settings), plain)
    assert torch.equal(  # and the next call is not disturbed
        llama.generate(prompt, custom_generate=fast, max_new_tokens=20),
        llama.generate(prompt, max_new_tokens=20),
    )


def test_sampling_is_keyed_sampling_with_the_generation_configs_temperature(
    llama: PreTrainedModel, prompt: torch.Tensor
) -> None:
    fast = custom_generate((TokenRecycling(), TokenRecyclingTree()), seed=3)
    settings: dict[str, Any] = {
        "do_sample": True,
        "temperature": 0.7,
        "top_k": 9,
        "top_p": 0.9,
        "max_new_tokens": 40,
    }
    plain = Decoder(llama, verifier=KeyedSampling(0.7, top_k=9, top_p=0.9))
    for seed in (3, 4):
        ours = llama.generate(prompt, custom_generate=fast, seed=seed, **settings)
        assert ours[0, 9:].tolist() == plain.generate(prompt, max_new_tokens=40, seed=seed).token_ids
    assert torch.equal(
        llama.generate(prompt, custom_generate=fast, **settings),
        llama.generate(prompt, custom_generate=fast, seed=3, **settings),
    )


def test_without_a_seed_torchs_generator_decides(llama: PreTrainedModel, prompt: torch.Tensor) -> None:
    fast = custom_generate((TokenRecycling(), TokenRecyclingTree()))

    def sample() -> list[int]:
        ids: list[int] = llama.generate(prompt, custom_generate=fast, do_sample=True, max_new_tokens=20)[
            0
        ].tolist()
        return ids

    torch.manual_seed(5)
    first, second = sample(), sample()
    torch.manual_seed(5)
    assert (sample(), sample()) == (first, second)
    assert first != second


def test_one_cache_serves_all_calls_with_a_model(
    llama: PreTrainedModel, prompt: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrapped: list[PreTrainedModel] = []
    wrap = runtime_of

    def count(model: PreTrainedModel) -> Any:
        wrapped.append(model)
        return wrap(model)

    monkeypatch.setattr("specexp.deploy.hugging_face.custom_generate.runtime_of", count)
    fast = custom_generate((TokenRecycling(), TokenRecyclingTree()))
    for length in (9, 4):
        ids = prompt[:, :length]
        plain = llama.generate(ids, max_new_tokens=12)
        assert torch.equal(llama.generate(ids, max_new_tokens=12, custom_generate=fast), plain)
    assert wrapped == [llama]


def test_inputs_beside_the_tokens_are_refused_instead_of_left_out(prompt: torch.Tensor) -> None:
    model, fast = make("gpt2"), custom_generate((TokenRecycling(), TokenRecyclingTree()))
    with pytest.raises(ValueError, match="token_type_ids is not supported: the model takes input_ids alone"):
        model.generate(
            prompt, max_new_tokens=5, custom_generate=fast, token_type_ids=torch.zeros_like(prompt)
        )
    alone = {"position_ids": torch.arange(9)[None]}
    plain = model.generate(prompt, max_new_tokens=5, do_sample=False)
    assert torch.equal(model.generate(prompt, max_new_tokens=5, custom_generate=fast, **alone), plain)


@pytest.mark.parametrize("stopped", [False, True])
def test_a_streamer_is_shown_what_plain_generate_shows_a_streamer(
    llama: PreTrainedModel, prompt: torch.Tensor, stopped: bool
) -> None:
    class Shown(BaseStreamer):  # type: ignore[misc]
        def __init__(self) -> None:
            self.tokens: list[int] = []
            self.ended = 0

        def put(self, value: torch.Tensor) -> None:
            assert not self.ended
            self.tokens += value.flatten().tolist()

        def end(self) -> None:
            self.ended += 1

    def enough(ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        return torch.tensor([ids.shape[1] > 15])

    fast = custom_generate((TokenRecycling(), TokenRecyclingTree()))
    settings: dict[str, Any] = {"max_new_tokens": 30, "do_sample": False}
    settings |= {"stopping_criteria": [enough]} if stopped else {}
    plain, ours = Shown(), Shown()
    llama.generate(prompt, streamer=plain, **settings)
    said = llama.generate(prompt, custom_generate=fast, streamer=ours, **settings)
    assert ours.tokens == plain.tokens == said[0].tolist()
    assert ours.ended == 1


def test_the_private_names_are_those_of_the_version_looked_at() -> None:
    """Another version: look again whether ``generate`` hands callables their streamer, then change the table."""
    table = (Path(__file__).parents[3] / "docs" / "code.md").read_text()
    assert f"transformers {'.'.join(transformers.__version__.split('.')[:2])}, `tests/deploy" in table
    assert set(HIDDEN_ARGUMENTS) <= inspect.signature(transformers.GenerationMixin.generate).parameters.keys()


def test_an_artifact_generates_and_refuses_a_foreign_model(
    llama: PreTrainedModel, prompt: torch.Tensor, artifact: Artifact
) -> None:
    fast = custom_generate(artifact)
    plain = llama.generate(prompt, max_new_tokens=24)
    assert torch.equal(llama.generate(prompt, custom_generate=fast, max_new_tokens=24), plain)
    assert artifact.decoder(llama).generate(prompt, max_new_tokens=24).token_ids == plain[0, 9:].tolist()

    foreign = make("gpt2")
    with pytest.raises(ArtifactError, match=r"fingerprint\.model\.model_type is 'llama'"):
        foreign.generate(prompt, custom_generate=fast, max_new_tokens=24)
    with pytest.raises(ArtifactError, match="belongs to another model"):
        artifact.decoder(foreign)


def test_a_path_is_no_artifact(artifact: Artifact) -> None:
    for path in (artifact.folder, str(artifact.folder)):
        with pytest.raises(ValueError, match=r"is a path; pass specexp\.load_artifact of it"):
            custom_generate(path)  # type: ignore[arg-type]


def test_the_documented_lines_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_artifact(
        tmp_path / "artifacts" / "tree_shape",
        "static-tree",
        {"tree.json": [[0], [0, 0]], "parts.json": {"drafter": {"class_path": "TokenRecycling"}}},
    )
    monkeypatch.chdir(tmp_path)
    exec(_snippet(), {})


def _snippet() -> str:
    lines = iter(
        (
            ast.get_docstring(
                ast.parse(Path(specexp.deploy.hugging_face.custom_generate.__file__).read_text())
            )
            or ""
        ).splitlines()
    )
    return "\n".join(_indented(lines))


def _indented(lines: Iterator[str]) -> Iterator[str]:
    for line in lines:
        if line.startswith("    "):
            yield line.removeprefix("    ")


@pytest.fixture
def schedule(tmp_path: Path, llama: PreTrainedModel) -> Artifact:
    """Three drafting sequences whose trees grow in a thread."""
    return save_artifact(
        tmp_path / "artifacts" / "schedule",
        "schedule",
        {
            "schedule.json": {
                "class_path": "Scheduled",
                "init_args": {"n": 3, "verify_batch": 2, "workers": "thread"},
            },
            "parts.json": {
                "drafter": {"class_path": "TokenRecycling", "init_args": {"state": "carry"}},
                "builder": {"class_path": "KConfig", "init_args": {"widths": [2, 1]}},
            },
        },
        fingerprint=fingerprint(llama),
    )


def test_a_schedule_continues_a_padded_batch_as_plain_generate_does(
    llama: PreTrainedModel, prompt: torch.Tensor, schedule: Artifact
) -> None:
    batch = torch.cat((prompt, prompt.flip(1), prompt.roll(3)))
    batch[1, :4] = 0
    mask = torch.ones_like(batch)
    mask[1, :4] = 0
    first = llama.generate(prompt, max_new_tokens=20, do_sample=False)[0].tolist()
    settings: dict[str, Any] = {
        "attention_mask": mask,
        "max_new_tokens": 20,
        "do_sample": False,
        "repetition_penalty": 1.2,
        "eos_token_id": first[17],
        "pad_token_id": 0,
    }
    with custom_generate(schedule) as fast:
        for extra in ({}, {"min_new_tokens": 12}):
            plain = llama.generate(batch, **settings, **extra)
            assert torch.equal(llama.generate(batch, custom_generate=fast, **settings, **extra), plain)


@pytest.mark.parametrize("kind", ["parts", "schedule"])
def test_calls_from_several_threads_take_turns(
    llama: PreTrainedModel, prompt: torch.Tensor, schedule: Artifact, kind: str
) -> None:
    fast = custom_generate(
        schedule if kind == "schedule" else (TokenRecycling(state="carry"), TokenRecyclingTree())
    )
    prompts = [prompt.roll(shift, 1) for shift in range(6)]
    settings: dict[str, Any] = {"max_new_tokens": 15, "do_sample": False, "pad_token_id": 0}
    expected = [llama.generate(one, **settings) for one in prompts]
    with ThreadPoolExecutor(3) as pool:
        calls = [pool.submit(llama.generate, one, custom_generate=fast, **settings) for one in prompts]
    for call, plain in zip(calls, expected, strict=True):
        assert torch.equal(call.result(), plain)
    if kind == "schedule":
        fast.close()  # type: ignore[attr-defined]


def test_several_continuations_of_a_schedule_differ_and_come_again_with_the_seed(
    llama: PreTrainedModel, prompt: torch.Tensor, schedule: Artifact
) -> None:
    settings: dict[str, Any] = {"do_sample": True, "temperature": 0.7, "max_new_tokens": 12}
    with custom_generate(schedule, seed=3) as fast:
        rows = llama.generate(prompt, num_return_sequences=4, custom_generate=fast, **settings)
        again = llama.generate(prompt, num_return_sequences=4, custom_generate=fast, seed=3, **settings)
    assert torch.equal(rows, again)
    assert len({tuple(row.tolist()) for row in rows}) == 4
    plain = Decoder(llama, verifier=KeyedSampling(0.7))
    for number, row in enumerate(rows):
        expected = plain.generate(prompt, max_new_tokens=12, seed=3, sequence=number).token_ids
        assert row[9:].tolist() == expected


def test_stopping_criteria_end_each_row_of_a_schedule(
    llama: PreTrainedModel, prompt: torch.Tensor, schedule: Artifact
) -> None:
    def enough(ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        return ids.sum(1) > 700

    settings: dict[str, Any] = {"max_new_tokens": 60, "do_sample": False, "stopping_criteria": [enough]}
    alone = [llama.generate(row[None], **settings)[0] for row in (prompt[0], prompt[0].roll(2))]
    assert len(alone[0]) != len(alone[1])
    batch = torch.stack((prompt[0], prompt[0].roll(2)))
    with custom_generate(schedule) as fast:
        with pytest.raises(ValueError, match="there is no pad_token_id: set it"):
            llama.generate(batch, custom_generate=fast, **settings)
        rows = llama.generate(batch, custom_generate=fast, pad_token_id=0, **settings)
    for row, expected in zip(rows, alone, strict=True):
        assert row[: len(expected)].tolist() == expected.tolist()
        assert not row[len(expected) :].any()


def test_what_a_schedule_cannot_do_is_one_sentence(
    llama: PreTrainedModel, prompt: torch.Tensor, schedule: Artifact
) -> None:
    with custom_generate(schedule) as fast:
        with pytest.raises(ValueError, match="num_beams=2 is not supported"):
            llama.generate(prompt, max_new_tokens=5, custom_generate=fast, num_beams=2)
        mask = torch.ones_like(prompt)
        mask[0, 4] = 0
        with pytest.raises(ValueError, match="elsewhere than on their left"):
            llama.generate(prompt, max_new_tokens=5, custom_generate=fast, attention_mask=mask)
        with pytest.raises(ArtifactError, match=r"fingerprint\.model\.model_type is 'llama'"):
            make("gpt2").generate(prompt, max_new_tokens=5, custom_generate=fast)
