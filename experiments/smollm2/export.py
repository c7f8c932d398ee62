"""``python -m experiments.smollm2.export KIND TARGET SHARDS FOLDER TO``: write what ``train`` trained.

The head's tokens may be others than in training, because its rows are the target's: they are chosen among all of the
text. Both are written in 8 bits, without embeddings. All ids, most frequent first, go to ``FOLDER/vocabulary.json``.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from experiments.smollm2.train import Conversations, Draft, Eagle3
from specexp.core.packed import DRAFT_VOCABULARY, FILE, SCALE


def main(argv: list[str] | None = None) -> None:
    """Write a draft or a head, and print the figures of its training."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=("draft", "eagle3"))
    parser.add_argument("target")
    parser.add_argument("shards", type=Path)
    parser.add_argument("folder", type=Path, help="of the training")
    parser.add_argument("to", type=Path)
    parser.add_argument("--vocabulary", type=int, default=8192)
    arguments = parser.parse_args(argv)
    from transformers import AutoModelForCausalLM

    done = torch.load(arguments.folder / "last.pt", weights_only=True)
    target: Any = AutoModelForCausalLM.from_pretrained(arguments.target, dtype=torch.float32)
    texts = Conversations(arguments.shards, 0)
    ranked = texts.most_frequent(target.config.vocab_size, target.config.vocab_size)
    (arguments.folder / "vocabulary.json").write_text(json.dumps(ranked.tolist()) + "\n", encoding="utf-8")
    kept = ranked[: arguments.vocabulary]
    arguments.to.mkdir(parents=True, exist_ok=True)
    if arguments.kind == "eagle3":
        head = Eagle3(target, kept.sort().values, 1)
        head.load_state_dict(done["module"])
        write_head(head, arguments.to)
    else:
        write_draft(target, done["module"], kept, arguments.to)
    print(f"{done['tokens']} training tokens in {done['step']} steps, from {texts.tokens} tokens of text")


def write_head(head: Eagle3, to: Path) -> None:
    """Write a head in 8 bits, with the names of the published layout."""
    with tempfile.TemporaryDirectory() as whole:
        head.net.save(whole)
        shutil.copyfile(Path(whole) / "config.json", to / "config.json")
        tensors = load_file(Path(whole) / "model.safetensors")
    del tensors["t2d"]  # d2t has the same
    pack(tensors, to)


def write_draft(target: Any, weights: dict[str, torch.Tensor], kept: torch.Tensor, to: Path) -> None:
    """Write the layers of a draft in 8 bits, and the tokens of its reduced head. The embeddings are the target's."""
    layers = 1 + max(int(name.split(".")[2]) for name in weights if ".layers." in name)
    config = Draft(target, list(range(layers))).model.config
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(to)
    target.generation_config.save_pretrained(to)
    pack(weights | {DRAFT_VOCABULARY: kept.sort().values.int()}, to)


def pack(weights: dict[str, torch.Tensor], folder: Path) -> None:
    """Write a model's weights: matrices in 8 bits, vectors in bfloat16, integer tensors unchanged."""
    packed = {}
    for name, weight in weights.items():
        if weight.ndim == 2:
            scale = weight.float().abs().amax(dim=1).clamp(min=1e-12) / 127  # [rows]
            packed[name] = (weight.float() / scale[:, None]).round().to(torch.int8)  # [rows, columns]
            packed[name + SCALE] = scale
        else:
            packed[name] = weight.to(torch.bfloat16) if weight.is_floating_point() else weight
    save_file(packed, folder / FILE)


if __name__ == "__main__":
    main()
