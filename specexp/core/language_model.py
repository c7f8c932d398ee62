"""Runs a Hugging Face causal LM with a slot cache: prefills, tree passes and commits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel
from typing_extensions import override

from specexp.base.messages import counted
from specexp.core.cache import (
    SlotCache,
    additive_mask,
    check_attention,
    context_limit,
    layer_masks,
    layer_windows,
    windowed,
)
from specexp.core.runtime import Growth, PassResult, Runtime, check_model
from specexp.core.tree import TokenTree

_LOADED: WeakKeyDictionary[torch.nn.Module, tuple[str, Callable[[Any, str], Runtime]]] = WeakKeyDictionary()


def set_runtime(model: torch.nn.Module, mode: str, make: Callable[[Any, str], Runtime]) -> None:
    """Set the mode of a model, and the function that makes its runtime if it is passed instead of a runtime."""
    _LOADED[model] = mode, make


def mode_of(model: object) -> str:
    """Return the mode that :func:`set_runtime` set for a model, or ``auto``."""
    return _LOADED[model][0] if isinstance(model, torch.nn.Module) and model in _LOADED else "auto"


def runtime_for(model: PreTrainedModel | Runtime) -> Runtime:
    """Return a runtime for a model in the mode that :func:`set_runtime` set, with an empty cache.

    Without one it is a :class:`LanguageModel`, which needs nothing above this package;
    :func:`specexp.models.runtime.runtime_of` chooses among all modes. A runtime is returned unchanged.

    Raises:
        ValueError: the model cannot be run in this mode.
    """
    if isinstance(model, Runtime):
        return model
    if not isinstance(model, torch.nn.Module) or model not in _LOADED:
        return LanguageModel(model)
    mode, make = _LOADED[model]
    return make(model, mode)


class HuggingFaceRuntime(Runtime):
    """A Hugging Face causal LM with its checks, device, dtype and vocabulary.

    Subclasses add the passes, and an argument ``self_check``: whether to compare one small tree pass with the model's
    own passes over the same tokens.

    Args:
        model: in eval mode, loaded with ``attn_implementation`` ``sdpa`` or ``eager``.

    Raises:
        ValueError: the model is in training mode, or not a decoder with full attention or sliding windows.
        CannotRunError: the model cannot be run by the subclass, or fails the self-check.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        check_model(model)
        check_attention(model.config)
        check_causal(model)
        self.model = model
        self._check_not_training()
        self.device = compute_device(model)
        self.dtype = model.dtype
        self.vocab_size: int = model.config.get_text_config().vocab_size
        self.context_limit = context_limit(model.config)
        self.windows = layer_windows(model.config)
        self.row_order = getattr(model.config, "row_order", self.row_order)

    @classmethod
    @override
    def for_model(cls, model: PreTrainedModel) -> HuggingFaceRuntime:
        return cls(model)

    @override
    @torch.inference_mode()
    def plain_logits(self, token_ids: Sequence[int]) -> torch.Tensor:
        """Implement :meth:`Runtime.plain_logits` with the model's own pass, without a mask or cache."""
        tokens = torch.tensor([list(token_ids)], device=self.device)
        logits: torch.Tensor = self.model(input_ids=tokens, use_cache=False).logits
        return logits[0, -1]

    def _check_not_training(self) -> None:
        if self.model.training:  # dropout would change its logits
            raise ValueError(f"{_name(self.model)} is in training mode: call model.eval()")

    def _self_check(self, remedy: str = "run it with pair.mode eager") -> None:
        with self._short_windows():
            self.check_tree(_name(self.model), tolerance(self.dtype), remedy)

    @contextmanager
    def _short_windows(self) -> Iterator[None]:
        """Shorten all windows to three tokens, so that the small tree of the self-check straddles their edges."""
        windows = self.windows
        found = [part.config for part in self.model.modules() if hasattr(part, "config")]
        configs = {id(one): one for config in found for one in (config, config.get_text_config())}.values()
        slides = any(windows.values())
        sizes = [(one, one.sliding_window) for one in configs if slides and getattr(one, "sliding_window", None)]
        self.windows = {kind: size and 3 for kind, size in windows.items()}
        try:
            for config, _ in sizes:
                config.sliding_window = 3
            yield
        finally:
            self.windows = windows
            for config, size in sizes:
                config.sliding_window = size


class LanguageModel(HuggingFaceRuntime):
    """Any decoder-only ``AutoModelForCausalLM`` with full attention or sliding windows, prepared for tree passes."""

    kind = "eager"
    prefill_chunk = 1024
    cache: SlotCache

    def __init__(self, model: PreTrainedModel, *, self_check: bool = True) -> None:
        super().__init__(model)
        self.cache = self._empty_cache()
        self._additive = partial(additive_mask, dtype=self.dtype)
        self._masks: dict[str | None, torch.Tensor] = {}
        self._masked: NDArray[np.bool_] | None = None  # the mask in the buffers
        if self_check and self.device.type != "meta":  # a dry run has no weights
            attention = model.config._attn_implementation
            self._self_check(f"use a decoder with learned or rotary positions (attention is {attention!r})")
            self.cache = self._empty_cache()  # frees the check's rows
            self._masks = {}  # its windows were shorter

    @override
    def feed(self, slot: int, tokens: NDArray[np.int64], all_logits: bool) -> PassResult:
        past, size = self.cache.lengths[slot], tokens.size
        rows = torch.arange(past, past + size, device=self.device)
        visible = torch.arange(past + size, device=self.device)[None] <= rows[:, None]
        logits = self._forward(
            [slot],
            torch.from_numpy(tokens)[None].to(self.device),
            rows[None],
            layer_masks(visible[None, None], self.windows, self._additive),
            logits_to_keep=0 if all_logits else 1,
        )
        self.cache.commit(slot, range(size))
        return PassResult([logits[0]] if all_logits else (), self._states_of([size]))

    @override
    @torch.inference_mode()
    def tree_pass(self, slots: Sequence[int], trees: Sequence[TokenTree]) -> PassResult:
        self.cache.reserve(0, max(slots) + 1)
        for slot in slots:
            self.cache.uncommitted[slot] = 0
        growths = [self.whole_growth(slot, tree) for slot, tree in zip(slots, trees, strict=True)]
        logits = self._forward(slots, *self._inputs(slots, growths))
        rows = [slice(one.tokens.size) if one.pass_rows is None else one.pass_rows for one in growths]
        states = self._states_of([one.tokens.size for one in growths])
        hidden = [one[own] for one, own in zip(states, rows, strict=bool(states))]
        return PassResult([logits[index, own] for index, own in enumerate(rows)], hidden)

    @override
    def keep_hidden(self, wanted: bool | tuple[int, ...]) -> None:
        if isinstance(wanted, tuple) and not hasattr(self.model.base_model, "layers"):
            super().keep_hidden(wanted)
        self.keeps_hidden = wanted

    @override
    @torch.inference_mode()
    def grow(self, slots: Sequence[int], growths: Sequence[Growth]) -> PassResult:
        self.cache.reserve(0, max(slots) + 1)
        logits = self._forward(slots, *self._inputs(slots, growths))
        sizes = [growth.tokens.size for growth in growths]
        for slot, size in zip(slots, sizes, strict=True):
            self.cache.uncommitted[slot] += size
        return PassResult([logits[index, :size] for index, size in enumerate(sizes)], self._states_of(sizes))

    def _inputs(self, slots: Sequence[int], growths: Sequence[Growth]) -> tuple[torch.Tensor, torch.Tensor, Any]:
        """Return the tokens, positions and mask for :meth:`_forward`."""
        pasts = [self.cache.lengths[slot] for slot in slots]
        ends = [past + growth.visible.shape[1] for past, growth in zip(pasts, growths, strict=True)]
        sizes = [growth.tokens.size for growth in growths]
        rows = max(sizes)
        keys = max(end - size for end, size in zip(ends, sizes, strict=True)) + rows
        self._make_room(keys, max(slots) + 1)
        if len(slots) == 1:
            growth, past = growths[0], pasts[0]
            tokens = torch.from_numpy(growth.tokens)[None].to(self.device)
            positions = torch.from_numpy(growth.depths)[None].to(self.device) + past
            mask = self._whole_mask(past, growth.visible)
        else:
            token_rows = np.zeros((len(slots), rows), dtype=np.int64)
            position_rows = np.zeros_like(token_rows)
            visible = np.zeros((len(slots), 1, rows, keys), dtype=np.bool_)
            for index, (growth, past, end, size) in enumerate(zip(growths, pasts, ends, sizes, strict=True)):
                token_rows[index, :size] = growth.tokens
                position_rows[index] = past
                position_rows[index, :size] += growth.depths
                visible[index, 0, :, :past] = True
                visible[index, 0, :size, past:end] = growth.visible
                # padding rows get a key, so that no softmax is empty
                visible[index, 0, size:, end - size] = True
            tokens = torch.from_numpy(token_rows).to(self.device)
            positions = torch.from_numpy(position_rows).to(self.device)
            mask = layer_masks(torch.from_numpy(visible).to(self.device), self.windows, self._additive)
        return tokens, positions, mask

    @override
    def check_request(self, prompt: Sequence[int], max_new_tokens: int) -> None:
        self._check_not_training()
        super().check_request(prompt, max_new_tokens)

    @property
    @override
    def placement(self) -> str:
        return placement(self.model)

    def _empty_cache(self) -> SlotCache:
        return SlotCache(self.model.config, self.dtype, self.device)

    def _make_room(self, rows: int, slots: int) -> None:
        # growing copies the cache, so reserve half as much again
        spare = max(256, rows // 2) if rows > self.cache.capacity else 0
        self.cache.reserve(rows + spare, slots)

    def _whole_mask(self, past: int, visible: NDArray[np.bool_]) -> Any:
        """Return the additive mask ``[1, 1, rows, past + ahead]`` of one sequence, or one for each layer type.

        It is a view of a reused buffer, so no pass allocates memory proportional to the context. In the buffer, zeros
        for committed tokens end at column ``begin``, where the mask of the uncommitted rows starts. With a window, only
        the last committed tokens have zeros.

        Args:
            past: number of committed tokens.
            visible: ``[rows, ahead]``, true where a row may attend to an uncommitted row, which may be itself.
        """
        rows, ahead = visible.shape
        known, width = next(iter(self._masks.values())).shape if self._masks else (0, 0)
        begin = width - known
        if max(rows, ahead) > known or past > begin:
            known, begin = max(rows, ahead, known), max(self.cache.capacity, begin)
            none = torch.zeros((known, begin + known), dtype=torch.bool, device=self.device)
            self._masks = {kind: self._additive(none if size else ~none) for kind, size in self.windows.items()}
            self._masked = None
        if self._masked is not visible:
            block = torch.from_numpy(visible).to(self.device)
            for kind, window in self.windows.items():
                back = min(window or 0, begin)
                seen = windowed(torch.cat((block.new_ones(rows, back), block), dim=1), window)
                self._masks[kind][:rows, begin - back : begin + ahead] = self._additive(seen)
            self._masked = visible  # a static tree that is fed again has the same ancestor mask
        columns = slice(begin - past, begin + ahead)
        masks = {kind: mask[None, None, :rows, columns] for kind, mask in self._masks.items()}
        return masks.get(None, masks)

    def _forward(
        self,
        slots: Sequence[int],
        tokens: torch.Tensor,  # [b, rows]
        positions: torch.Tensor,  # [b, rows]
        mask: Any,  # [b, 1, rows, past + rows], or such a mask for each layer type
        **kwargs: Any,
    ) -> torch.Tensor:
        self.cache.open(slots)
        self.passes += 1
        with ExitStack() as hooks:
            self._noted: list[torch.Tensor] = []  # [b, rows, d] each
            for module in self._noted_modules():
                hooks.callback(module.register_forward_hook(self._note).remove)
            output = self.model(
                input_ids=tokens,
                position_ids=positions,
                attention_mask=mask,
                past_key_values=self.cache,
                use_cache=True,
                **kwargs,
            )
        logits: torch.Tensor = output.logits
        return logits

    def _noted_modules(self) -> list[torch.nn.Module]:
        """Return the modules that produce the hidden states to keep."""
        if not self.keeps_hidden:
            return []
        body = self.model.base_model
        if not isinstance(self.keeps_hidden, tuple):  # the body's output, before the output layer selects rows
            return [body]
        return [body.layers[one - 1] if one else self.model.get_input_embeddings() for one in self.keeps_hidden]

    def _note(self, module: object, arguments: object, output: Any) -> None:
        self._noted.append(output if isinstance(output, torch.Tensor) else output[0])

    def _states_of(self, sizes: Sequence[int]) -> list[torch.Tensor]:
        """Return the hidden states of each sequence's first rows in the last pass; none if they are not kept."""
        return [
            torch.cat([states[index, :size].to(self.device) for states in self._noted], dim=-1)
            for index, size in enumerate(sizes if self.keeps_hidden else ())
        ]


def _name(model: PreTrainedModel) -> str:
    """Return a model's name in messages: by its architecture, if its configuration has one."""
    return f"the {model.config.model_type} model" if model.config.model_type else "the model"


def check_causal(model: PreTrainedModel) -> None:
    """Raise ``ValueError`` if a model's tokens attend to later tokens, as in an encoder."""
    causal = all(getattr(part, "is_causal", True) for part in model.modules())
    if getattr(model.config, "is_decoder", True) is False and not causal:
        raise ValueError(f"{_name(model)} is an encoder: use a causal model")


def final_logits(
    model: PreTrainedModel, states: torch.Tensor, output: Callable[[torch.Tensor], torch.Tensor] | None = None
) -> torch.Tensor:
    """Return the logits ``[..., V]`` of last hidden states ``[..., H]``, by an output layer or by the model's own.

    The model's final scale, as in Granite, and soft cap, as in Gemma 2, are applied.
    """
    config = model.config.get_text_config()
    logits = (output or model.get_output_embeddings())(states) / getattr(config, "logits_scaling", 1.0)
    cap: float | None = getattr(config, "final_logit_softcapping", None)
    return logits if cap is None else torch.tanh(logits / cap) * cap


def tolerance(dtype: torch.dtype) -> float:
    """Return the largest allowed :func:`tree_error` for a dtype."""
    return 0.01 if dtype in (torch.float32, torch.float64) else 0.15


def is_spread(model: PreTrainedModel) -> bool:
    """Return whether a model's weights are spread over several devices, by ``device_map`` or tensor parallelism."""
    return getattr(model, "hf_device_map", None) is not None or _processes(model) > 1


def _processes(model: PreTrainedModel) -> int:
    return getattr(model, "_tp_size", None) or 1


def compute_device(model: PreTrainedModel) -> torch.device:
    """Return the device of a model's inputs and logits."""
    if not is_spread(model) or _processes(model) > 1:
        own: torch.device = model.device
        return own
    # as in accelerate: the first device that computes. Modules on cpu and disk are moved when they run
    placed = [place for place in model.hf_device_map.values() if str(place) not in ("cpu", "disk")]
    return torch.device(placed[0] if placed else "cpu")


def placement(model: PreTrainedModel) -> str:
    """Return the devices that hold a model's weights, e.g. ``cuda:0`` or ``cuda:0 (20 modules), cpu (1 module)``."""
    if _processes(model) > 1:
        return f"{model.device} (tensor parallel over {_processes(model)} processes)"
    if not is_spread(model):
        return str(model.device)
    names = [f"cuda:{place}" if isinstance(place, int) else str(place) for place in model.hf_device_map.values()]
    counts = {name: names.count(name) for name in sorted(set(names), key=names.index)}
    return ", ".join(f"{name} ({counted(count, 'module')})" for name, count in counts.items())
