"""Honest comparison of decoding setups: arms, per-prompt records, paired statistics, tables and figures."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specexp.bench.arm import Arm, Generation
    from specexp.bench.decoder_arm import DecoderArm
    from specexp.bench.equality import Equality, token_equality
    from specexp.bench.hugging_face_arm import HuggingFaceArm
    from specexp.bench.keyed_noise import KeyedNoise
    from specexp.bench.module import EvaluationModule
    from specexp.bench.phases import Breakdown, breakdown
    from specexp.bench.record import Difference, PromptRecord, RecordError, read_records, write_records
    from specexp.bench.statistics import (
        Speedup,
        Summary,
        bootstrap_interval,
        paired_speedup,
        records_frame,
        summarise,
    )
    from specexp.bench.table import Table

# Imported on first use: Lightning and transformers take seconds, and reading records needs neither.
_HOME = {
    "Arm": "arm",
    "Summary": "statistics",
    "Breakdown": "phases",
    "DecoderArm": "decoder_arm",
    "Difference": "record",
    "Equality": "equality",
    "EvaluationModule": "module",
    "Generation": "arm",
    "HuggingFaceArm": "hugging_face_arm",
    "KeyedNoise": "keyed_noise",
    "PromptRecord": "record",
    "RecordError": "record",
    "Speedup": "statistics",
    "Table": "table",
    "bootstrap_interval": "statistics",
    "breakdown": "phases",
    "paired_speedup": "statistics",
    "read_records": "record",
    "records_frame": "statistics",
    "summarise": "statistics",
    "token_equality": "equality",
    "write_records": "record",
}

__all__ = [
    "Arm",
    "Breakdown",
    "DecoderArm",
    "Difference",
    "Equality",
    "EvaluationModule",
    "Generation",
    "HuggingFaceArm",
    "KeyedNoise",
    "PromptRecord",
    "RecordError",
    "Speedup",
    "Summary",
    "Table",
    "bootstrap_interval",
    "breakdown",
    "paired_speedup",
    "read_records",
    "records_frame",
    "summarise",
    "token_equality",
    "write_records",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'specexp.bench' has no attribute {name!r}")
    return getattr(import_module(f"specexp.bench.{_HOME[name]}"), name)
