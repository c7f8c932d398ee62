"""``python -m specexp.verify`` of a file with an ``engine:``: the engine with speculation against itself without."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from specexp.bench.equality import NEAR_TIE, first_difference
from specexp.config import apply_overrides, build_engine, build_generation, build_pair
from specexp.core.messages import first_line
from specexp.verify.endpoint import Compared, EndpointReport, judged

_ROUNDING = 1e-3
"""Gap of float32 logits that two programs' passes of different width may close; mistakes are larger."""

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from specexp.config import Config
    from specexp.data import Prompt
    from specexp.engines.engine import ForeignEngine
    from specexp.models.pair import ModelPair


def engine_to_verify(config: Config) -> ForeignEngine:
    """The file's engine.

    Raises:
        ConfigError: It cannot be built, or does not speculate.
    """
    engine: ForeignEngine = build_engine(config)
    if engine.deployed_settings() == engine.plain().deployed_settings():
        raise config.checker.error(
            ("engine",),
            f": {type(engine).__name__} does not speculate as it is set, so there is nothing to prove: give it "
            "settings that do",
        )
    return engine


def verify_engine(config: Config) -> EndpointReport:
    """Ask it for every prompt with speculation and without; write ``<output>/verify/<name>/engine.md``.

    Raises:
        ConfigError: The file, its models or prompts cannot be used, or the engine does not start or answer.
    """
    from specexp.bench.arm import eos_of
    from specexp.bench.experiment import load_prompts, use_threads
    from specexp.engines.engine import EngineError
    from specexp.engines.served_arm import EnginePool
    from specexp.models.gguf import is_gguf

    engine = engine_to_verify(config)
    use_threads(config)
    pair = build_pair(config)
    prompts = load_prompts(config, pair).prompts
    exact: ModelPair | None = pair
    if is_gguf(config.get("pair.target")):
        exact = None  # its logits are not looked at
    elif config.get("pair.target_dtype") != "float32":
        exact = build_pair(apply_overrides(config, {"pair.target_dtype": "float32"}, "verify"))
    generation = build_generation(config)
    eos = eos_of(pair.tokenizer, pair.target) if generation.stop_at_eos else frozenset()
    tolerance = max(NEAR_TIE[config.get("pair.target_dtype")], _ROUNDING)
    pool = EnginePool(pair)

    def ask(one: ForeignEngine, prompt: Prompt) -> list[int]:
        running = pool.take(one, id(one))
        return running.answer(one, prompt.token_ids, generation.max_new_tokens, eos).token_ids

    try:
        plain = engine.plain()
        found = [
            _compared(prompt, ask(engine, prompt), partial(ask, plain, prompt), pair, exact, tolerance)
            for prompt in prompts
        ]
    except EngineError as error:
        raise config.checker.error(("engine",), f": {first_line(error)}") from error
    finally:
        pool.close()
    asked = {
        "engine": type(engine).__name__,
        "version": engine.version,
        "on": engine.deployed_settings(),
        "off": engine.plain().deployed_settings(),
        "target": config.get("pair.target"),
        "max_tokens": generation.max_new_tokens,
    }
    report = EndpointReport(found, asked)
    report.write(Path(config.get("output"), "verify", config.get("name"), "engine.md"))
    return report


def _compared(
    prompt: Prompt,
    on: Sequence[int],
    plain: Callable[[], Sequence[int]],
    pair: ModelPair,
    exact: ModelPair | None,
    tolerance: float,
) -> Compared:
    """The verdict of a prompt, token by token."""
    off, decode = plain(), pair.tokenizer.decode
    place = first_difference(tuple(on), tuple(off))
    if place is None:
        return Compared(decode(list(prompt.token_ids)), "equal", tokens=len(off))
    common = len(decode(list(off[:place])))
    given = (decode(list(prompt.token_ids)), common, decode(list(off)), decode(list(on)), len(off))
    repeats = list(plain()) == list(off)
    gap = None
    if repeats and exact is not None and place < min(len(off), len(on)):
        with torch.inference_mode():
            logits = exact.target(torch.tensor([[*prompt.token_ids, *off[:place]]])).logits[0, -1].float()
        gap = float(logits[off[place]] - logits[on[place]])
    return judged(*given, repeats=repeats, gap=gap, source="the target in float32", tolerance=tolerance)
