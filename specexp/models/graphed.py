"""Runs a Hugging Face model in static-shape passes, replayed as CUDA graphs (``pair.mode: graphed``).

There is one :class:`~specexp.models.static_step.Step` for each bucket of lanes, rows and keys. A pass costs one copy to
the device, one replay and one wait. The same code runs uncaptured on any device, for example in tests.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from hashlib import sha256
from pathlib import Path
from time import perf_counter
from typing import Any, cast

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel
from typing_extensions import override

from specexp.base.kernels import CannotRunError, cache_folder
from specexp.base.messages import type_and_line
from specexp.builders import KConfig
from specexp.core.cache import additive_mask, block_mask, layer_masks
from specexp.core.context import Context
from specexp.core.contracts import DeterministicVerifier
from specexp.core.language_model import HuggingFaceRuntime, LanguageModel, final_logits, is_spread, tolerance
from specexp.core.loop import Decoder
from specexp.core.runtime import Growth, PassResult, TokenRequest, TokenRule, inference
from specexp.core.tree import TokenTree, TreeShape
from specexp.drafters import DraftModel
from specexp.models.runtime import tell_once
from specexp.models.static_draft import DraftPlan, DraftStep, GraphedSource
from specexp.models.static_slots import ATTENTIONS, StaticSlots, bucket, key_bucket, with_static_attention
from specexp.models.static_step import (
    MOVES,
    GraphReplay,
    Replayer,
    Shape,
    Step,
    TokenChoice,
    TreeStep,
    Window,
)

_APART = 1e-3
"""The largest allowed difference between the float32 logits of captured and eager passes, relative to their norm."""
MOST_ROWS = 256
"""The maximum number of rows, over all lanes, in a captured step. Larger passes run uncaptured."""
_TIMED = 5  # number of timed replays per attention function when choosing the fastest


class GraphedModel(HuggingFaceRuntime):
    """A runtime with static-shape passes.

    The class ``replayer`` runs the steps. If None, captured graphs are used on CUDA and plain code on other devices.
    """

    kind = "graphed"
    pads_rows = True
    draft_source = GraphedSource
    cache: StaticSlots

    def __init__(
        self, model: PreTrainedModel, replayer: type[Replayer] | None = None, *, self_check: bool = True
    ) -> None:
        super().__init__(model)
        self._static = with_static_attention(model)
        self._kind = replayer or (GraphReplay if self.device.type == "cuda" else Replayer)
        self._kind.reserve(self.device)  # before the cache allocates memory
        self.cache = StaticSlots(model)
        self._storage = self.cache.storage
        self._replayers: dict[Hashable, Replayer] = {}
        self._runs: Counter[str] = Counter()  # number of steps run by each class of replayer
        # for uncaptured passes. Only `explicit` adds soft caps and sinks; models with them are marked as unfit for SDPA
        self.attention = next(iter(ATTENTIONS)) if model._supports_sdpa else "explicit"
        self.fastest: dict[Shape, str] = {}  # the fastest attention function that agrees with `explicit`
        if self_check:
            self._self_check()
            self.cache.truncate(0, 0)
            self._runs.clear()
            if any(self.windows.values()):
                self._replayers.clear()  # the check's windows were shorter

    @classmethod
    @override
    def for_model(cls, model: PreTrainedModel) -> GraphedModel:
        if is_spread(model):
            raise CannotRunError("graphed passes need one device, but the model is spread over several")
        if model.device.type == "cuda":
            check_once(model.device)
        return cls(model)

    @override
    def begin_prefill(self, slot: int, tokens: int) -> None:
        super().begin_prefill(slot, tokens)
        self.cache.flush([slot])

    @override
    def feed(self, slot: int, tokens: NDArray[np.int64], all_logits: bool) -> PassResult:
        past = self.cache.lengths[slot]
        end = past + tokens.size
        rows = torch.arange(past, end, device=self.device)[None]
        visible = torch.arange(end, device=self.device)[None, None] <= rows[..., None]
        self.cache.open_window(slot, 1, end, rows)
        given = torch.from_numpy(tokens)[None].to(self.device)
        states = self.states(given, rows, visible, self.attention)
        self.cache.lengths[slot] = end
        self.passes += 1
        return PassResult([self.head(states)[0]] if all_logits else (), [states[0]] if self.keeps_hidden else ())

    @override
    def computes_tokens(self, verifier: TokenRule) -> bool:
        # a verifier that does not override `scores` reads the logits itself
        return type(verifier).scores is not DeterministicVerifier.scores

    @override
    @inference
    def tree_pass(self, slots: Sequence[int], trees: Sequence[TokenTree]) -> PassResult:
        growths = [self.whole_growth(slot, tree) for slot, tree in zip(slots, trees, strict=True)]
        choice, requests = self._choice(slots, trees)
        step = self._tree_step(slots, growths, choice, requests)
        lanes = [(slot - step.window.first, tree.tokens.size) for slot, tree in zip(slots, trees, strict=True)]
        return PassResult(
            [step.logits[lane, :size] for lane, size in lanes],
            () if step.hidden is None else [step.hidden[lane, :size] for lane, size in lanes],
            [step.tokens(lane, size) for lane, size in lanes] if choice else (),
        )

    @override
    @inference
    def grow(self, slots: Sequence[int], growths: Sequence[Growth]) -> PassResult:
        step = self._tree_step(slots, growths)
        # cloned, because the next replay overwrites logits that a drafter may still need
        return PassResult(
            [
                step.logits[slot - step.window.first, : growth.tokens.size].clone()
                for slot, growth in zip(slots, growths, strict=True)
            ]
        )

    @inference
    def draft(self, lanes: Sequence[tuple[int, Context, Sequence[int]]], plan: DraftPlan) -> DraftStep:
        """Draft whole trees in one replay and wait until it is done.

        For each lane, ``lanes`` has its slot, its sequence, and the tokens to feed before the tree, with the root last.
        """
        pending = bucket(max(len(tokens) for _, _, tokens in lanes))
        rows = pending + sum(level.width for level in plan.levels)
        slots = [slot for slot, _, _ in lanes]
        window = self._window(slots, [self.cache.lengths[slot] + rows for slot in slots])
        replayer = self._replayer((window, pending, plan), lambda: DraftStep(window, pending, plan, self))
        step: Any = replayer.step
        step.clear()
        for slot, context, tokens in lanes:
            step.fill(slot - window.first, self.cache.lengths[slot], tokens)
            self._add_noise(step, slot, context)
        self._replay(replayer, slots)
        self.passes += len(plan.levels)
        self.synchronize()
        return cast("DraftStep", step)

    def _choice(
        self, slots: Sequence[int], trees: Sequence[TokenTree]
    ) -> tuple[TokenChoice | None, list[TokenRequest]]:
        """Return the tokens for a pass to compute, and the requests for them; none unless all lanes share one law."""
        requests = [self.requests[slot] for slot in slots if slot in self.requests]
        laws = {request.verifier.law for request in requests}
        if len(requests) < len(slots) or len(laws) > 1 or None in laws:
            return None, []
        noisy = bool(requests[0].verifier.noise_temperature)
        positions = bucket(max(tree.shape.max_depth for tree in trees) + 1) if noisy else 0
        return TokenChoice(laws.pop(), max(request.learned for request in requests), positions), requests

    def _tree_step(
        self,
        slots: Sequence[int],
        growths: Sequence[Growth],
        choice: TokenChoice | None = None,
        requests: Sequence[TokenRequest] = (),
    ) -> TreeStep:
        """Replay a step over new rows of distinct slots. Its results are valid until the step is replayed again."""
        widths = [growth.visible.shape[1] for growth in growths]
        ends = [self.cache.lengths[slot] + width for slot, width in zip(slots, widths, strict=True)]
        window = self._window(slots, ends)
        rows = bucket(max(growth.tokens.size for growth in growths))
        shape = Shape(window, rows, bucket(max(widths), 8), bool(self.keeps_hidden))
        verifier = requests[0].verifier if requests else None
        replayer = self._replayer((shape, choice), lambda: TreeStep(shape, self, choice, verifier))
        step: Any = replayer.step
        step.clear()
        for slot, growth in zip(slots, growths, strict=True):
            step.fill(slot - window.first, self.cache.lengths[slot], growth)
        for slot, request in zip(slots, requests, strict=bool(requests)):
            self._add_noise(step, slot, request.context)
        self._replay(replayer, slots)
        return cast("TreeStep", step)

    def _window(self, slots: Sequence[int], ends: Sequence[int]) -> Window:
        """Grow the cache to hold rows up to ``ends`` in the slots. Return the window that a step over them reads."""
        cache, first = self.cache, min(slots)
        lanes = bucket(max(slots) - first + 1)
        cache.reserve(0, first + lanes)
        cache.reserve(max(ends))
        if cache.storage is not self._storage:  # captured graphs use the old storage
            self._replayers.clear()
            self._storage = cache.storage
        return Window(first, lanes, min(key_bucket(max(ends)), cache.capacity))

    def _replayer(self, key: Hashable, make: Callable[[], Step]) -> Replayer:
        """Return the replayer of a step. The step is created and captured when it is first used."""
        replayer = self._replayers.get(key)
        if replayer is None:
            step = make()
            small = step.logits.shape[0] * step.logits.shape[1] <= MOST_ROWS
            kind = self._kind if small else Replayer
            if isinstance(step, TreeStep) and self._kind.measures:
                step.attention = self._fastest(step.shape, kind)
            try:
                replayer = kind(step)
            except Exception as failure:  # a kernel of a verifier or drafter may wait for the device
                if isinstance(step, TreeStep) and step.choice is None:
                    raise  # the model itself cannot be captured
                name = self.model.config.model_type
                tell_once(f"a step of the {name} model runs uncaptured ({type_and_line(failure)})")
                replayer = Replayer(step)
            self._replayers[key] = replayer
        return replayer

    def _add_noise(self, step: Step, slot: int, context: Context) -> None:
        if positions := step.noise.shape[1]:
            noise = context.target_noise(len(context), positions, self.vocab_size, self.device)
            step.noise[slot - step.window.first].copy_(noise)

    def _replay(self, replayer: Replayer, slots: Sequence[int]) -> None:
        for slot in slots:
            if len(self.cache.moves.get(slot, ())) > MOVES:
                self.cache.flush([slot])
            replayer.step.stage(slot - replayer.step.window.first, self.cache.moves.pop(slot, []))
        replayer.replay()
        self.passes += 1
        self._runs[type(replayer).__name__] += 1

    def _fastest(self, shape: Shape, kind: type[Replayer]) -> str:
        """Return the name of the fastest attention function for a shape, among those that agree with ``explicit``."""
        if shape in self.fastest:
            return self.fastest[shape]
        oracle, seconds = torch.empty(0), {}
        for name in ("explicit", *(name for name in ATTENTIONS if name != "explicit")):
            step = TreeStep(shape, self)
            step.attention = name
            try:
                replayer = kind(step)
                replayer.replay()
            except Exception:  # FlexAttention raises various errors for shapes that it does not support
                continue
            logits = step.logits.float()
            oracle = logits.clone() if name == "explicit" else oracle
            if not float((logits - oracle).norm() / oracle.norm()) <= tolerance(self.dtype):
                continue
            self.synchronize()
            started = perf_counter()
            for _ in range(_TIMED):
                replayer.replay()
            self.synchronize()
            seconds[name] = perf_counter() - started
        self.fastest[shape] = min(seconds, key=lambda name: seconds[name])
        return self.fastest[shape]

    def states(
        self, tokens: torch.Tensor, positions: torch.Tensor, visible: torch.Tensor, attention: str
    ) -> torch.Tensor:
        """Run the model's own layers over tokens ``[lanes, rows]``, in the cache's open window. Each row attends to the
        keys in ``visible`` ``[lanes, rows, keys]``. Return the input ``[lanes, rows, d]`` of the output layer.
        """
        additive = partial(additive_mask, dtype=self.dtype)
        states: torch.Tensor = self._static.base_model(
            input_ids=tokens,
            position_ids=positions,
            attention_mask=layer_masks(
                visible[:, None],
                self.windows,
                (lambda one: block_mask(additive(one))) if attention == "flex" else additive,
            ),
            past_key_values=self.cache,
            use_cache=True,
            attention=attention,
        )[0]
        return states

    def head(self, states: torch.Tensor) -> torch.Tensor:
        """Return logits ``[..., V]`` for inputs ``[..., d]`` of the output layer."""
        return final_logits(self._static, states)

    def nbytes(self) -> int:
        """Return the size in bytes of the cache and all steps' buffers. On the meta device, this predicts the size."""
        return self.cache.nbytes() + sum(one.step.nbytes() for one in self._replayers.values())

    @override
    def keep_hidden(self, wanted: bool | tuple[int, ...]) -> None:
        if isinstance(wanted, tuple):
            super().keep_hidden(wanted)
        self.keeps_hidden = bool(wanted)

    @override
    def provenance(self) -> dict[str, str]:
        chosen = ", ".join(sorted(set(self.fastest.values()) or {self.attention}))
        steps, replayed = self._runs.total(), self._runs[self._kind.__name__]
        share = f"{replayed / steps:.0%} of {steps} steps" if steps else "no step yet"
        return {**super().provenance(), "attention": chosen, "replayed": share}

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        return partial(GraphedModel, self_check=False), (self.model, self._kind)


# The code below is a self-test of drivers and libraries that takes seconds the first time a GPU is used.


def check_once(device: torch.device) -> None:
    """Run :func:`check_device`, unless it has already passed with this device, driver and libraries."""
    driver = Path("/proc/driver/nvidia/version")  # torch does not expose the driver version
    versions = [
        str(torch.cuda.get_device_properties(device)),
        driver.read_text() if driver.exists() else "",
        torch.version.cuda,
        torch.__version__,
        transformers.__version__,
    ]
    content = json.dumps(versions)
    passed = cache_folder("graphed") / f"{sha256(content.encode()).hexdigest()[:16]}.json"
    if not passed.exists():
        check_device(device)
        passed.parent.mkdir(parents=True, exist_ok=True)
        passed.write_text(content)


@inference
def check_device(device: torch.device, replayer: type[Replayer] | None = None) -> None:
    """Compare captured passes and drafts of a small model with results from the model's own code.

    Raises:
        CannotRunError: captured passes fail or give different results.
    """
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.3,
    )
    with torch.random.fork_rng(devices=[]):  # keeps the random state of the run
        torch.manual_seed(0)
        model = LlamaForCausalLM(config).to(device).eval()
    try:
        own = LanguageModel(model, self_check=False)
        captured = GraphedModel(model, replayer, self_check=False)
        apart = max(_difference(captured, own, seed) for seed in range(3))
        # each draft model equals the target, so both runs must need the same number of steps
        results = [
            Decoder(LanguageModel(model, self_check=False), DraftModel(draft), KConfig([2, 2])).generate(
                [1, 2, 3], max_new_tokens=24
            )
            for draft in (captured, own)
        ]
    except Exception as error:  # drivers, kernels and captures raise many kinds of errors
        raise CannotRunError(f"graphed passes do not run on {device} ({type_and_line(error)})") from error
    if not apart <= _APART:
        raise CannotRunError(
            f"graphed passes on {device} differ from the model's own code by {apart:.2g} of the logits' norm"
        )
    if results[0].steps != results[1].steps:
        raise CannotRunError(f"graphed drafts on {device} differ from drafts of the model's own code")


def _difference(captured: GraphedModel, own: LanguageModel, seed: int) -> float:
    """Return the relative difference between the runtimes' logits for a tree, after a commit that moves rows.

    Outputs are overwritten with NaN before the replay. Waiting for the device during the replay raises an error.
    """
    rng = np.random.default_rng(seed)
    shape = TreeShape([-1, 0, 0, 1, 1, 2, 3], [-1, 0, 1, 0, 1, 0, 0])
    prompt = rng.integers(0, 512, 20).tolist()
    tree = TokenTree(shape, rng.integers(0, 512, 7))
    for runtime in (captured, own):
        runtime.cache.truncate(0, 0)
        runtime.prefill(0, prompt)
        runtime.tree_pass([0], [tree])
        runtime.commit(0, [0, 2, 5])
    for replayer in captured._replayers.values():
        for output in replayer.step.outputs():
            output.fill_(torch.nan if output.is_floating_point() else 255)
    on_cuda = captured.device.type == "cuda"
    if on_cuda:
        torch.cuda.set_sync_debug_mode("error")
    try:
        found = captured.tree_pass([0], [tree]).logits[0]
    finally:
        if on_cuda:
            torch.cuda.set_sync_debug_mode("default")
    captured.synchronize()
    expected = own.tree_pass([0], [tree]).logits[0]
    return float((found - expected).norm() / expected.norm())
