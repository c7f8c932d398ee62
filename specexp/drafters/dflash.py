"""DFlash: one pass over a block of mask tokens drafts all depths (Chen et al. 2026, arXiv 2602.06036)."""

from __future__ import annotations

from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from typing_extensions import override

from specexp.core.runtime import Runtime
from specexp.drafters.eagle import StatesDrafter
from specexp.drafters.eagle3 import folder_of
from specexp.drafters.ranking import Temperature, TopK, TopP

_JOINED: WeakKeyDictionary[Any, dict[Any, Any]] = WeakKeyDictionary()


class DFlash(StatesDrafter):
    """Drafts with a DFlash model published for the target, using hidden states of several target layers.

    All nodes at a given depth have the same candidates. A tree has at most ``block_size`` - 1 levels.

    Args:
        head: folder with ``config.json`` and ``model.safetensors``, or a hub id.
        temperature: this, the remaining arguments and the errors are as in :class:`~specexp.drafters.DraftModel`.
    """

    def __init__(
        self,
        head: str,
        temperature: Temperature | None = None,
        top_k: TopK | None = None,
        top_p: TopP | None = None,
        coupled: bool = False,
    ) -> None:
        super().__init__(temperature, top_k, top_p, coupled)
        self._head = head

    @override
    def use_target(self, target: Runtime) -> None:
        from specexp.core.language_model import final_logits
        from specexp.drafters.dflash_network import DFlashNetwork
        from specexp.drafters.parallel import DFlashSource

        known = _JOINED.setdefault(target.model, {})
        own = target.model.config.get_text_config()
        if self._head not in known:
            network = DFlashNetwork.load(folder_of(self._head))
            layers, layer = network.config.state_layers, network.config.layer
            for name in ("hidden_size", "vocab_size"):
                wanted, has = getattr(own, name), getattr(layer, name)
                if wanted != has:
                    raise ValueError(f"{self._head}: {name} must be {wanted} for this target, got {has}")
            if max(layers) > own.num_hidden_layers:
                raise ValueError(
                    f"{self._head}: target_layer_ids must be below {own.num_hidden_layers}, got {max(layers) - 1}"
                )
            known[self._head] = network.to(device=target.device, dtype=target.dtype)
        network = known[self._head]
        self.wants_hidden = layers = network.config.state_layers
        model, width = target.model, len(layers) * own.hidden_size
        shared = model.get_input_embeddings(), partial(final_logits, model)
        self.draft_with(DFlashSource(network, *shared, width, target.vocab_size, target.context_limit))
