"""Tile instructions, emulated in C++ on machines that have none."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from transformers import PreTrainedModel

from specexp.base.kernels import library
from specexp.models import compiled, llama_weights

WIDTHS = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 32}
"""Sizes of a small model that are whole tiles."""


@contextmanager
def emulated_tiles() -> Iterator[None]:
    """Make compiled passes that are loaded within multiply by tiles."""
    kernels = library(llama_weights._SOURCE, ("-DEMULATED_TILES", "-ftree-vectorize"))

    def kernels_of(model: PreTrainedModel) -> ctypes.CDLL:
        usual = llama_weights.kernels_of(model)  # with shorter vectors if the model's sizes need them
        return kernels if usual.lanes() == kernels.lanes() else usual

    with patch.object(compiled, "kernels_of", kernels_of):
        yield
