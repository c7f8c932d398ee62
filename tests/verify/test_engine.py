"""``python -m specexp.verify`` of an ``engine:``: the engine with speculation against itself without."""

import json
from pathlib import Path

import pytest

from specexp.commands.run import main as run
from specexp.commands.verify import main

LOOKUP = {"prompt_lookup_num_tokens": 3, "max_matching_ngram_size": 2}
DATA = {"prompts": {"class_path": "StdlibFunctions", "init_args": {"split": "test"}}, "max_prompts": 50}


def hugging_face(kind="HuggingFace", **given):
    return {"class_path": kind, "init_args": given}


@pytest.fixture
def of_engine(experiment, tmp_path):
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("".join(f"ab{number} ab{number}\n" for number in range(50)))
    few = {"prompts": str(prompts), "max_prompts": 3}
    plain = {"drafter": None, "builder": None, "verifier": {"class_path": "Greedy"}}
    return lambda engine, **changes: experiment(**plain, engine=engine, **{"data": few, **changes})


def report(tmp_path: Path) -> str:
    return (tmp_path / "runs" / "verify" / "tiny" / "engine.md").read_text()


def test_a_healthy_engine_is_not_blamed(of_engine, tmp_path) -> None:
    path = of_engine(hugging_face(drafts="prompt-lookup", settings=LOOKUP))
    assert main([path, "--dry-run"]) == 0
    assert main([path]) == 0
    written = report(tmp_path)
    assert "3 equal, 0 near tie, 0 wrong, 0 cannot tell" in written
    assert '"engine": "HuggingFace"' in written


def test_a_wrong_token_every_200_is_caught_and_scored_by_the_target(of_engine, tmp_path) -> None:
    lying = hugging_face("helpers.wrong_engine.WrongHuggingFace", drafts="prompt-lookup", settings=LOOKUP)
    assert main([of_engine(lying), "--data.max_prompts", "50", "--generation.max_new_tokens", "8"]) == 1
    written = report(tmp_path)
    assert "2 wrong" in written  # of 400 tokens
    assert "according to the target in float32" in written


def test_text_after_the_end_is_wrong_even_if_plain_decoding_goes_on_too(of_engine, tmp_path) -> None:
    going_on = hugging_face("helpers.wrong_engine.HuggingFaceThatGoesOn", drafts="prompt-lookup", settings=LOOKUP)
    assert main([of_engine(going_on)]) == 1
    written = report(tmp_path)
    assert "3 wrong" in written
    assert "2 tokens follow the token that ends the answer" in written


def test_a_run_with_an_output_that_differs_is_not_called_safe(experiment, capsys) -> None:
    """Its speed is refused, but its outputs count."""
    going_on = hugging_face("helpers.wrong_engine.HuggingFaceThatGoesOn", drafts="prompt-lookup", settings=LOOKUP)
    lookup = {"drafter": {"class_path": "PromptLookup"}, "builder": {"class_path": "Chain"}}
    plain = {"drafter": None, "builder": None, "verifier": {"class_path": "Greedy"}}
    assert run([experiment(arms={"lookup": lookup, "wrong": {"engine": going_on}}, **plain)]) == 1
    said = capsys.readouterr().out
    assert "NOT LOSSLESS" in said
    assert "Safe" not in said


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "code"), [("helpers.wrong_engine.WrongOpenVINO", 1), ("OpenVINO", 0)])
def test_openvino_is_blamed_only_if_it_is_wrong(kind, code, of_engine, tmp_path) -> None:
    pytest.importorskip("openvino_genai", reason="pip install 'specexp[engines]'")
    settings = {"num_assistant_tokens": 4, "max_ngram_size": 3}
    engine = {"class_path": kind, "init_args": {"drafts": "prompt-lookup", "settings": settings}}
    path = of_engine(engine, pair={"target": "stdlib", "target_dtype": "float32"}, data=DATA)
    few = {"data.max_prompts": 5, "generation.max_new_tokens": 32}
    for seed in range(1 if code else 20):
        changed = {"generation.max_new_tokens": 16} if code else {**few, "data.shuffle_seed": seed}
        words = [word for key, value in changed.items() for word in (f"--{key}", json.dumps(value))]
        assert main([path, *words]) == code
    assert ("according to the target in float32" in report(tmp_path)) == bool(code)


@pytest.mark.parametrize(
    ("engine", "sentence"),
    [
        (hugging_face(), "HuggingFace does not speculate with these settings, so there is nothing to verify"),
        (
            hugging_face("OpenAIEndpoint", url="http://127.0.0.1:9", plain_body={"off": 1}),
            "127.0.0.1:9/v1/models: the connection failed",
        ),
    ],
)
def test_an_engine_that_cannot_be_proven_is_refused(engine, sentence, of_engine, capsys) -> None:
    assert main([of_engine(engine)]) == 2
    assert sentence in capsys.readouterr().err
