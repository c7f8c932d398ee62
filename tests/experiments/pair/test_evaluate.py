"""The figures of a model card, on a model that follows the alphabet."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from experiments.pair.corpus.text_source import Probe, Text
from experiments.pair.evaluate import agreement, answers, gap, losses, tables, text_losses
from specexp.data.tasks.task import Ending

pytestmark = pytest.mark.unit


class Letters:
    """A tokenizer of single letters, of which ``.`` closes a text."""

    eos_token_id = ord(".")

    def __call__(self, text: str, **_: Any) -> dict[str, Any]:
        return {"input_ids": [ord(letter) for letter in text]}

    def decode(self, ids: Any, skip_special_tokens: bool = False) -> str:
        text = "".join(chr(int(token)) for token in ids)
        return text.replace(".", "") if skip_special_tokens else text


class Alphabet:
    """After every letter the next one of the alphabet comes with a probability, and any other is equally rare."""

    device = "cpu"

    def __init__(self, sure: float) -> None:
        self.sure = sure

    def __call__(self, input_ids: torch.Tensor, **_: Any) -> Any:
        p = torch.full((*input_ids.shape, 128), (1 - self.sure) / 127)
        return SimpleNamespace(logits=p.scatter(-1, (input_ids + 1)[..., None] % 128, self.sure).log())


TOKENIZER: Any = Letters()
SURE: Any = Alphabet(0.5)
UNSURE: Any = Alphabet(0.25)


def test_losses_are_those_of_the_tokens_that_follow() -> None:
    found = losses(text_losses(SURE, TOKENIZER, ["abcd"]))
    rare = -math.log(0.5 / 127)
    assert found["nats a token"] == pytest.approx((3 * math.log(2) + rare) / 4)
    assert found["bytes a token"] == pytest.approx(3 / 4)  # EOS has none
    assert found["bits a byte"] == pytest.approx((3 * math.log(2) + rare) / math.log(2) / 3)


def test_another_model_is_compared_text_by_text() -> None:
    sure, unsure = (text_losses(model, TOKENIZER, ["abc", "bcd", "cde"]) for model in (SURE, UNSURE))
    more = (2 * math.log(2) + math.log(0.5 / 0.75)) / 3  # two letters are next ones, EOS is rare
    assert gap(sure, unsure) == (pytest.approx(more), pytest.approx(more), pytest.approx(more))
    assert gap(unsure, sure)[0] == pytest.approx(-more)


def test_agreement_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("experiments.pair.evaluate.TEMPERATURE", 1.0)
    found = agreement(SURE, UNSURE, TOKENIZER, ["abcd"])
    assert found["same best token"] == 1.0
    assert found["shared at T = 1"] == pytest.approx(0.25 + 127 * 0.5 / 127)


def test_answers_are_read_up_to_their_ending(monkeypatch: pytest.MonkeyPatch) -> None:
    def letters(model: Any, tokenizer: Any, prompts: Any, *, max_new_tokens: int, **_: Any) -> Any:
        return [[ord(prompt[-1]) + 1 + step for step in range(max_new_tokens)] for prompt in prompts]

    monkeypatch.setattr("experiments.pair.evaluate.continuations", letters)
    probe = Probe("next", "a", lambda text: {"bc": True, "cd": False}.get(text), Ending(("d",), 4))
    others = [probe._replace(prompt="b", ending=Ending(("e",), 4)), probe._replace(prompt="f")]
    found = answers(SURE, TOKENIZER, [probe, *others])
    assert found["next"] == {"right": pytest.approx(1 / 3), "readable": pytest.approx(2 / 3), "problems": 3}


def test_losses_alone_generate_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = SimpleNamespace(target=SURE, draft=UNSURE, tokenizer=TOKENIZER)
    monkeypatch.setattr("specexp.models.pair.load_pair", lambda *names: pair)
    texts = [Text("", "abcd"), Text("", "bcde")]
    monkeypatch.setattr("experiments.pair.evaluate.held_out_texts", lambda source, split: texts)
    (told,) = tables("sure", ["unsure"], {"letters": cast("Any", None)}, losses_alone=True)
    target, other = told.records()
    assert (target["model"], other["model"]) == ("target", "unsure")
    assert target["nats a token"] == pytest.approx((3 * math.log(2) - math.log(0.5 / 127)) / 4)
