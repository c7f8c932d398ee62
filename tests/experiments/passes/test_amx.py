"""The list of what AMX tiles bring: which figures it prints, and when it does not measure. Times are planted."""

from __future__ import annotations

import re

import pytest

from experiments.passes import amx
from specexp.models import llama_weights


def test_without_tiles_the_reason_is_printed_and_nothing_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(llama_weights, "processor", lambda: "avx2")
    monkeypatch.setattr(amx, "PARTS", ())
    amx.main(["--target", "stdlib"])
    assert re.match(
        "bfloat16 rows are multiplied .*, because the processor has no AMX|.* in tiles",
        capsys.readouterr().out,
    )
