"""The list of what AMX tiles bring: which figures it prints, and when it does not measure. Times are planted."""

from __future__ import annotations

import re

import pytest

from experiments.passes import amx
from specexp.base.kernels import library
from specexp.models import compiled, llama_weights


def test_without_tiles_the_reason_is_printed_and_nothing_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(llama_weights, "processor", lambda: "avx2")
    monkeypatch.setattr(amx, "PARTS", ())
    amx.main(["--target", "stdlib"])
    printed = capsys.readouterr().out
    assert re.match("bfloat16 rows are multiplied .*, because the processor has no AMX|.* in tiles", printed)


@pytest.mark.slow
def test_every_figure_has_its_bound(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    kernels = library(llama_weights._SOURCE, ("-DEMULATED_TILES",))
    for module in (compiled, amx):
        monkeypatch.setattr(module, "kernels_of", lambda *given: kernels)
    monkeypatch.setattr(amx, "seconds_of", lambda works, **more: dict.fromkeys(works, 1.0))
    assert amx.main(["rows", "prefill", "lanes", "--target", "stdlib"]) == 1
    printed = capsys.readouterr().out
    assert "in tiles (AMX)" in printed
    figures = re.findall(r"(?:met   |missed)  (.*): [\d.]+, bound: at (?:most|least) ([\d.]+)", printed)
    assert figures == [
        ("compiled: one row, over other products", "1.03"),
        *((f"compiled: {count} rows over one", f"{bound:g}") for count, bound in amx.BOUNDS.items()),
        ("prefill of 512 tokens, over other products", "3"),
        ("prefill of 512 tokens, over torch's products alone", "0.5"),
        ("prefill of 1024 tokens, over other products", "3"),
        ("prefill of 1024 tokens, over torch's products alone", "0.5"),
        ("16 requests, over other products", "2.5"),
    ]
    assert printed.count("met   ") == 1 + len(amx.BOUNDS) + 2
    assert "3 missed: prefill of 512 tokens, over other products, prefill of 1024" in printed
