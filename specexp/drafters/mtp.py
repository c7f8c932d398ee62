"""Multi-token prediction: some targets were trained with a layer that predicts one additional token."""

from __future__ import annotations

from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from typing_extensions import override

from specexp.base.messages import first_line
from specexp.core.runtime import Runtime
from specexp.drafters.eagle import StatesDrafter

_LOADED: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()


class Mtp(StatesDrafter):
    """Drafts with the multi-token-prediction layer in the target's own checkpoint (DeepSeek-AI 2024, section 2.2).

    The layer takes a token's embedding and the target's last hidden state at the previous position. At the next depth,
    its output replaces this state. DeepSeek-V3, GLM-4.5 and others have such a layer, which transformers' ``MtpModel``
    loads. If a checkpoint has several such layers, the first one is used at every depth.

    Args:
        temperature: this, the remaining arguments and the errors are as in :class:`~specexp.drafters.DraftModel`.
    """

    @override
    def use_target(self, target: Runtime) -> None:
        from specexp.core.language_model import final_logits
        from specexp.drafters.eagle_source import EagleSource

        if target.model not in _LOADED:
            _LOADED[target.model] = _layer_of(target)
        layer, model = _LOADED[target.model], target.model
        width = model.config.get_text_config().hidden_size
        limits = target.vocab_size, target.context_limit
        self.draft_with(EagleSource(layer, layer.embed, partial(final_logits, model), width, *limits))


def _layer_of(target: Runtime) -> Any:
    """Return the first multi-token-prediction layer, with the target's embeddings, for use in an ``EagleSource``."""
    config: Any = getattr(target.model, "config", None)
    text = None if config is None else config.get_text_config()
    if text is None or not getattr(text, "num_mtp_layers", None):
        raise ValueError(
            f"Mtp: the configuration of the target must have num_mtp_layers, but that of {type(target.model).__name__} "
            "has none: use another drafter"
        )
    from transformers.modeling_layers import MtpModel

    from specexp.drafters.networks import MtpLayer

    try:
        if target.device.type == "meta":  # a dry run has no weights
            layers = MtpModel(target.model, text.num_mtp_layers)
        else:
            layers = MtpModel.from_pretrained(target.model, device_map={"": target.device})
    except Exception as error:  # the library's errors depend on what is missing
        raise ValueError(f"Mtp: the layer of {config.name_or_path} cannot be read: {first_line(error)}") from error
    kinds = getattr(layers.config, "layer_types", None) or ["full_attention"]
    if kinds[0] != "full_attention":
        raise ValueError(f"Mtp: the layer of {config.name_or_path} must have full attention, but it has {kinds[0]}")
    return MtpLayer(layers).to(target.dtype).eval().requires_grad_(False)
