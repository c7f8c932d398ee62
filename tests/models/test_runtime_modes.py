"""A line in the table of modes is a mode: ``pair.mode`` names it, ``auto`` tries it if the line says so."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from helpers.small_models import FULL_ATTENTION, build

from specexp import Decoder, load_pair
from specexp.config import load_config
from specexp.core.language_model import set_runtime
from specexp.models.modes import MODES, Mode
from specexp.models.pair import PairError
from specexp.models.runtime import runtime_class, runtime_of

GRAPHED = """
from specexp.core.language_model import LanguageModel
from specexp.base.kernels import CannotRunError


class Graphed(LanguageModel):
    kind = "mirrored"

    @classmethod
    def for_model(cls, model):
        if model.config.model_type == "gpt2":
            raise CannotRunError("graphs of GPT-2 are not captured")
        return cls(model)

    @classmethod
    def check_mode(cls, models, device):
        if device != "cpu":
            raise ValueError(f"mode is 'mirrored' and device is {device!r}: allowed is cpu")
"""


@pytest.fixture(params=[True, False], ids=["auto", "named"])
def in_auto(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether ``auto`` tries a mode ``mirrored``, whose runtime lies in a file of its own."""
    (tmp_path / "mirrored.py").write_text(GRAPHED)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(MODES, "mirrored", Mode("mirrored.Graphed", None if request.param else ()))
    return bool(request.param)


def test_it_runs_by_its_name_and_by_rank(in_auto: bool) -> None:
    model = build("Llama", {**FULL_ATTENTION["Llama"], "head_dim": 16}, dtype=torch.float32)
    assert runtime_of(model, "mirrored").kind == "mirrored"
    assert runtime_of(model, "eager").kind == "eager"
    assert runtime_of(model, "auto").kind == ("mirrored" if in_auto else "compiled")
    set_runtime(model, "mirrored", runtime_of)
    decoder = Decoder(model)
    assert decoder.model.provenance()["runtime"] == "mirrored"
    assert len(decoder.generate([1, 2], max_new_tokens=3).token_ids) == 3


def test_auto_falls_back_with_a_reason(in_auto: bool) -> None:
    told: list[str] = []
    model = build("GPT2", FULL_ATTENTION["GPT2"], dtype=torch.float32)
    assert runtime_of(model, "auto", told.append).kind == "eager"
    assert len(told) == 1
    assert ("graphs of GPT-2 are not captured" in told[0]) == in_auto


def test_a_configuration_names_it(in_auto: bool, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("pair: {mode: mirrored}\n")
    assert load_config(file).get("pair.mode") == "mirrored"
    assert load_pair("stdlib", mode="mirrored", weights=False).target is not None
    with pytest.raises(PairError, match="mode must be eager or auto if a device_map"):
        load_pair("stdlib", mode="mirrored", device_map="auto")


def test_a_runtime_is_named_as_its_mode() -> None:
    assert {name: runtime_class(name).kind for name in MODES} == {name: name for name in MODES}
