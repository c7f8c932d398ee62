"""``python -m specexp.verify`` of an ``engine:``: the engine with speculation against itself without."""

import json
from pathlib import Path
from typing import ClassVar

import pytest

from specexp.verify.command import main

LOOKUP = {"prompt_lookup_num_tokens": 3, "max_matching_ngram_size": 2}


def hugging_face(**given):
    return {"class_path": "HuggingFace", "init_args": given}


@pytest.fixture
def of_engine(experiment, tmp_path):
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("".join(f"ab{number} ab{number}\n" for number in range(50)))

    def write(engine, **changes):
        return experiment(
            drafter=None,
            builder=None,
            verifier={"class_path": "Greedy"},
            engine=engine,
            data={"prompts": str(prompts), "max_prompts": 3},
            **changes,
        )

    return write


def report(tmp_path: Path) -> str:
    return (tmp_path / "runs" / "verify" / "tiny" / "engine.md").read_text()


def test_a_healthy_engine_is_not_blamed(of_engine, tmp_path) -> None:
    path = of_engine(hugging_face(drafts="prompt-lookup", settings=LOOKUP))
    assert main([path, "--dry-run"]) == 0
    assert main([path]) == 0
    told = report(tmp_path)
    assert "3 equal, 0 near tie, 0 wrong, 0 cannot tell" in told
    assert '"engine": "HuggingFace"' in told


def test_a_wrong_token_every_200_is_caught_within_50_prompts_and_scored_by_the_target(
    of_engine, tmp_path
) -> None:
    lying = {"class_path": "helpers.wrong_engine.WrongHuggingFace"}
    path = of_engine({**lying, "init_args": {"drafts": "prompt-lookup", "settings": LOOKUP}})
    assert main([path, "--data.max_prompts", "50", "--generation.max_new_tokens", "8"]) == 1
    told = report(tmp_path)
    assert "2 wrong" in told  # of 400 tokens
    assert "by the target in float32" in told


class TestOpenVino:
    """The real engine."""

    PAIR: ClassVar = {"target": "stdlib", "target_dtype": "float32"}
    DATA: ClassVar = {"prompts": {"class_path": "StdlibFunctions", "init_args": {"split": "test"}}}
    LOOKUP: ClassVar = {
        "drafts": "prompt-lookup",
        "settings": {"num_assistant_tokens": 4, "max_ngram_size": 3},
    }

    @pytest.fixture
    def of_openvino(self, of_engine):
        pytest.importorskip("openvino_genai", reason="pip install 'specexp[engines]'")

        def write(kind):
            path = of_engine({"class_path": kind, "init_args": self.LOOKUP}, pair=self.PAIR)
            return [path, "--data", json.dumps({**self.DATA, "max_prompts": 50})]

        return write

    @pytest.mark.slow
    def test_a_wrong_token_every_200_is_caught_within_50_prompts(self, of_openvino, tmp_path) -> None:
        assert (
            main([*of_openvino("helpers.wrong_engine.WrongOpenVINO"), "--generation.max_new_tokens", "16"])
            == 1
        )
        assert "by the target in float32" in report(tmp_path)

    @pytest.mark.slow
    def test_it_is_never_blamed(self, of_openvino) -> None:
        for run in range(20):
            given = [
                "--data.shuffle_seed",
                f"{run}",
                "--data.max_prompts",
                "5",
                "--generation.max_new_tokens",
                "32",
            ]
            assert main([*of_openvino("OpenVINO"), *given]) == 0


@pytest.mark.parametrize(
    ("engine", "said"),
    [
        (hugging_face(), "HuggingFace does not speculate as it is set, so there is nothing to prove"),
        (
            {
                "class_path": "OpenAIEndpoint",
                "init_args": {"url": "http://127.0.0.1:9", "plain_body": {"off": 1}},
            },
            "127.0.0.1:9/v1/models broke off",
        ),
    ],
)
def test_what_cannot_be_proven_is_a_sentence(engine, said, of_engine, capsys) -> None:
    assert main([of_engine(engine)]) == 2
    assert said in capsys.readouterr().err
