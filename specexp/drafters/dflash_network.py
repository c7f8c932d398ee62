"""The network of a DFlash draft (Chen et al. 2026, arXiv 2602.06036), in the file layout published by z-lab.

Keys and values for the text are computed from hidden states of several target layers. A block consists of the last
token and mask tokens, which attend to the text and to each other. One pass thus predicts all masked positions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import CONFIG_MAPPING, PretrainedConfig
from typing_extensions import override

from specexp.drafters.eagle3_network import DecoderLayer, HeadNetwork, Rotation, filled, read_head
from specexp.drafters.networks import KeyValues


@dataclass(frozen=True)
class DFlashConfig:
    """The contents of a draft's ``config.json``."""

    layer: PretrainedConfig  # Qwen3 configuration for the draft's layers
    state_layers: tuple[int, ...]  # hidden states of the target to read, as indices into transformers' hidden_states
    block_size: int  # number of tokens in a block, of which only the first is known before drafting
    mask_token_id: int  # of the token at all other positions of a block

    @classmethod
    def of(cls, content: Mapping[str, Any], where: object) -> DFlashConfig:
        """Parse the contents of a ``config.json``. Raises ``ValueError`` if they do not describe a DFlash draft."""
        found = {**content, **(content.get("dflash_config") or {})}
        for name in ("hidden_size", "vocab_size", "block_size", "mask_token_id", "num_target_layers"):
            if found.get(name) is None:
                raise ValueError(f"{where}: {name} is missing, which a DFlash draft must have")
        layer = CONFIG_MAPPING["qwen3"](**{k: v for k, v in content.items() if k != "model_type"})
        kinds = {*layer.layer_types, "full_attention"} - {"full_attention"}
        if content.get("model_type", "qwen3") != "qwen3" or kinds:
            wrong = next(iter(kinds), f"model_type {content.get('model_type')!r}")
            raise ValueError(f"{where}: a DFlash draft must have the layers of Qwen3 with full attention, got {wrong}")
        layers, depth = found.get("target_layer_ids"), found["num_target_layers"]
        if layers is None:  # evenly spaced from the second layer to the third from last
            count = layer.num_hidden_layers
            even = [round(1 + number * (depth - 4) / (count - 1)) for number in range(count)] if count > 1 else []
            layers = even or [depth // 2]
        # id 0 is the first layer's output
        return cls(layer, tuple(one + 1 for one in layers), found["block_size"], found["mask_token_id"])


class DFlashNetwork(HeadNetwork):
    """A DFlash draft, which uses the target's embeddings and output layer."""

    def __init__(self, config: DFlashConfig) -> None:
        super().__init__()
        layer = config.layer
        width, eps = layer.hidden_size, layer.rms_norm_eps
        self.config = config
        self.fc = nn.Linear(len(config.state_layers) * width, width, bias=False)
        self.hidden_norm = nn.RMSNorm(width, eps=eps)
        self.layers = nn.ModuleList(DecoderLayer(layer, number) for number in range(layer.num_hidden_layers))
        self.norm = nn.RMSNorm(width, eps=eps)
        self._rotation = Rotation(layer)

    @classmethod
    def load(cls, folder: str | Path) -> DFlashNetwork:
        """Load a published draft from its folder. Raises ``ValueError``, naming the file and tensor at fault."""
        content, given, file = read_head(folder)
        config = DFlashConfig.of(content, file.with_name("config.json"))
        return filled(lambda: cls(config), given, file)

    def append(self, states: torch.Tensor, positions: torch.Tensor, cache: KeyValues) -> None:
        """Append keys and values for positions ``[m]`` of a text, given the target's states ``[1, m, A * H]``."""
        context = self.hidden_norm(self.fc(states))
        turn = self._rotation.turn(positions, states)
        for layer in self.layers:
            _, keys, values = layer.projected(context, turn)
            cache.update(keys, values, layer.number)

    @override
    def forward(self, embedded: torch.Tensor, positions: torch.Tensor, cache: KeyValues) -> torch.Tensor:
        """Return normalized states ``[1, B, H]`` of a block after the cached text, and append the block to the cache.

        Args:
            embedded: ``[1, B, H]`` embeddings of the last token and the mask tokens.
            positions: ``[B]`` positions, starting at the length of the text.
        """
        x, turn = embedded, self._rotation.turn(positions, embedded)
        visible = positions.new_ones((len(positions), int(positions[-1]) + 1), dtype=torch.bool)
        for layer in self.layers:
            x = layer(x, None, turn, visible, cache)
        normed: torch.Tensor = self.norm(x)
        return normed
