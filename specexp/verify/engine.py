"""Tests an engine's speculation by comparing its answers with and without speculation, token by token."""

from __future__ import annotations

from pathlib import Path

from specexp.base.messages import counted, first_line
from specexp.bench.arm import eos_of
from specexp.bench.equality import first_difference, near_tie_of
from specexp.bench.experiment import load_prompts, use_threads
from specexp.config import Config, apply_overrides, build_engine, build_pair
from specexp.core.runtime import Runtime
from specexp.data import Prompt
from specexp.engines.engine import EngineError, ForeignEngine
from specexp.models.pair import ModelPair
from specexp.servers.verify import Compared, EndpointReport

_ROUNDING = 1e-3
"""A gap between float32 logits that rounding can reverse in passes of different widths. Real errors are larger."""


def engine_to_verify(config: Config) -> ForeignEngine:
    """Return the configured engine. Raises ConfigError if it cannot be built or does not speculate."""
    engine: ForeignEngine = build_engine(config)
    if engine.deployed_settings() == engine.plain().deployed_settings():
        raise config.checker.error(
            ("engine",),
            f": {type(engine).__name__} does not speculate with these settings, so there is nothing to verify: enable "
            "its speculation",
        )
    return engine


def verify_engine(config: Config) -> EndpointReport:
    """Compare an engine's answers with and without speculation, and write ``<output>/verify/<name>/engine.md``.

    Raises ConfigError if models or prompts cannot be used, or the engine does not start or answer.
    """
    import torch

    from specexp.engines.served_arm import EnginePool

    engine = engine_to_verify(config)
    use_threads(config.generation.threads)
    pair = build_pair(config)
    prompts = load_prompts(config, pair).prompts
    exact: ModelPair | None = pair
    if isinstance(pair.target, Runtime):  # llama.cpp's
        exact = None  # its logits cannot be read
    elif config.pair.target_dtype != "float32":
        exact = build_pair(apply_overrides(config, {"pair.target_dtype": "float32"}, "verify"))
    generation = config.generation
    eos = eos_of(pair.tokenizer, pair.target) if generation.stop_at_eos else frozenset()
    pool = EnginePool(pair)
    plain = engine.plain()
    decode = pair.tokenizer.decode

    def answer(one: ForeignEngine, prompt: Prompt) -> list[int]:
        running = pool.take(one, id(one))
        return running.answer(one, prompt.token_ids, generation.max_new_tokens, eos).token_ids

    def compared(prompt: Prompt) -> Compared:
        on, off = answer(engine, prompt), answer(plain, prompt)
        place = first_difference(on, off)
        text = decode(list(prompt.token_ids))
        end = next((number for number, token in enumerate(on, 1) if token in eos), len(on))
        if end < len(on):
            why = f"{counted(len(on) - end, 'token')} follow the token that ends the answer"
            return Compared(text, "wrong", len(decode(on[:end])), None, why, decode(off), decode(on), len(off))
        if place is None:
            return Compared(text, "equal", tokens=len(off))
        repeats, gap, tolerance = answer(plain, prompt) == off, None, _ROUNDING
        if repeats and exact is not None and place < min(len(off), len(on)):
            with torch.inference_mode():
                logits = exact.target(torch.tensor([[*prompt.token_ids, *off[:place]]])).logits[0, -1].float()
            gap = float(logits[off[place]] - logits[on[place]])
            tolerance = max(near_tie_of(config.pair.target_dtype, float(logits.max())), _ROUNDING)
        given = (text, len(decode(off[:place])), decode(off), decode(on), len(off), repeats, gap)
        return Compared.judge(*given, source="the target in float32", tolerance=tolerance)

    try:
        found = [compared(prompt) for prompt in prompts]
    except EngineError as error:
        raise config.checker.error(("engine",), f": {first_line(error)}") from error
    finally:
        pool.close()
    settings = {
        **{"engine": type(engine).__name__, "version": engine.version},
        **{"on": engine.deployed_settings(), "off": plain.deployed_settings()},
        **{"target": config.pair.target, "max_tokens": generation.max_new_tokens},
    }
    report = EndpointReport(found, settings)
    report.write(Path(config.output, "verify", config.name, "engine.md"))
    return report
