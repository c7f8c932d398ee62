"""Running engines: shared, kept while idle, dropped after a failure; and OpenVINO's own."""

from dataclasses import replace
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch
from helpers.small_gguf import small_llama, tokenizer

from specexp.bench.arm_spec import ArmSpec
from specexp.bench.equality import compare
from specexp.config import Generation
from specexp.core.parts import Parts
from specexp.data import Prompt
from specexp.engines.engine import EngineAnswer, ForeignEngine, RunningEngine
from specexp.engines.openvino import OpenVINO
from specexp.engines.served_arm import EnginePool, ServedBackend
from specexp.engines.settings import OpenVinoSettings
from specexp.models.pair import ModelPair
from specexp.verifiers import Greedy


class Fake(ForeignEngine):
    log: ClassVar[list[str]] = []

    def __init__(self, key: str, setting: int = 0) -> None:
        self.key, self.setting = key, setting

    def plain(self):
        return Fake("plain")

    def deployed_settings(self):
        return {}

    @property
    def version(self):
        return "1"

    @property
    def restart_key(self):
        return self.key

    def start(self, pair):
        Fake.log.append(f"start {self.key}")
        return Running(self.key)


class Running(RunningEngine):
    def __init__(self, key: str) -> None:
        self.key = key

    def answer(self, engine, token_ids, max_new_tokens, eos):
        Fake.log.append(f"answer {self.key} {token_ids}")
        return EngineAnswer([1], "length", 0.1, 0.1, 0, 1)

    def memory_bytes(self):
        return 3 * 10**9

    def close(self) -> None:
        Fake.log.append(f"close {self.key}")


@pytest.fixture(autouse=True)
def _new_log():
    Fake.log.clear()


@pytest.fixture
def pool():
    return EnginePool(None)


def test_settings_that_need_no_restart_share_one_engine(pool) -> None:
    first = pool.take(Fake("a", 1), 1)
    pool.leave(1)
    assert pool.take(Fake("a", 2), 2) is first
    assert Fake.log == ["start a"]


def test_an_idle_engine_is_closed_only_when_another_one_starts(pool) -> None:
    pool.take(Fake("plain"), 0)
    pool.take(Fake("a"), 1)
    pool.leave(1)
    pool.take(Fake("b"), 2)
    assert Fake.log == ["start plain", "start a", "close a", "start b"]
    pool.close()
    assert Fake.log[4:] == ["close plain", "close b"]


def test_a_failed_engine_is_started_again(pool) -> None:
    pool.take(Fake("a"), 1)
    pool.drop(Fake("a"))
    pool.take(Fake("a"), 1)
    assert Fake.log == ["start a", "close a", "start a"]


@pytest.fixture
def memory_for_two(monkeypatch):
    def memory():
        started, closed = (sum(line.startswith(word) for line in Fake.log) for word in ("start", "close"))
        return SimpleNamespace(available=9 * 10**9 - (started - closed) * 3 * 10**9)

    monkeypatch.setattr("psutil.virtual_memory", memory)


def test_engines_beyond_the_memory_take_turns(pool, memory_for_two, caplog) -> None:
    for user, name in enumerate(["plain", "a", "b"]):
        pool.take(Fake(name), user)
    assert Fake.log == ["start plain", "start a", "close a", "start b"]
    assert pool.restarts(Fake("a"))
    pool.take(Fake("a"), 1)
    assert Fake.log[4:] == ["close b", "start a"]  # plain's turn comes before b's
    assert caplog.messages == [
        "memory has 3.0 GB left and an engine takes 3.0 GB, so engines start anew between prompts: a study with fewer "
        "ends sooner"
    ]


def test_a_restarted_engine_warms_up_on_other_text(memory_for_two) -> None:
    model = small_llama("Llama")
    backend = ServedBackend(ModelPair(model, model, tokenizer(), "small"))
    specs = [ArmSpec(name, Generation(max_new_tokens=4), Parts(verifier=Greedy()), engine=Fake(name)) for name in "abc"]
    arms, prompt = [backend.arm(spec) for spec in specs], Prompt("one", "made", ("only",), (5, 6, 7), 0)
    for arm in [*arms, arms[1]]:
        arm.decode(prompt)
    assert Fake.log[-4:] == ["close c", "start b", "answer b [7, 6, 5]", "answer b [5, 6, 7]"]


def test_a_difference_is_scored_after_the_engines_own_tokens() -> None:
    """Our own answer may part from the engine's before that place."""
    model = small_llama("Llama")
    backend = ServedBackend(ModelPair(model, model, tokenizer(), "small"))
    parts = Parts(verifier=Greedy())
    plain = backend.arm(ArmSpec("plain", Generation(max_new_tokens=4), parts, engine=Fake("plain")))
    prompt = Prompt("one", "made", ("only",), (5, 6, 7), 0)
    record = plain.decode(prompt)
    reference = replace(record, token_ids=(9, 8, 3, 2), turn_tokens=(4,))
    other = replace(reference, arm="drafts", token_ids=(9, 8, 4, 2))
    with torch.inference_mode():
        best = model(torch.tensor([[5, 6, 7, 9, 8]])).logits[0, -1].float().topk(2).values
    found = compare(other, reference, plain, prompt).difference
    assert found.index == 2
    assert found.gap == pytest.approx(float(best[0] - best[1]), abs=1e-4)
    prompt, index = plain.place_of(
        Prompt("two", "made", ("a", "b"), (5, 6), 0), replace(reference, turn_tokens=(1, 3)), 3
    )
    assert (prompt.token_ids[:3], prompt.token_ids[-2:], index) == ((5, 6, 9), (8, 3), 0)


def test_another_drafter_of_openvino_needs_a_restart_and_other_lengths_need_none() -> None:
    short, long = (OpenVINO("model", OpenVinoSettings(length)) for length in (2, 8))
    assert short.restart_key == long.restart_key != short.plain().restart_key


@pytest.mark.slow
@pytest.mark.parametrize(
    "engine",
    [
        pytest.param(OpenVINO(), marks=pytest.mark.slow),
        OpenVINO("prompt-lookup", OpenVinoSettings(4, max_ngram_size=2)),
        pytest.param(OpenVINO("model", OpenVinoSettings(3)), marks=pytest.mark.slow),
    ],
)
def test_openvino_gives_the_models_own_tokens(engine) -> None:
    pytest.importorskip("openvino_genai", reason="pip install 'specexp[openvino]'")
    model = small_llama("Llama")
    prompt = tokenizer()("ab ab cd ab").input_ids
    greedy = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    expected = model.generate(torch.tensor([prompt]), **greedy)
    running = engine.start(ModelPair(model, model, tokenizer(), "small"))
    for _ in range(2):
        answer = running.answer(engine, prompt, 12, frozenset())
        assert answer.token_ids == expected[0, len(prompt) :].tolist()
        assert answer.finish_reason == "length"
        assert 1 <= answer.steps <= 12
        assert answer.accepted_drafts + answer.bonus_tokens == 12
        assert answer.accepted_drafts == 12 - answer.steps  # also in the last pass, which OpenVINO leaves out
        assert min(answer.decode_seconds, answer.prefill_seconds) > 0
    stop = expected[0, len(prompt) + 3].item()
    ended = running.answer(engine, prompt, 12, frozenset({stop}))
    assert ended.finish_reason == "eos"
    # an accepted draft is cut at the token; behind a stop string, OpenVINO would count the tokens that it cuts
    assert ended.token_ids == expected[0, len(prompt) :].tolist()[: ended.token_ids.index(stop) + 1]
    assert ended.decode_tokens < len(ended.token_ids) <= 4
