"""Self-drafting: the target's first layers draft for the whole model (LayerSkip, Elhoushi et al. 2024)."""

from __future__ import annotations

from copy import copy
from typing import Annotated, Any

from pydantic import Field
from typing_extensions import override

from specexp.core.runtime import Runtime
from specexp.drafters.draft_model import SelfDrafter
from specexp.drafters.ranking import Temperature, TopK, TopP


class EarlyExit(SelfDrafter):
    """Drafts with the target's first layers, followed by its final norm and output layer.

    It uses the target's weights without further training. The acceptance rate depends on whether the target was trained
    for early exits. The draft has its own KV cache, whereas the published methods share that of the lower layers.

    Args:
        layers: number of the target's first layers to draft with.
        temperature: this, the remaining arguments and the errors are as in :class:`~specexp.drafters.DraftModel`.
    """

    def __init__(
        self,
        layers: Annotated[int, Field(ge=1)],
        temperature: Temperature | None = None,
        top_k: TopK | None = None,
        top_p: TopP | None = None,
        coupled: bool = False,
    ) -> None:
        super().__init__(temperature, top_k, top_p, coupled)
        self.layers = layers
        self._target: Any = None

    @override
    def use_target(self, target: Runtime) -> None:
        if target.model is None or target.model is not self._target:
            runtime: Any = type(target)  # the target's runtime runs its lower layers too
            self.draft_with(runtime(_exit_of(target.model, self.layers, type(target).__name__)))
            self._target = target.model


def _exit_of(model: Any, layers: int, runtime: str) -> Any:
    """Return a model that shares the first layers of another. Raises ``ValueError`` if there are too few layers."""
    body: Any = getattr(model, "base_model", None)
    own = getattr(body, "layers", None)
    if own is None:
        raise ValueError(
            "EarlyExit: the target must have one list of layers, got "
            f"{runtime if model is None else type(model).__name__}: use another drafter"
        )
    if layers >= len(own):
        raise ValueError(
            f"EarlyExit: layers must be from 1 to {len(own) - 1}, got {layers} (the target has {len(own)})"
        )
    lower, short = copy(model), copy(body)
    for one in (lower, short):  # shallow copies: the changes below must not affect the target
        one._modules = dict(one._modules)
        one.config = copy(model.config)
        one.config.num_hidden_layers = layers
        if getattr(one.config, "layer_types", None) is not None:
            one.config.layer_types = one.config.layer_types[:layers]
    short._modules["layers"] = own[:layers]
    lower._modules[model.base_model_prefix] = short
    return lower
