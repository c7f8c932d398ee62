"""Records made by hand, so that every statistic can be computed by hand."""

from typing import Any

from specexp.bench.record import PromptRecord

PHASES = ("draft", "build", "target", "verify", "commit", "update")


def record(arm: str, prompt: int, decode_seconds: float = 1.0, **given: Any) -> PromptRecord:
    """A prompt answered with four tokens in so many seconds of decoding."""
    tokens = given.pop("token_ids", (5, 6, 7, 8))
    values: dict[str, Any] = {
        "token_ids": tokens,
        "turn_tokens": (len(tokens),),
        "finish_reasons": ("length",),
        "steps": len(tokens),
        "bonus_tokens": len(tokens),
        "decode_seconds": decode_seconds,
        "decode_tokens": len(tokens),
        "dtype": "bfloat16",
        "device": "cpu",
        "verifier": "Greedy",
        **given,
    }
    return PromptRecord(arm, f"p{prompt}", "a" if prompt % 2 == 0 else "b", **values)
