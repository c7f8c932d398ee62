"""``python -m experiments.passes.families [--rounds N] [--threads N] [FAMILY ...]``: time a plain step of each family.

Compares the compiled pass with Hugging Face's code on random models in bfloat16, in turns, and prints the ratios.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from statistics import median
from time import perf_counter
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, DynamicCache, PreTrainedModel

from experiments.passes.tables import paired
from specexp.core.loop import Decoder
from specexp.models.compiled import CompiledModel
from specexp.report.publish import terminal
from specexp.report.table import Table, columns

_SIZES = {
    **{"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 8, "num_attention_heads": 16},
    **{"num_key_value_heads": 4, "head_dim": 64, "vocab_size": 16384, "max_position_embeddings": 1024},
    **{"pad_token_id": 0, "eos_token_id": 2},
}
_WINDOW: dict[str, Any] = {"sliding_window": 64}
FAMILIES: dict[str, dict[str, Any]] = {
    "Llama": {},
    "Mistral": _WINDOW,
    "Qwen2": {},
    "Qwen3": {},
    "Gemma2": {**_WINDOW, "query_pre_attn_scalar": 64},
    "Gemma3Text": {**_WINDOW, "query_pre_attn_scalar": 64},
    "Phi3": _WINDOW,
    "SmolLM3": {},
    "Olmo2": {},
    "Olmo3": _WINDOW,
    "Granite": {"embedding_multiplier": 12.0, "logits_scaling": 8.0, "residual_multiplier": 0.22},
}
"""Settings of each family beyond the common sizes, by the beginning of the names of its classes."""
_PROMPT = list(range(3, 99))  # longer than the windows
_TOKENS = 24  # of each turn


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("families", nargs="*", metavar="FAMILY", help=f"{', '.join(FAMILIES)}; or all")
    parser.add_argument("--rounds", type=int, default=16)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    given = parser.parse_args(arguments)
    torch.set_num_threads(given.threads)
    table = Table(
        f"Plain steps in bfloat16 after {len(_PROMPT)} tokens, {given.threads} threads, {given.rounds} rounds",
        columns("family | compiled:.3 ms | Hugging Face:.3 ms | compiled over Hugging Face:interval"),
        notes=["Medians over rounds, each of which decodes with both, and 95 % intervals of paired ratios."],
    )
    for name in given.families or FAMILIES:
        config = getattr(transformers, f"{name}Config")(**{**_SIZES, **FAMILIES[name]})
        torch.manual_seed(0)
        attention = "eager" if name == "Gemma2" else "sdpa"  # transformers has no sdpa with soft caps
        made = AutoModelForCausalLM.from_config(config, attn_implementation=attention, dtype=torch.bfloat16)
        ours, theirs = times(made.eval(), given.rounds)
        table.rows.append([name, 1e3 * median(ours), 1e3 * median(theirs), paired(theirs, ours)])
    terminal().print(table.to_rich())
    return 0


@torch.inference_mode()
def times(model: PreTrainedModel, rounds: int) -> tuple[list[float], list[float]]:
    """Return the seconds of a step in each round: of the compiled pass, and of Hugging Face's code."""
    compiled = Decoder(CompiledModel(model))

    def ours() -> float:
        result = compiled.generate(_PROMPT, max_new_tokens=1 + _TOKENS)
        return result.decode_seconds / result.steps

    def theirs() -> float:
        cache = DynamicCache(config=model.config)
        token = model(torch.tensor([_PROMPT]), past_key_values=cache).logits[:, -1:].argmax(-1)
        started = perf_counter()
        for _ in range(_TOKENS):
            token = model(token, past_key_values=cache).logits[:, -1:].argmax(-1)
        return (perf_counter() - started) / _TOKENS

    found: dict[Callable[[], float], list[float]] = {ours: [], theirs: []}
    for number in range(rounds + 1):
        for take in (ours, theirs) if number % 2 else (theirs, ours):
            found[take].append(take())
    return found[ours][1:], found[theirs][1:]  # the first round warms up


if __name__ == "__main__":
    sys.exit(main())
