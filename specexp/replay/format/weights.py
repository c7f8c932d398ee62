"""Which models a recording is of, weights included."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Any

from specexp.artifacts.fingerprint import Fingerprint, fingerprint
from specexp.models.llama_cpp import LlamaCppModel

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from specexp.models.pair import ModelPair

_VALUES = 1024


def weights_fingerprint(model: PreTrainedModel | LlamaCppModel) -> dict[str, Any]:
    """What tells a model from a fine-tuned one, and from itself in another precision.

    Args:
        model: A model on any device; of every parameter up to 1,024 evenly spaced values are read, so that it takes a
            moment for billions of them; of a GGUF file as many pieces of it.

    Returns:
        ``dtype``, ``parameters`` (how many numbers) and ``weights_sha256`` over names, shapes and values.
    """
    import torch

    if isinstance(model, LlamaCppModel):
        return model.model.weights()
    digest, count = sha256(), 0
    for name, parameter in sorted(model.named_parameters()):
        values = parameter.detach().reshape(-1)
        count += values.numel()
        if values.numel() > _VALUES:
            places = torch.arange(_VALUES, device=values.device, dtype=torch.int64)
            values = values[places * (values.numel() - 1) // (_VALUES - 1)]
        digest.update(f"{name} {tuple(parameter.shape)} {parameter.dtype}\n".encode())
        digest.update(values.cpu().contiguous().view(torch.uint8).numpy().tobytes())
    dtype = str(model.dtype).removeprefix("torch.")
    return {"dtype": dtype, "parameters": count, "weights_sha256": digest.hexdigest()}


def recording_fingerprint(pair: ModelPair) -> Fingerprint:
    """Tokenizer and architecture of the target, as artifacts have them, then the weights of both models."""
    sections = fingerprint(pair.target, pair.tokenizer)
    sections["target"] = weights_fingerprint(pair.target)
    if pair.draft is not None:
        sections["draft"] = weights_fingerprint(pair.draft)
    return sections
