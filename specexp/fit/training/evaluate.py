"""``python -m specexp.fit.training.evaluate [MODEL ...]``: the figures of a model card.

Loss on the held-out functions of both splits (nats per token, bits per byte), and of continuations of the
held-out test prompts the share that loops and the share ended by EOS, greedy and at a temperature. Of the embedded pair
also how well the draft agrees with the target.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specexp.bench.looping import loops

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def held_out_loss(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], *, row_length: int = 512
) -> dict[str, float]:
    """Loss on documents joined into rows, as in training: ``nats_per_token``, ``bits_per_byte`` and
    ``tokens``."""
    import torch
    import torch.nn.functional as F

    eos = tokenizer.eos_token_id
    encoded: Any = tokenizer(list(texts), verbose=False)["input_ids"]
    ids = [token for document in encoded for token in [*document, eos]]
    rows = torch.tensor(ids[: len(ids) // row_length * row_length]).view(-1, row_length)
    total, count = 0.0, 0
    with torch.inference_mode():
        for first in range(0, len(rows), 8):
            batch = rows[first : first + 8]
            logits = (
                model(input_ids=batch.to(model.device), use_cache=False).logits[:, :-1].flatten(0, 1).float()
            )
            total += float(F.cross_entropy(logits, batch[:, 1:].flatten().to(model.device), reduction="sum"))
            count += logits.shape[0]
    nats = total / count
    characters = sum(len(text.encode()) for text in texts)
    bits = nats / math.log(2) * len(ids) / characters
    return {"nats_per_token": round(nats, 4), "bits_per_byte": round(bits, 4), "tokens": float(count)}


def continuations(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[str],
    *,
    temperature: float,
    max_new_tokens: int = 128,
    batch_size: int = 50,
    seed: int = 0,
) -> list[list[int]]:
    """New token ids of every prompt, an EOS at most at the end; greedy at temperature 0."""
    import torch

    torch.manual_seed(seed)
    tokenizer.padding_side = "left"
    results = []
    sampling = (
        {"do_sample": True, "temperature": temperature, "top_k": 0}
        if temperature > 0
        else {"do_sample": False}
    )
    for first in range(0, len(prompts), batch_size):
        inputs = tokenizer(list(prompts[first : first + batch_size]), return_tensors="pt", padding=True)
        generate: Any = model.generate
        with torch.inference_mode():
            output = generate(
                input_ids=inputs["input_ids"].to(model.device),
                attention_mask=inputs["attention_mask"].to(model.device),
                max_new_tokens=max_new_tokens,
                pad_token_id=tokenizer.pad_token_id,
                eos_token_id=tokenizer.eos_token_id,
                **sampling,
            )
        for new in output[:, inputs["input_ids"].shape[1] :].tolist():
            end = new.index(tokenizer.eos_token_id) + 1 if tokenizer.eos_token_id in new else len(new)
            results.append(new[:end])
    return results


def shares(outputs: Sequence[Sequence[int]], eos_token_id: int) -> dict[str, float]:
    """Share of continuations that loop, share that ended by EOS, and their mean length."""
    count = len(outputs)
    return {
        "loops": round(sum(loops(output) for output in outputs) / count, 4),
        "ended_by_eos": round(sum(output[-1] == eos_token_id for output in outputs) / count, 4),
        "mean_tokens": round(sum(len(output) for output in outputs) / count, 1),
    }


def figures(folder: str, *, prompts: int, temperature: float, dtype: str = "bfloat16") -> dict[str, Any]:
    """All figures of one model."""
    from specexp.data.stdlib import StdlibFunctions
    from specexp.fit.training.corpus import held_out_functions
    from specexp.pairs.pair import load_pair

    pair = load_pair(folder, target_dtype=dtype)
    texts = [turns[0] for turns in StdlibFunctions("test").load()["turns"]][:prompts]
    result: dict[str, Any] = {"model": folder, "dtype": dtype, "prompts": len(texts)}
    for split in ("validation", "test"):
        result[f"{split}_loss"] = held_out_loss(pair.target, pair.tokenizer, held_out_functions(split))
    for value in (0.0, temperature):
        outputs = continuations(pair.target, pair.tokenizer, texts, temperature=value)
        result["greedy" if value == 0 else f"temperature_{value}"] = shares(
            outputs, pair.tokenizer.eos_token_id
        )
    return result


def agreement(folder: str, draft: str, *, functions: int = 60, temperature: float = 0.7) -> dict[str, float]:
    """How often a draft (float32) has its target's (bfloat16) most likely token, and the probability they share.

    Args:
        folder: Folder of the target.
        draft: Folder of the draft.
        functions: Held-out functions of the test modules, 512 tokens of each at most.
        temperature: Temperature of the distributions whose common mass ``sum(min(p, q))`` is averaged.
    """
    import torch

    from specexp.fit.training.corpus import held_out_functions
    from specexp.pairs.pair import load_pair

    pair = load_pair(folder, draft)
    assert pair.draft is not None
    same = common = count = 0.0
    with torch.inference_mode():
        for text in list(held_out_functions("test"))[:functions]:
            ids = torch.tensor([pair.tokenizer(text, verbose=False)["input_ids"][:512]])
            p, q = (
                (model(input_ids=ids, use_cache=False).logits[0].float() / temperature).softmax(dim=-1)
                for model in (pair.target, pair.draft)
            )
            same += float((p.argmax(dim=-1) == q.argmax(dim=-1)).sum())
            common += float(torch.minimum(p, q).sum())
            count += ids.shape[1]
    return {"same_best_token": round(same / count, 3), "common_mass": round(common / count, 3)}


def main(arguments: list[str] | None = None) -> int:
    """The command; returns its exit code."""
    embedded = Path(__file__).parent.parent / "pairs" / "stdlib"
    parser = argparse.ArgumentParser(prog="python -m specexp.fit.training.evaluate", description=__doc__)
    parser.add_argument("models", nargs="*", help="folders; the embedded target and draft when absent")
    parser.add_argument("--prompts", type=int, default=300, help="so many held-out test prompts")
    parser.add_argument("--temperature", type=float, default=0.7, help="of the sampled continuations")
    parser.add_argument("--dtype", default="bfloat16", help="bfloat16 or float32")
    options = parser.parse_args(arguments)
    for folder in options.models or [str(embedded / "target"), str(embedded / "draft")]:
        result = figures(
            folder, prompts=options.prompts, temperature=options.temperature, dtype=options.dtype
        )
        print(json.dumps(result, indent=2))
    if not options.models:
        together = agreement(
            str(embedded / "target"), str(embedded / "draft"), temperature=options.temperature
        )
        print(json.dumps({"agreement": together}, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
