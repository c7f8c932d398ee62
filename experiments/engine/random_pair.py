"""``python -m experiments.engine.random_pair {60m,300m,8k}``: write a pair with random weights to ``models/SIZE``.

Its passes take as long as those of trained models of the same shape.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from specexp.models.pair import load_pair


def _shape(hidden: int, intermediate: int, layers: int, heads: int) -> dict[str, int]:
    return {
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
    }


SIZES: Mapping[str, tuple[Mapping[str, int], Mapping[str, int]]] = {
    "60m": (_shape(640, 1600, 12, 10), _shape(256, 704, 8, 4)),
    "300m": (_shape(1024, 2816, 23, 16), _shape(512, 1408, 11, 8)),
    "8k": ({"max_position_embeddings": 8192}, {"max_position_embeddings": 8192}),
}
"""Configuration values of target and draft that differ from the embedded pair's."""


def write_random_pair(folder: Path, sizes: Sequence[Mapping[str, int]]) -> None:
    """Write ``folder/target`` and ``folder/draft`` with the embedded pair's tokenizer, in bfloat16.

    Args:
        folder: Folder of both models.
        sizes: Configuration values of target and draft that replace the embedded pair's.
    """
    pair = load_pair("stdlib")
    for role, model, changed in zip(("target", "draft"), (pair.target, pair.draft), sizes, strict=True):
        assert model is not None
        known = {name: value for name, value in model.config.to_dict().items() if name != "head_dim"}
        torch.manual_seed(0)
        config = type(model.config)(**known | dict(changed))
        made: Any = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        made.save_pretrained(folder / role)
        pair.tokenizer.save_pretrained(folder / role)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write a pair of the given size."""
    parser = argparse.ArgumentParser(prog="python -m experiments.engine.random_pair")
    parser.add_argument("size", choices=SIZES)
    size = parser.parse_args(arguments).size
    write_random_pair(Path("models") / size, SIZES[size])
    return 0


if __name__ == "__main__":
    sys.exit(main())
