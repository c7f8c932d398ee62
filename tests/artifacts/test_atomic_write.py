"""A file is written whole or not at all."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from specexp.artifacts.atomic_write import atomic_write

pytestmark = pytest.mark.unit


def test_text_and_bytes_replace_the_earlier_content(tmp_path):
    path = tmp_path / "table.md"
    atomic_write(path, "first")
    atomic_write(path, "é")
    assert path.read_text(encoding="utf-8") == "é"
    atomic_write(path, b"\x00")
    assert path.read_bytes() == b"\x00"
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_leaves_the_earlier_content(tmp_path, monkeypatch):
    path = tmp_path / "table.md"
    atomic_write(path, "first")

    def full(self: Path, data: bytes) -> int:
        self.touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space left on device") as caught:
        atomic_write(path, "second")
    assert caught.value.filename == str(path)
    assert path.read_text() == "first"
    assert list(tmp_path.iterdir()) == [path]


def test_two_that_write_at_once_do_not_take_each_others_file(tmp_path):
    path = tmp_path / "table.md"
    begin, replace = threading.Barrier(2), Path.replace

    def together(self: Path, target: Path) -> Path:
        begin.wait()  # both have written beside
        return replace(self, target)

    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(2) as pool:
        patch.setattr(Path, "replace", together)
        for written in [pool.submit(atomic_write, path, text) for text in ("first", "second")]:
            written.result()
    assert path.read_text() in ("first", "second")
    assert list(tmp_path.iterdir()) == [path]
