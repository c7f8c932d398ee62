"""Tests an engine's speculation by comparing its answers with and without speculation, token by token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from specexp.base.messages import counted, first_line, restated
from specexp.bench.arm import eos_of
from specexp.bench.equality import first_difference, near_tie_of
from specexp.bench.experiment import load_prompts, longest_context, use_threads, warn_of_load
from specexp.bench.metrics import metric_named
from specexp.bench.record import PromptRecord
from specexp.bench.statistics import paired_speedup
from specexp.bench.trainer import quiet_libraries
from specexp.config import Config, build_pair
from specexp.config.command import current_result
from specexp.core.runtime import Runtime
from specexp.data import Prompt
from specexp.engines.engine import EngineError, ForeignEngine
from specexp.engines.served_arm import EnginePool
from specexp.models.pair import ModelPair
from specexp.servers.verify import Compared, EndpointReport
from specexp.tracking.names import PLAIN
from specexp.verify.run import folder_of

_ROUNDING = 1e-3
"""A gap between float32 logits that rounding can reverse in passes of different widths. Real errors are larger."""
_FEW = 8  # tokens of a warm-up
_DRAFTS = "with speculation"
"""The name of the arm that speculates."""


def engine_to_verify(config: Config) -> ForeignEngine:
    """Return the configured engine. Raises ConfigError if it cannot be built or does not speculate."""
    engine: ForeignEngine = config.build_engine()
    if engine.deployed_settings() == engine.plain().deployed_settings():
        raise config.checker.error(
            ("engine",),
            f": {type(engine).__name__} does not speculate with these settings, so there is nothing to verify: enable "
            "its speculation",
        )
    return engine


def rehearse_engine(engine: ForeignEngine, config: Config) -> None:
    """Read the prompts and check the engine with models without weights, as :func:`verify_engine` does before a start.

    Raises ConfigError if models or prompts cannot be used, or the engine cannot decode with them.
    """
    pair = build_pair(config, weights=False)
    _checked_prompts(engine, config, pair)


def _checked_prompts(engine: ForeignEngine, config: Config, pair: ModelPair) -> Sequence[Prompt]:
    """Return the prompts, for which the engine is checked."""
    prompts = load_prompts(config, pair).prompts
    with restated(EngineError, lambda error: config.checker.error(("engine",), f": {first_line(error)}")):
        engine.check(pair, longest_context(prompts, pair, config.generation.max_new_tokens))
    return prompts


def verify_engine(config: Config) -> EndpointReport:
    """Compare an engine's answers with and without speculation, and write ``engine.md`` in :func:`folder_of`'s folder.

    Raises ConfigError if models or prompts cannot be used, or the engine does not start or answer.
    """
    import torch

    engine = engine_to_verify(config)
    quiet_libraries()
    use_threads(config.generation.threads)
    warn_of_load(config.get("latency"))
    pair = build_pair(config)
    prompts = _checked_prompts(engine, config, pair)
    generation = config.generation
    most = generation.max_new_tokens
    eos = eos_of(pair.tokenizer, pair.target) if generation.stop_at_eos else frozenset()
    pool = EnginePool(pair)
    plain = engine.plain()
    decode = pair.tokenizer.decode
    records: list[PromptRecord] = []

    @cache
    def exact() -> ModelPair | None:
        if isinstance(pair.target, Runtime):  # llama.cpp's logits cannot be read
            return None
        if config.pair.target_dtype == "float32":
            return pair
        return build_pair(config.with_overrides({"pair.target_dtype": "float32"}, "verify"))

    def answer(one: ForeignEngine, prompt: Prompt) -> list[int]:
        restarts = pool.restarts(one)
        running = pool.take(one, id(one))
        if restarts:  # the first answer is slow, and a drafter must not learn this prompt
            running.answer(one, prompt.token_ids[::-1], min(_FEW, most), frozenset())
        found = running.answer(one, prompt.token_ids, most, eos)
        tokens = tuple(found.token_ids)
        record = PromptRecord(PLAIN if one is plain else _DRAFTS, prompt.prompt_id, prompt.category, token_ids=tokens)
        record = replace(record, turn_tokens=(len(tokens),), steps=found.steps, keyed=False)  # compared() judges tokens
        records.append(replace(record, decode_seconds=found.decode_seconds, decode_tokens=found.decode_tokens))
        return found.token_ids

    def compared(prompt: Prompt) -> Compared:
        on, off = answer(engine, prompt), answer(plain, prompt)
        place = first_difference(on, off)
        text = prompt.turns[0]
        end = next((number for number, token in enumerate(on, 1) if token in eos), len(on))
        if end < len(on):
            why = f"{counted(len(on) - end, 'token')} follow the token that ends the answer"
            return Compared(text, "wrong", len(decode(on[:end])), None, why, decode(off), decode(on), len(off))
        if place is None:
            return Compared(text, "equal", tokens=len(off))
        repeats, gap, tolerance = answer(plain, prompt) == off, None, _ROUNDING
        if repeats and place < min(len(off), len(on)) and (scorer := exact()) is not None:
            with torch.inference_mode():
                logits = scorer.target(torch.tensor([[*prompt.token_ids, *off[:place]]])).logits[0, -1].float()
            gap = float(logits[off[place]] - logits[on[place]])
            tolerance = max(near_tie_of(config.pair.target_dtype, float(logits.max())), _ROUNDING)
        given = (text, len(decode(off[:place])), decode(off), decode(on), len(off), repeats, gap)
        return Compared.judge(*given, source="the target in float32", tolerance=tolerance)

    found = []
    name = type(engine).__name__
    try:
        both = f"both answer {counted(len(prompts), 'prompt')}, with at most {counted(most, 'token')}"
        print(f"{name} {engine.version} starts with speculation and without it; {both}.", flush=True)
        for one in (engine, plain):  # the first answer is slow, and a drafter must not learn a prompt
            pool.take(one, id(one)).answer(one, prompts[0].token_ids[::-1], min(_FEW, most), frozenset())
        for number, prompt in enumerate(prompts, 1):
            found.append(compared(prompt))
            if found[-1].verdict != "equal":
                print(f"prompt {number} of {len(prompts)}: {found[-1].verdict}, {found[-1].why}", flush=True)
    except EngineError as error:
        raise config.checker.error(("engine",), f": {first_line(error)}") from error
    finally:
        pool.close()
    settings = {
        **{"engine": name, "version": engine.version},
        **{"on": engine.deployed_settings(), "off": plain.deployed_settings()},
        **{"target": config.pair.target, "dtype": config.pair.target_dtype, "max_tokens": most},
    }
    rate = metric_named("tokens_per_step").over([one for one in records if one.arm == _DRAFTS])
    ratio = paired_speedup(records, _DRAFTS, PLAIN)
    speed = f"speed over plain decoding: {ratio}, {rate:.2f} tokens per step by the engine's counts"
    report = EndpointReport(found, settings, speed=speed)
    folder = folder_of(config)
    report.write(folder / "engine.md")
    current_result().answer = f"{report.counts()}; {speed}"
    current_result().folder = str(folder)
    return report
