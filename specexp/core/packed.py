"""The storage format of the embedded models: 8 bits per weight, with one scale per output row.

The 8-bit values define the model. They are unpacked to bfloat16 and converted to other precisions from there.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

FILE = "packed.safetensors"
"""The weights file in a model's folder. If it were named ``model.safetensors``, other programs would misread it."""
DRAFT_VOCABULARY = "draft_vocabulary"
"""The key for a reduced head's token ids, both in a packed draft's weights and in a model's configuration."""
SCALE = ".scale"
"""The end of the names of scales, which begin with the name of their matrix."""
_EMBEDDINGS = "model.embed_tokens.weight"


def is_packed(source: str) -> bool:
    """Return whether a folder contains a packed model."""
    return (Path(source) / FILE).is_file()


def unpack(source: str) -> dict[str, torch.Tensor]:
    """Return a packed model's weights in bfloat16."""
    import torch
    from safetensors.torch import load_file

    packed = load_file(Path(source) / FILE)
    scales = {name.removesuffix(SCALE): packed.pop(name) for name in [*packed] if name.endswith(SCALE)}
    return {
        name: (weight.float() * scales[name][:, None]).to(torch.bfloat16) if name in scales else weight
        for name, weight in packed.items()
    }


def has_embeddings(source: str) -> bool:
    """Return whether a packed model has its own embeddings. A draft without embeddings uses the target's."""
    from safetensors import safe_open

    with safe_open(Path(source) / FILE, "pt") as file:
        return _EMBEDDINGS in file.keys()  # noqa: SIM118


def load_packed(
    source: str, dtype: torch.dtype | None, attn_implementation: str, target: PreTrainedModel | None
) -> PreTrainedModel:
    """Return a packed model in evaluation mode, with the embeddings of ``target`` if it has none of its own."""
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

    model: PreTrainedModel = AutoModelForCausalLM.from_config(
        AutoConfig.from_pretrained(source), dtype=dtype, attn_implementation=attn_implementation
    )
    weights = unpack(source)
    if DRAFT_VOCABULARY in weights:
        model.config.draft_vocabulary = weights.pop(DRAFT_VOCABULARY).tolist()
    if target is not None:
        weights.setdefault(_EMBEDDINGS, target.get_input_embeddings().weight)
    model.load_state_dict(weights | {"lm_head.weight": weights[_EMBEDDINGS]})  # tied
    model.generation_config = GenerationConfig.from_pretrained(source)
    return model.eval()
