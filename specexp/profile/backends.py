"""What is measured in turns: the pair in each backend, other engines' own loops, and what bounds all passes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from specexp.bench.arm import EngineArm
from specexp.bench.experiment import arm_specs
from specexp.bench.live import LiveBackend
from specexp.bench.make_arm import make_arm
from specexp.config import Config, ConfigError, build_pair
from specexp.core.messages import counted, did_you_mean, first_line
from specexp.profile.passes import (
    Commitment,
    DraftPass,
    LanesPass,
    PassSamples,
    TargetPass,
    TimedPass,
    longest_prefix,
    sizes_up_to,
)
from specexp.profile.steps import TimedLoop, TimedSteps

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from specexp.core.runtime import Runtime
    from specexp.data import Prompt
    from specexp.models.pair import ModelPair

PLAIN_ARM = "plain decoding"
READING = "reading the weights once"
PRODUCTS = "matrix products"
DECODE = "llama_decode of a chain"


_MOST_OF_A_LANE = 32
"""Most tokens of a lane in passes that answer several."""


@dataclass
class TimedBackend:
    """A pair in one backend, while it is measured.

    Attributes:
        name: of the backend; empty where it is the only one.
        backend: the models.
        dtypes: of the weights of target and draft; None where there is no draft.
        passes: those of ``target`` and, where there is one, of ``draft``; and ``commit``, where backends are compared.
        arms: plain decoding, then every composition of the file.
    """

    name: str
    backend: LiveBackend
    dtypes: tuple[str, str | None]
    passes: dict[str, PassSamples]
    arms: list[TimedSteps]

    @property
    def stated_prefix(self) -> int:
        """The middle prefix, which its profile is stated at."""
        prefixes = self.passes["target"].prefixes
        return prefixes[(len(prefixes) - 1) // 2]


@dataclass
class Contest:
    """All that is measured in turns.

    Attributes:
        backends: of the pair.
        bounds: passes that are no model's, by what they are.
        loops: plain decoding by other engines.
        left_out: sentences on what is not installed here, or cannot run these models.
        random: whether the weights are, so that what is accepted means nothing.
    """

    backends: list[TimedBackend] = field(default_factory=list)
    bounds: dict[str, PassSamples] = field(default_factory=dict)
    loops: list[TimedLoop] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    random: bool = False


def pair_of(config: Config, pair: ModelPair | None = None) -> ModelPair:
    """The file's pair, or random weights in other sizes where it asks for them.

    Args:
        config: configuration of the experiment.
        pair: the file's pair, loaded or outlined; loaded now if None.

    Raises:
        ConfigError: the models cannot be loaded, or there is none of these sizes.
    """
    pair = build_pair(config) if pair is None else pair
    sizes, draft_sizes = config.get("profile.architecture"), config.get("profile.draft_architecture")
    if sizes:
        target = _random(config, "architecture", pair.target, sizes)
        pair = replace(pair, target=target, name=f"random Llama of {target.num_parameters() / 1e6:.0f} M")
    if draft_sizes and pair.draft is not None:
        pair = replace(pair, draft=_random(config, "draft_architecture", pair.draft, draft_sizes))
    return pair


def contest(
    config: Config,
    pair: ModelPair,
    prompts: Sequence[Prompt],
    folder: Path,
    tell: Callable[[str], None] = lambda line: None,
) -> Contest:
    """Everything that the file wants measured, ready.

    Args:
        config: configuration of the experiment.
        pair: its models.
        prompts: prompts that every arm decodes.
        folder: for files made of the models.
        tell: takes a line for a person as the work goes on.

    Raises:
        ConfigError: the parts do not go with the models, a prefix does not fit, or nothing is left to measure.
    """
    found, wanted = Contest(random=bool(config.get("profile.architecture"))), config.get("profile.backends")
    text = _text(config, prompts)
    for name in dict.fromkeys(wanted) or [""]:
        if name:
            tell(f"profiling: making {name} ready")
        try:
            if name == "openvino":
                found.loops.append(_openvino(config, pair, folder))
                continue
            own = pair
            if name == "llama.cpp":
                own = _as_gguf(pair, folder)
                _beside_llama(found, config, own, text)
            elif name:
                own = replace(pair, mode=name)
            backend = LiveBackend(own)
            check_prefixes(config, backend)
        except ConfigError:
            raise
        except ValueError as error:
            if not name:
                raise
            found.left_out.append(f"{name} is left out: {first_line(error)}")
            continue
        dtypes = _dtype(pair.target), None if pair.draft is None else _dtype(pair.draft)
        passes, arms = _passes(config, backend, text), _arms(config, backend)
        if name:
            passes["commit"] = _samples(config, Commitment(backend.model, text))
        found.backends.append(TimedBackend(name, backend, dtypes, passes, arms))
    if not found.backends:
        reasons = "; ".join(found.left_out) or "openvino alone runs none of our compositions"
        raise ConfigError(
            f"{config.source_of(('profile', 'backends'))}: nothing is left to measure: {reasons}"
        )
    if wanted:
        found.bounds |= _bounds(config, pair, text, found.backends[0].backend.model.synchronize)
    return found


def check_prefixes(config: Config, backend: LiveBackend) -> None:
    """Refuse prefixes that the models' contexts do not hold; the models may have no weights.

    Raises:
        ConfigError: one sentence with what there is room for.
    """
    section = config.get("profile")
    models = [backend.model, *([] if backend.draft is None else [backend.draft])]
    limit = min(model.context_limit for model in models)
    try:
        longest = longest_prefix(limit, section["max_tokens"])
    except ValueError as error:
        source = config.source_of(("profile", "max_tokens"))
        raise ConfigError(f"{source}: {first_line(error)}") from error
    for number, prefix in enumerate(section["prefixes"]):
        if prefix > longest:
            raise config.checker.error(
                ("profile", "prefixes", str(number)),
                f" is {prefix}, and before a pass of up to {counted(section['max_tokens'], 'token')} "
                f"(profile.max_tokens) a context of {limit} has room for {longest} at most: lower it",
            )


def _random(config: Config, key: str, model: PreTrainedModel, sizes: Mapping[str, Any]) -> PreTrainedModel:
    import torch
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoModelForCausalLM

    known = model.config.to_dict()
    if unknown := [name for name in sizes if name not in known]:
        hint = did_you_mean(unknown[0], known)
        raise config.checker.error(
            ("profile", key), f" has {unknown[0]!r}, which its config.json has not{hint}"
        )
    values = {name: value for name, value in known.items() if name != "head_dim"} | dict(sizes)
    try:
        torch.manual_seed(config.get("generation.seed"))
        with torch.device(model.device):
            made: Any = AutoModelForCausalLM.from_config(type(model.config)(**values), dtype=model.dtype)
    except (ValueError, TypeError, RuntimeError, StrictDataclassError) as error:
        why = first_line(error.__cause__ or error)
        raise config.checker.error(("profile", key), f" makes no model: {why}") from error
    return made.eval()


def _as_gguf(pair: ModelPair, folder: Path) -> ModelPair:
    """The pair as files of its own precision, run by llama.cpp."""
    import torch

    from specexp.models.gguf_writing import write_gguf
    from specexp.models.pair import load_pair

    written: dict[str, str] = {}
    for role, model in (("target", pair.target), ("draft", pair.draft)):
        if model is not None:
            file = folder / f"{role}.gguf"
            precision = {torch.bfloat16: "bf16", torch.float16: "f16"}.get(model.dtype, "f32")
            write_gguf(model, pair.tokenizer, file, precision)  # type: ignore[arg-type]
            written[role] = str(file)
    cache = "float32" if pair.target.dtype == torch.float32 else "float16"  # as precise as it has by default
    made = load_pair(written["target"], written.get("draft"), target_dtype=cache, draft_dtype=cache)
    return replace(made, name=pair.name)


def _beside_llama(found: Contest, config: Config, pair: ModelPair, text: NDArray[np.int64]) -> None:
    """Its own simple loop, and its own pass, on the file that our runtime runs."""
    from specexp.engines.llama_cpp_loop import LlamaCppLoop
    from specexp.profile.bounds import LlamaDecode

    file: Any = pair.target.model
    room = text.size + max(config.get("profile.max_tokens"), 256)
    found.loops.append(TimedLoop(LlamaCppLoop(file, pair.target.context_limit)))
    own_pass = LlamaDecode(LlamaCppLoop(file, room), pair.target.vocab_size, text)
    found.bounds[DECODE] = _samples(config, own_pass)


def _dtype(model: PreTrainedModel | Runtime) -> str:
    return str(model.dtype).removeprefix("torch.")


def _openvino(config: Config, pair: ModelPair, folder: Path) -> TimedLoop:
    import torch

    from specexp.engines.openvino_loop import OpenVinoLoop

    return TimedLoop(OpenVinoLoop(pair.target, folder, torch.get_num_threads()))


def _bounds(
    config: Config, pair: ModelPair, text: NDArray[np.int64], wait: Callable[[], None]
) -> dict[str, PassSamples]:
    """What no pass of the target can be faster than, behind no prefix."""
    import torch

    from specexp.profile.bounds import MatrixProducts, WeightReading, matrices_of, torch_products

    matrices = matrices_of(pair.target)
    libraries: dict[str, Callable[[int], Callable[[], object]]] = {
        "torch bfloat16": torch_products(matrices, torch.bfloat16),
        "torch float32": torch_products(matrices, torch.float32),
    }
    if "openvino" in config.get("profile.backends"):
        from specexp.engines.openvino_loop import OpenVinoError, openvino_products

        with suppress(OpenVinoError):  # which is said where its loop is left out
            libraries["OpenVINO"] = openvino_products(matrices, torch.get_num_threads())
    found = {READING: _samples(config, WeightReading(pair.target, text, wait), sizes=[1], prefixes=[0])}
    for name, ready in libraries.items():
        products = MatrixProducts(ready, pair.target.config.vocab_size, text, wait)
        found[f"{PRODUCTS}, {name}"] = _samples(config, products, prefixes=[0])
    return found


def _text(config: Config, prompts: Sequence[Prompt]) -> NDArray[np.int64]:
    """The prompts, over again where they are short."""
    known = np.fromiter(chain.from_iterable(prompt.token_ids for prompt in prompts), dtype=np.int64)
    return np.resize(known, max(config.get("profile.prefixes")) + 1)


def _passes(config: Config, backend: LiveBackend, text: NDArray[np.int64]) -> dict[str, PassSamples]:
    """Of the target and, where there is one, of the draft model, behind the same prefixes."""
    from specexp.drafters import DraftModel

    section = config.get("profile")
    found = {"target": _samples(config, TargetPass(backend.model, text))}
    for lanes in section["lanes"]:
        prefixes = sorted(section["prefixes"])
        found[lanes_of(lanes)] = _samples(
            config,
            LanesPass(backend.model, text, lanes),
            sizes=sizes_up_to(min(section["max_tokens"], _MOST_OF_A_LANE)),
            prefixes=[prefixes[(len(prefixes) - 1) // 2]],
        )
    if backend.draft is not None:
        found["draft"] = _samples(config, DraftPass(DraftModel(backend.draft), text))
    return found


def lanes_of(lanes: int) -> str:
    """What passes of so many lanes are called."""
    return f"{lanes} lanes"


def _samples(
    config: Config,
    timed: TimedPass,
    *,
    sizes: Sequence[int] | None = None,
    prefixes: Sequence[int] | None = None,
) -> PassSamples:
    section = config.get("profile")
    return PassSamples(
        timed,
        sorted(set(section["prefixes"])) if prefixes is None else prefixes,
        sizes_up_to(section["max_tokens"]) if sizes is None else sizes,
        config.get("generation.seed"),
    )


def _arms(config: Config, backend: LiveBackend) -> list[TimedSteps]:
    """Plain decoding, then every composition of the file; their clock is the device's own."""
    plain, *others = arm_specs(config)
    specs = [replace(plain, name=PLAIN_ARM)]
    for spec in others:
        if spec.reference is None and spec.config is not None and spec.config.get("drafter") is not None:
            specs.append(spec)
    arms = [make_arm(replace(spec, latency=None), backend) for spec in specs]
    return [TimedSteps(arm) for arm in arms if isinstance(arm, EngineArm)]
