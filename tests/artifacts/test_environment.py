"""Two processors of one name are two devices if their instructions for vectors differ."""

from pathlib import Path

import pytest

from specexp.artifacts.environment import device_name

pytestmark = pytest.mark.unit


def test_processors_with_other_instructions_are_other_devices(monkeypatch):
    shown = []
    for flags in ("sse2 avx2", "sse2 avx2 avx512f avx512_bf16", "sse2 avx2 avx512f avx512_bf16 amx_bf16"):
        text = f"model name\t: Some Processor\nflags\t\t: {flags}\n"
        monkeypatch.setattr(Path, "read_text", lambda *given, text=text, **named: text)
        shown.append(device_name("cpu"))
    assert shown[0] == "Some Processor, AVX2"
    assert len(set(shown)) == 3
