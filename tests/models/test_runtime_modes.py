"""One file in ``specexp/models`` is a mode: ``pair.mode`` names it, ``auto`` tries it by its rank."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from helpers.small_models import FULL_ATTENTION, build

import specexp.models
from specexp import Decoder, load_pair
from specexp.config import load_config
from specexp.models.pair import PairError
from specexp.models.runtime import AUTO, modes, runtime_of, set_mode
from specexp.models.sources import mode_names

GRAPHED = """
from specexp.core.language_model import LanguageModel
from specexp.base.kernels import CannotRunError


class Graphed(LanguageModel):
    kind = "mirrored"
    mode_rank = {rank}
    takes_device_map = False

    @classmethod
    def run(cls, model):
        if model.config.model_type == "gpt2":
            raise CannotRunError("graphs of GPT-2 are not captured")
        return cls(model)

    @classmethod
    def check_mode(cls, models, device):
        if device != "cpu":
            raise ValueError(f"mode is 'mirrored' and device is {{device!r}}: allowed is cpu")
"""


@pytest.fixture(params=[2, -1])
def rank(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The rank of a mode ``mirrored``, which lies in a file of its own."""
    (tmp_path / f"mirrored_{request.param + 1}.py").write_text(GRAPHED.format(rank=request.param))
    monkeypatch.setattr(specexp.models, "__path__", [*specexp.models.__path__, str(tmp_path)])
    modes.cache_clear()
    yield request.param
    modes.cache_clear()


def test_it_runs_by_its_name_and_by_rank(rank: int) -> None:
    model = build("Llama", {**FULL_ATTENTION["Llama"], "head_dim": 16}, dtype=torch.float32)
    assert runtime_of(model, "mirrored").kind == "mirrored"
    assert runtime_of(model, "eager").kind == "eager"
    assert runtime_of(model, "auto").kind == ("mirrored" if rank > 1 else "compiled")
    set_mode(model, "mirrored")
    decoder = Decoder(model)
    assert decoder.model.provenance()["runtime"] == "mirrored"
    assert len(decoder.generate([1, 2], max_new_tokens=3).token_ids) == 3


def test_auto_falls_back_with_a_reason(rank: int) -> None:
    told: list[str] = []
    model = build("GPT2", FULL_ATTENTION["GPT2"], dtype=torch.float32)
    assert runtime_of(model, "auto", told.append).kind == "eager"
    assert len(told) == 1
    assert ("graphs of GPT-2 are not captured" in told[0]) == (rank > 1)


def test_a_configuration_names_it(rank: int, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("pair: {mode: mirrored}\n")
    assert load_config(file).get("pair.mode") == "mirrored"
    assert load_pair("stdlib", mode="mirrored", weights=False).target is not None
    with pytest.raises(PairError, match="mode must be eager or auto if a device_map"):
        load_pair("stdlib", mode="mirrored", device_map="auto")


def test_the_names_found_without_an_import_are_those_of_all_modes(rank: int) -> None:
    assert set(mode_names()) == {AUTO, *modes()}
