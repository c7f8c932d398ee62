"""vLLM's real server and our drafter inside it. The variable SPECEXP_VLLM_PYTHON names the interpreter.

Its environment needs vLLM and, by ``pip install --no-deps``, specexp.
"""

import os

import pytest

from specexp.config.artifacts import save_artifact
from specexp.deploy.vllm import PROPOSER
from specexp.engines.engine import EngineError
from specexp.engines.settings import VllmSettings
from specexp.engines.vllm import VLLM
from specexp.models.pair import load_pair

PYTHON = os.environ.get("SPECEXP_VLLM_PYTHON", "")
real = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not PYTHON, reason="SPECEXP_VLLM_PYTHON must name the interpreter of vLLM's environment"
    ),
]
LOOKUP = {"class_path": "PromptLookup", "init_args": {"max_ngram": 3, "min_ngram": 2}}


@pytest.fixture(scope="module")
def pair():
    return load_pair("smollm2")


def answers(engine, pair, prompts):
    running = engine.start(pair)
    try:
        return [running.answer(engine, prompt, 16, frozenset()) for prompt in prompts]
    finally:
        running.close()


def test_an_interpreter_that_is_missing_is_named() -> None:
    with pytest.raises(
        EngineError, match=r"must be the interpreter of an environment with vLLM, got 'no/python'"
    ):
        VLLM(python="no/python").words(8000, None)
    assert VLLM(python="no/python").version == "not installed"


def test_plain_decoding_is_the_same_engine_without_speculation() -> None:
    engine = VLLM(VllmSettings("ngram", 4), eager=True)
    assert engine.plain().deployed_settings() == {}
    assert engine.plain().eager
    assert engine.plain().restart_key != engine.restart_key


class TestReal:
    pytestmark = real

    def test_our_drafter_drafts_in_vllm_as_vllms_n_grams_do(self, pair, tmp_path) -> None:
        parts = {"drafter": LOOKUP, "builder": {"class_path": "Chain"}}
        folder = save_artifact(tmp_path / "lookup", "composition", {"parts.json": parts}).folder
        prompts = [pair.tokenizer("one two three four five, " * 6).input_ids]
        ours = VLLM(VllmSettings("custom_class", 4, PROPOSER, str(folder)), PYTHON, eager=True)
        own = VLLM(VllmSettings("ngram", 4, prompt_lookup_min=2, prompt_lookup_max=3), PYTHON, eager=True)
        (first,), (second,) = answers(ours, pair, prompts), answers(own, pair, prompts)
        assert first.token_ids == second.token_ids
        assert first.accepted_drafts == second.accepted_drafts > 0
        assert first.memory_bytes > 2**28

    def test_the_error_of_a_dead_server_is_its_own(self, pair) -> None:
        engine = VLLM(VllmSettings("custom_class", 4, PROPOSER, "no/artifact"), PYTHON, eager=True)
        with pytest.raises(EngineError, match="no/artifact"):
            engine.start(pair)
