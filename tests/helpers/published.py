"""The papers' presets: the arms of ``configs/PAPER/published.yaml``."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import yaml

from helpers.golden import ROOT


def published_arm(name: str, file: str = "post_use_pre_cut") -> SimpleNamespace:
    """Return the parts of an arm of a paper's preset, each with its ``class_path`` and ``init_args``."""
    arms = yaml.safe_load((ROOT / "configs" / file / "published.yaml").read_text(encoding="utf-8"))["arms"]
    return SimpleNamespace(**{part: _spaced(value) for part, value in arms[name].items()})


def _spaced(value: Any) -> Any:
    return SimpleNamespace(**value) if isinstance(value, dict) else value
