"""Read matrices of a GGUF file as blocks of 4-bit and 8-bit numbers, for compiled passes that expand them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from gguf import MODEL_ARCH, GGUFReader, get_tensor_name_map
from transformers import PreTrainedModel

from specexp.base.kernels import CannotCompileError

BLOCK = 32
"""Inputs with one scale."""
TYPES = {"Q4_0": (4, -8.0), "Q4_1": (4, None), "Q8_0": (8, -128.0)}
"""Bits of a number, and the least value of a block over its scale; None if each block has its own least value."""


class Blocks(NamedTuple):
    """A matrix in blocks of one type. A weight is ``scale * number + least``, rounded to bfloat16."""

    bits: int
    scales: torch.Tensor  # [2, outputs, inputs / BLOCK] float16: scales and least values
    numbers: torch.Tensor  # [outputs, inputs] uint8

    def expanded(self) -> torch.Tensor:
        """Return the weights ``[outputs, inputs]`` in bfloat16."""
        scale, least = self.scales.float()[..., None]
        blocks: torch.Tensor = self.numbers.view(*scale.shape[:2], BLOCK) * scale + least
        return blocks.flatten(1).to(torch.bfloat16)


class BlockFile:
    """The GGUF file of a model. Raises :class:`CannotCompileError` if none of its matrices has blocks of ``TYPES``."""

    def __init__(self, model: PreTrainedModel, file: Path) -> None:
        names = get_tensor_name_map(MODEL_ARCH.LLAMA, model.config.num_hidden_layers)
        named = model.named_parameters()
        self._names = {id(weight): names.get_name(name, (".weight",)) for name, weight in named}
        self._heads = {model.config.num_attention_heads, model.config.num_key_value_heads}
        self._tensors: dict[str, Any] = {one.name: one for one in GGUFReader(file).tensors}
        self._file = file
        found = {one.tensor_type.name for one in self._tensors.values()}
        if not found & TYPES.keys():
            raise CannotCompileError(
                f"mode 'packed' needs weights in blocks of {', '.join(TYPES)}, but {file} has "
                f"{', '.join(sorted(found))}: set pair.mode to compiled"
            )

    def blocks(self, weight: torch.nn.Parameter) -> Blocks | None:
        """Return a weight's blocks, or None if it has another type in the file.

        Raises:
            CannotCompileError: the model's weight differs from the file's.
        """
        tensor = self._tensors[self._names[id(weight)]]
        if tensor.tensor_type.name not in TYPES:
            return None
        bits, scales, numbers = _blocks(tensor)
        rows = torch.arange(len(numbers))
        # in files of Llama models, the rows of each head's two halves take turns
        turned = (
            rows.view(heads, -1, 2).mT.flatten() for heads in self._heads if not len(rows) % (2 * heads)
        )
        for order in (rows, *turned):
            found = Blocks(bits, scales[:, order], numbers[order])
            if torch.equal(found.expanded(), weight):
                return found
        raise CannotCompileError(
            f"{tensor.name} of {self._file} is not the model's, which was changed: set pair.mode to compiled"
        )


def _blocks(tensor: Any) -> Blocks:
    bits, least = TYPES[tensor.tensor_type.name]
    rows = len(tensor.data)
    data = torch.from_numpy(np.array(tensor.data)).view(rows, tensor.shape[0] // BLOCK, -1)
    head = 2 if least is not None else 4  # bytes before the numbers
    scale = data[..., :head].contiguous().view(torch.float16)
    scales = torch.stack((scale[..., 0], scale[..., 0] * least if least is not None else scale[..., 1]))
    numbers = data[..., head:]
    # 4 bits: the lower halves of bytes are the first 16 numbers; 8 bits: signed
    numbers = torch.cat((numbers & 15, numbers >> 4), dim=2) if bits == 4 else numbers ^ 128
    return Blocks(bits, scales, numbers.reshape(rows, -1))
