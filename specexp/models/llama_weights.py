"""Packs the weights of a Llama-like Hugging Face model, or the blocks of its GGUF file, for the C++ passes."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from enum import IntEnum
from functools import cache
from itertools import count, takewhile
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from gguf import MODEL_ARCH, GGUFReader, get_tensor_name_map
from transformers import PreTrainedModel

from specexp.base.kernels import CannotCompileError, library, processor
from specexp.base.probe import death_of
from specexp.core.cache import Windows, layer_windows
from specexp.models.architectures import (
    FAMILIES,
    NARROWEST,
    Family,
    activation_of,
    check_model,
    head_dim_of,
    rotations_of,
)

_SOURCE = Path(__file__).with_name("kernel") / "interface.cpp"
_PROBE = "from specexp import load_pair; [load_pair('stdlib', mode='compiled').target_runtime()]"
_LINE = 64  # bytes in a CPU cache line, to which tensors are aligned
_BLOCK = 64 << 20  # bytes of memory allocated at once; pages that are never written cost nothing
BLOCK = 32
"""The number of inputs that share one scale."""
TILE = 32
"""The number of inputs of a tile."""
TYPES = {"Q4_0": (4, -8.0), "Q4_1": (4, None), "Q8_0": (8, -128.0)}
"""For each type, the bits per number, and the block minimum divided by the scale (None if blocks store the minimum)."""


class Products(IntEnum):
    """Mirrors ``Products`` of the C++ code: the layout of weights, and the instructions that multiply them."""

    FLOATS = 0
    WORDS = 1
    PAIRS = 2
    TILES = 3


class Field(ctypes.Structure):
    """Mirrors ``Field`` of the C++ code."""

    _fields_ = [
        *[("structure", ctypes.c_char_p), ("name", ctypes.c_char_p)],
        *[("type", ctypes.c_int64), ("place", ctypes.c_int64)],
    ]


@cache
def structures(kernels: ctypes.CDLL) -> Any:
    """Return classes for the structures in ``kernel/structures.h``, as attributes, from the library's ``fields``.

    Raises CannotCompileError if they are not all of a structure's fields in order, which would misread memory.
    """
    made = SimpleNamespace()
    kinds: dict[str, Any] = {"P": ctypes.c_void_p, "f": ctypes.c_float, "q": ctypes.c_int64}
    known: list[tuple[str, Any]] = []
    places: list[int] = []
    listed = ctypes.cast(kernels.fields, ctypes.POINTER(Field))
    for one in takewhile(lambda one: one.structure, map(listed.__getitem__, count())):  # the last is empty
        places.append(one.place)
        if one.name is not None:
            known.append((one.name.decode(), kinds[chr(one.type)]))
            continue
        name = one.structure.decode()
        kind: Any = type(name, (ctypes.Structure,), {"_fields_": known})
        if places != [*(getattr(kind, field).offset for field, _ in known), ctypes.sizeof(kind)]:
            raise CannotCompileError(f"interface.cpp must list all fields of the structure {name} in order")
        setattr(made, name, kind)
        kinds.setdefault("M", kind)  # matrices come first
        known = []
        places = []
    return made


class LlamaWeights:
    """A copy of a model's weights in bfloat16 or float32. Projections with the same input are fused.

    The copy is separate because the model may move its own weights, for example to share them between processes.

    Args:
        model: a model of one of the :data:`~specexp.models.architectures.FAMILIES`, on the CPU.
        kernels: the library from :func:`kernels_of` that will read the weights.
        file: the model's GGUF file. If given, matrices keep the file's blocks, which take less memory.

    Raises:
        CannotCompileError: the model is not supported, or its weights differ from the file's.
    """

    def __init__(self, model: PreTrainedModel, kernels: ctypes.CDLL, file: Path | None = None) -> None:
        check_model(model)
        self._file = None if file is None else BlockFile(model, file)
        self.matrix_bytes = 0  # size of the matrices that a pass reads
        config, body = model.config, model.model
        self._panel = 2 * int(kernels.lanes())
        self._kernels = kernels
        self._structures = structures(kernels)
        self._kept: list[torch.Tensor] = []  # kept alive, because C++ has only their addresses
        self._free = torch.empty(0, dtype=torch.uint8)  # the unused part of the newest block of memory
        self._state = _state(model)
        self.dtype = torch.bfloat16 if model.dtype == torch.bfloat16 else torch.float32  # of weights and cache
        self.products = products_of(model, kernels)
        self._family = FAMILIES[type(model).__name__]
        heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
        head_dim, tables = head_dim_of(model), rotations_of(model)
        self._kinds = getattr(config, "layer_types", None) or [None] * config.num_hidden_layers
        turning = getattr(config, "no_rope_layers", None) or [True] * config.num_hidden_layers
        self._layers = (self._structures.Layer * config.num_hidden_layers)(
            *(
                self._layer(layer, list(tables).index(kind if kind in tables else None) if turns else -1)
                for layer, kind, turns in zip(body.layers, self._kinds, turning, strict=True)
            )
        )
        self.set_windows(layer_windows(config))
        scale = getattr(body.embed_tokens, "embed_scale", None)  # Gemma rounds it to the precision of the weights
        frequencies = torch.stack([table for table, _ in tables.values()])
        self.model = self._structures.Model(
            layers=config.num_hidden_layers,
            hidden=config.hidden_size,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            inner=config.intermediate_size,
            vocabulary=config.vocab_size,
            products=self.products,
            rotations=len(tables),
            rotated=2 * frequencies.shape[1],
            norms_by_head=int(self._family.norms_qk != "all"),
            has_gelu=int(activation_of(config) != "silu"),
            epsilon=config.rms_norm_eps,
            embedding_scale=(
                getattr(config, "embedding_multiplier", 1.0)
                if scale is None
                else float(scale.to(body.embed_tokens.weight.dtype))
            ),
            attention_scale=body.layers[0].self_attn.scaling,
            residual_scale=getattr(config, "residual_multiplier", 1.0),
            logit_scale=1.0 / getattr(config, "logits_scaling", 1.0),
            attention_cap=getattr(config, "attn_logit_softcapping", None) or 0.0,
            logit_cap=getattr(config, "final_logit_softcapping", None) or 0.0,
            frequencies=self._numbers(frequencies),
            norm=self._norm(body.norm),
            rotation_scales=self._numbers(torch.tensor([scale for _, scale in tables.values()])),
            embedding=self._keep(body.embed_tokens.weight.to(self.dtype)),
            head=self._matrix([_whole(model.lm_head)]),
            of=ctypes.addressof(self._layers),
        )
        inner = self._whole(config.intermediate_size)  # rounded up, because buffers hold whole panels
        projected = self._whole((heads + 2 * kv_heads) * head_dim)
        self.widths = (  # number of floats per row in each buffer of a pass
            config.hidden_size,
            max(projected, 2 * inner, config.hidden_size),  # for qkv, for gate and up, and for sums before a norm
            len(tables) * 2 * frequencies.shape[1],
            max(heads * head_dim, inner),
        )
        self.outputs = self._whole(config.vocab_size)  # number of logits per row, with padding at the end

    def are_of(self, model: PreTrainedModel) -> bool:
        """Return whether the model still has these weights, judged by torch's version counters and addresses."""
        return self._state == _state(model)

    def set_windows(self, windows: Windows) -> None:
        """Set the window of each layer: the number of keys that a row attends to."""
        for layer, kind in zip(self._layers, self._kinds, strict=True):
            layer.window = windows.get(kind, windows.get(None)) or 0

    def _layer(self, layer: Any, rotation: int) -> Any:
        family, attention, mlp = self._family, layer.self_attn, layer.mlp
        gate, up = _gate_up(mlp, family)
        projections: dict[str, list[list[Projection]]] = {
            "qkv": [[_whole(getattr(attention, name)) for name in family.qkv]],
            "out": [[_whole(attention.o_proj)]],
            "gate_up": [[gate], [up]],
            "down": [[_whole(mlp.down_proj)]],
        }
        around = zip(("attention", "mlp", "attended", "mixed"), family.norms, strict=True)
        norms = {name: getattr(layer, known, None) for name, known in around}
        norms |= {name: getattr(attention, f"{name}_norm", None) for name in "qk"}
        return self._structures.Layer(
            rotation=rotation,
            **{name: self._matrix(*joined) for name, joined in projections.items()},
            **{f"{name}_bias": self._bias(*joined) for name, joined in projections.items()},
            **{f"norm_{name}": norm and self._norm(norm) for name, norm in norms.items()},
        )

    def _norm(self, norm: Any) -> int:
        return self._numbers(norm.weight.float() + self._family.norm_offset)

    def _bias(self, *joined: Sequence[Projection]) -> int | None:
        """Store the biases of a :meth:`_matrix` in the order of its panels, if there are any."""
        biases = [
            torch.cat([part.bias for part in parts if part.bias is not None] or [torch.empty(0)]) for parts in joined
        ]
        if not all(bias.numel() for bias in biases):
            return None
        padded = [self._padded(bias).view(-1, self._panel) for bias in biases]
        return self._numbers(torch.stack(padded, dim=1))

    def _matrix(self, *joined: Sequence[Projection]) -> Any:
        """Store weights, stacked row-wise, as one matrix. If there are several groups, interleave their panels.

        Weights stay packed if the file has blocks for all of them.
        """
        blocks = [[self._file and self._file.blocks(*part[:2]) for part in parts] for parts in joined]
        known = [block for one in blocks for block in one if block]
        bits = 8 * self.dtype.itemsize
        if len(known) == sum(map(len, joined)):
            bits = max(block.bits for block in known)
            panels = [self._packed([block for block in one if block], bits) for one in blocks]
        else:
            panels = [self._in_panels(torch.cat([part.rows for part in parts])) for parts in joined]
        together = torch.stack(panels, dim=1)
        self.matrix_bytes += together.nbytes
        return self._structures.Matrix(self._keep(together), bits)

    def _packed(self, blocks: Sequence[Blocks], bits: int) -> torch.Tensor:
        """Return stacked blocks as bytes ``[panels, n]``, in the order that ``Product::expand`` in C++ expects."""
        scales = self._padded(torch.cat([block.scales for block in blocks], dim=1).transpose(0, 1))
        numbers = self._padded(torch.cat([block.numbers for block in blocks]))
        step = 1 if self.products == Products.WORDS else 2  # inputs
        words = numbers.view(-1, 2, self._panel // 2, scales.shape[2], 2 * bits, 16 // bits // step, step)
        # from [panel, part, lane, block, word, step, input]
        ordered = words.permute(0, 3, 4, 2, 5, 1, 6).reshape(len(words), scales.shape[2], -1)
        if bits == 4:
            ordered = ordered[..., ::2] | ordered[..., 1::2] << 4
        by_block = scales.reshape(len(words), self._panel, 2, -1).permute(0, 3, 2, 1).flatten(2)
        return torch.cat((by_block.contiguous().view(torch.uint8), ordered), dim=2).flatten(1)

    def _in_panels(self, weight: torch.Tensor) -> torch.Tensor:
        """Return weights ``[outputs, inputs]`` as ``[panels, inputs, outputs of a panel]``, padded with zeros.

        In bfloat16, two inputs of one output, or two outputs of one input, are adjacent.
        """
        missing = self._whole(weight.shape[1]) - weight.shape[1]
        padded = self._padded(torch.nn.functional.pad(weight.detach().to(self.dtype), (0, missing)))
        panels = padded.view(-1, self._panel, padded.shape[1]).transpose(1, 2)  # [panels, inputs, outputs]
        if self.dtype == torch.bfloat16:
            count, inputs, outputs = panels.shape
            paired = (  # two bfloat16 numbers share a 32-bit word
                panels.reshape(count, inputs, 2, outputs // 2)
                if self.products == Products.WORDS
                else panels.reshape(count, inputs // 2, 2, outputs)
            )
            panels = paired.transpose(2, 3)
        return panels

    def _whole(self, size: int) -> int:
        return -(-size // self._panel) * self._panel  # rounded up to whole panels

    def _padded(self, values: torch.Tensor) -> torch.Tensor:
        missing: Sequence[int] = [
            *([0] * (2 * values.dim() - 1)),  # torch pads from the last dimension to the first
            self._whole(values.shape[0]) - values.shape[0],
        ]
        return torch.nn.functional.pad(values, missing)

    def _numbers(self, values: torch.Tensor) -> int:
        return self._keep(values.to(torch.float32))

    def _keep(self, tensor: torch.Tensor) -> int:
        """Copy a tensor into huge pages, which are faster to read, and return its address."""
        numbers = tensor.detach().contiguous().view(-1).view(torch.uint8)
        size = -(-numbers.numel() // _LINE) * _LINE
        if size > self._free.numel():
            self._free = torch.empty(max(size, _BLOCK), dtype=torch.uint8)
            start = ctypes.c_void_p(self._free.data_ptr())
            length = ctypes.c_int64(self._free.numel())
            self._kernels.use_huge_pages(start, length)
            self._kept.append(self._free)
        place = self._free[:size]
        self._free = self._free[size:]
        place[: numbers.numel()] = numbers
        return place.data_ptr()


def kernels_of(model: PreTrainedModel) -> ctypes.CDLL:
    """Return the compiled library with the longest vectors that the model's sizes allow.

    The model must pass :func:`check_model`. Raises CannotCompileError if a C++ compiler is missing or fails.
    """
    kernels = library(_SOURCE)
    if death := death_of("the compiled pass", Path(kernels._name).name, _PROBE):
        raise CannotCompileError(f"{death}: set pair.mode to eager")
    panel = 2 * kernels.lanes()
    rotated = next(iter(rotations_of(model).values()))[0].numel() * 2
    if any(size % panel for size in (model.config.hidden_size, head_dim_of(model), rotated)):
        return library(_SOURCE, (f"-DLANES={NARROWEST // 2}",))
    return kernels


def products_of(model: PreTrainedModel, kernels: ctypes.CDLL) -> Products:
    """Return the fastest products of a model's weights that this machine has."""
    if model.dtype != torch.bfloat16:
        return Products.FLOATS
    config, head_dim = model.config, head_dim_of(model)
    widths = (config.hidden_size, config.intermediate_size, head_dim, config.num_attention_heads * head_dim)
    return Products(kernels.products(not any(width % TILE for width in widths)))


def describe_products(kernels: ctypes.CDLL) -> str:
    """Return a sentence on how this machine multiplies rows of bfloat16, and why."""
    products = Products(kernels.products(True))
    if products == Products.TILES:
        return "bfloat16 rows are multiplied in tiles (AMX), so 16 rows cost little more than one"
    why = "the processor has no AMX"
    if "amx_bf16" in processor():
        why = "the system refuses AMX" if kernels.has_tiles() else "the compiler does not know this AMX"
    how = "in pairs (AVX-512 BF16)" if products == Products.PAIRS else "by fused multiply-adds"
    return f"bfloat16 rows are multiplied {how}, because {why}"


class Projection(NamedTuple):
    """Rows of a projection."""

    weight: torch.nn.Parameter
    part: slice
    bias: torch.Tensor | None

    @property
    def rows(self) -> torch.Tensor:
        """The weights ``[outputs, inputs]``."""
        return self.weight[self.part]


def _whole(projection: Any) -> Projection:
    return Projection(projection.weight, slice(None), projection.bias)


def _gate_up(mlp: Any, family: Family) -> Sequence[Projection]:
    """Return the parts of gate and up, which some families keep in one projection."""
    projections = [getattr(mlp, name) for name in family.gate_up]
    if len(projections) == 2:
        return [_whole(one) for one in projections]
    weight = projections[0].weight
    bias = projections[0].bias
    half = mlp.down_proj.weight.shape[1]
    return [Projection(weight, rows, None if bias is None else bias[rows]) for rows in (slice(half), slice(half, None))]


def _state(model: PreTrainedModel) -> list[tuple[int, int]]:
    return [(one.data_ptr(), 0 if one.is_inference() else one._version) for one in model.parameters()]


class Blocks(NamedTuple):
    """A matrix stored in blocks of one type. A weight is ``scale * number + minimum``, rounded to bfloat16."""

    bits: int
    scales: torch.Tensor  # [2, outputs, inputs / BLOCK] float16: scales and minimums
    numbers: torch.Tensor  # [outputs, inputs] uint8

    def expanded(self) -> torch.Tensor:
        """Return the weights ``[outputs, inputs]`` in bfloat16."""
        scale, least = self.scales.float()[..., None]
        blocks: torch.Tensor = self.numbers.view(*scale.shape[:2], BLOCK) * scale + least
        return blocks.flatten(1).to(torch.bfloat16)


class BlockFile:
    """The GGUF file of a model. Raises :class:`CannotCompileError` if none of its matrices has blocks of ``TYPES``."""

    def __init__(self, model: PreTrainedModel, file: Path) -> None:
        family = FAMILIES[type(model).__name__]
        names = get_tensor_name_map(MODEL_ARCH[family.file], model.config.num_hidden_layers)
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

    def blocks(self, weight: torch.nn.Parameter, part: slice) -> Blocks | None:
        """Return the blocks of a weight's rows, or None if the file stores it in another type.

        Raises:
            CannotCompileError: the model's weight differs from the file's.
        """
        tensor = self._tensors[self._names[id(weight)]]
        if tensor.tensor_type.name not in TYPES:
            return None
        bits, scales, numbers = _blocks(tensor)
        rows = torch.arange(len(numbers))
        # in files of Llama models, the rows of each head's two halves are interleaved
        turned = (rows.view(heads, -1, 2).mT.flatten() for heads in self._heads if not len(rows) % (2 * heads))
        for order in (rows, *turned):
            found = Blocks(bits, scales[:, order], numbers[order])
            if torch.equal(found.expanded(), weight):
                return Blocks(bits, found.scales[:, part], found.numbers[part])
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
    # 4 bits: the low nibbles are the first 16 numbers; 8 bits: numbers are signed
    numbers = torch.cat((numbers & 15, numbers >> 4), dim=2) if bits == 4 else numbers ^ 128
    return Blocks(bits, scales, numbers.reshape(rows, -1))
