"""Random heads for a small Llama, as in artifacts."""

import numpy as np
import torch

from helpers.small_models import small_model
from specexp.drafters.networks import EagleHead
from specexp.drafters.target_mark import mark_of

WIDTH = 32


def eagle_network():
    torch.manual_seed(0)
    head = EagleHead(WIDTH, heads=2, inner=24)
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return head.eval().requires_grad_(False)


def eagle_head():
    """Return the arrays of :func:`eagle_network`."""
    arrays = {name: value.numpy() for name, value in eagle_network().state_dict().items()}
    return {**arrays, "heads": np.array([2]), "target": mark_of(small_model("Llama").get_output_embeddings())}


def medusa_head(target="Llama", heads=3, seed=0):
    """Return the arrays of random Medusa heads."""
    generator = np.random.default_rng(seed)
    model = small_model(target)
    return {
        "weight": generator.normal(0, 0.3, (1, heads, WIDTH, WIDTH)).astype(np.float32),
        "bias": generator.normal(0, 0.1, (1, heads, WIDTH)).astype(np.float32),
        "target": mark_of(model.get_output_embeddings()),
    }
