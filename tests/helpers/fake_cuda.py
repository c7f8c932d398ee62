"""Tensors on a fake CUDA device: shapes and devices are tracked, and reading a value is an error.

Code that runs on them never waits for the device: ``.item()``, ``nonzero``, ``tolist`` and mixed devices raise.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

aten = torch.ops.aten


@contextmanager
def fake_cuda() -> Iterator[None]:
    """Make new tensors on ``cuda:0`` fake until the block ends."""
    patches = [
        # fake views know no inference mode
        mock.patch.object(torch, "is_inference_mode_enabled", return_value=True),
        mock.patch.object(torch.Tensor, "__getitem__", _get),  # torch without CUDA indexes on no CUDA device
        mock.patch.object(torch.Tensor, "contiguous", lambda self: aten.contiguous(self)),
        mock.patch.object(torch.Tensor, "__invert__", lambda self: aten.bitwise_not(self)),
        mock.patch.object(torch.Tensor, "copy_", lambda self, source, non_blocking=False: aten.copy_(self, source)),
        mock.patch.object(torch.Tensor, "__setitem__", lambda self, index, value: aten.copy_(_get(self, index), value)),
    ]
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad(), ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch)
        yield


def on_fake_cuda(model: torch.nn.Module) -> torch.nn.Module:
    """Move a model from the meta device to the fake one; shared weights stay shared."""
    moved: dict[int, torch.Tensor] = {}
    for module in model.modules():
        for store in (module._parameters, module._buffers):
            for name, old in store.items():
                if old is None:
                    continue
                new = torch.empty(old.shape, dtype=old.dtype, device="cuda:0")
                if isinstance(old, torch.nn.Parameter):
                    new = torch.nn.Parameter(new, requires_grad=False)
                store[name] = moved.setdefault(id(old), new)
    return model


def _get(tensor: torch.Tensor, index: Any) -> torch.Tensor:
    parts = list(index) if isinstance(index, tuple) else [index]
    if Ellipsis in [part for part in parts if not isinstance(part, torch.Tensor)]:
        place = next(i for i, part in enumerate(parts) if part is Ellipsis)
        given = sum(part is not None for part in parts) - 1
        parts[place : place + 1] = [slice(None)] * (tensor.ndim - given)
    dim, chosen = 0, {}
    for part in parts:
        if part is None:
            tensor = aten.unsqueeze(tensor, dim)
        elif isinstance(part, slice):
            tensor = aten.slice(tensor, dim, part.start, part.stop, part.step or 1)
        elif isinstance(part, int):
            tensor = aten.select(tensor, dim, part)
            continue
        else:
            chosen[dim] = part
        dim += 1
    if chosen:
        return aten.index(tensor, [chosen.get(place) for place in range(max(chosen) + 1)])
    return tensor
