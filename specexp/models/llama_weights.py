"""Packs the weights of a Llama-like Hugging Face model, or the blocks of its GGUF file, for the C++ passes."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from gguf import MODEL_ARCH, GGUFReader, get_tensor_name_map
from transformers import PreTrainedModel

from specexp.base.kernels import CannotCompileError, library
from specexp.base.probe import death_of
from specexp.core.cache import layer_windows
from specexp.core.language_model import is_spread

ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
_SOURCE = Path(__file__).with_name("kernel") / "interface.cpp"
_PROBE = "from specexp import load_pair; [load_pair('stdlib', mode='compiled').target_runtime()]"
_NARROWEST = 16  # hidden and head sizes must be multiples of this, twice the shortest vector length
_LINE = 64  # bytes in a CPU cache line, to which tensors are aligned
_BLOCK = 64 << 20  # bytes of memory allocated at once; pages that are never written cost nothing
_STEADY_ROTATIONS = ("default", "linear", "llama3", "yarn")
BLOCK = 32
"""The number of inputs that share one scale."""
TYPES = {"Q4_0": (4, -8.0), "Q4_1": (4, None), "Q8_0": (8, -128.0)}
"""For each type, the bits per number, and the block minimum divided by the scale (None if blocks store the minimum)."""


class Matrix(ctypes.Structure):
    """Mirrors ``Matrix`` of the C++ code: the address of weights in panels, and the bits per weight."""

    _fields_ = [("panels", ctypes.c_void_p), ("bits", ctypes.c_int64)]


class Layer(ctypes.Structure):
    """Mirrors ``Layer`` of the C++ code: the addresses of a layer's weights."""

    _fields_ = [
        *((name, Matrix) for name in ("qkv", "out", "gate_up", "down")),
        *((name, ctypes.c_void_p) for name in ("bias", "norm_attention", "norm_mlp", "norm_q", "norm_k")),
    ]


class Model(ctypes.Structure):
    """Mirrors ``Model`` of the C++ code: sizes, and the addresses of the weights outside the layers."""

    _fields_ = [
        *(
            (name, ctypes.c_int64)
            for name in (
                *("layers", "hidden", "heads", "kv_heads", "head_dim", "inner", "vocabulary"),
                "is_bfloat16",
            )
        ),
        ("epsilon", ctypes.c_float),
        ("rotary_scale", ctypes.c_float),
        ("frequencies", ctypes.c_void_p),
        ("norm", ctypes.c_void_p),
        ("embedding", ctypes.c_void_p),
        ("head", Matrix),
        ("of", ctypes.POINTER(Layer)),
    ]


class LlamaWeights:
    """A copy of a model's weights in bfloat16 or float32. Projections with the same input are fused.

    The copy is separate because the model may move its own weights, for example to share them between processes.

    Args:
        model: a model of one of the :data:`ARCHITECTURES`, on the CPU.
        kernels: the library from :func:`kernels_of` that will read the weights.
        file: the model's GGUF file. If given, matrices keep the file's blocks, which take less memory.

    Raises:
        CannotCompileError: the model is not supported, or its weights differ from the file's.

    Attributes:
        dtype: dtype of weights and cache.
        model: structure of sizes and addresses that C++ reads.
        widths: number of floats per row in each buffer of a pass.
        outputs: number of logits per row, including padding at the end.
        matrix_bytes: size in bytes of the matrices that a pass reads.
    """

    def __init__(self, model: PreTrainedModel, kernels: ctypes.CDLL, file: Path | None = None) -> None:
        check_model(model)
        self._file = None if file is None else BlockFile(model, file)
        self.matrix_bytes = 0
        config, body = model.config, model.model
        self._panel = 2 * int(kernels.lanes())
        self._pairs = bool(kernels.has_pairs())
        self._kernels = kernels
        self._kept: list[torch.Tensor] = []  # kept alive, because C++ has only their addresses
        self._free = torch.empty(0, dtype=torch.uint8)  # the unused part of the newest block of memory
        self._state = _state(model)
        self.dtype = torch.bfloat16 if model.dtype == torch.bfloat16 else torch.float32
        heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
        head_dim = _head_dim(model)
        self._layers = (Layer * config.num_hidden_layers)(*(self._layer(layer) for layer in body.layers))
        self.model = Model(
            layers=config.num_hidden_layers,
            hidden=config.hidden_size,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            inner=config.intermediate_size,
            vocabulary=config.vocab_size,
            is_bfloat16=int(self.dtype == torch.bfloat16),
            epsilon=config.rms_norm_eps,
            rotary_scale=float(body.rotary_emb.attention_scaling),
            frequencies=self._numbers(body.rotary_emb.inv_freq),
            norm=self._numbers(body.norm.weight),
            embedding=self._keep(body.embed_tokens.weight.to(self.dtype)),
            head=self._matrix([model.lm_head.weight]),
            of=self._layers,
        )
        inner = self._whole(config.intermediate_size)  # rounded up, because buffers hold whole panels
        projected = self._whole((heads + 2 * kv_heads) * head_dim)
        self.widths = (
            config.hidden_size,
            max(projected, 2 * inner),  # one buffer, first for qkv, then for gate and up
            head_dim,
            max(heads * head_dim, inner),
        )
        self.outputs = self._whole(config.vocab_size)

    def are_of(self, model: PreTrainedModel) -> bool:
        """Return whether the model still has these weights, judged by torch's version counters and addresses."""
        return self._state == _state(model)

    def _layer(self, layer: Any) -> Layer:
        attention, mlp = layer.self_attn, layer.mlp
        projections = (attention.q_proj, attention.k_proj, attention.v_proj)
        biases = [projection.bias for projection in projections if projection.bias is not None]
        norms = [getattr(attention, name, None) for name in ("q_norm", "k_norm")]
        return Layer(
            qkv=self._matrix([projection.weight for projection in projections]),
            out=self._matrix([attention.o_proj.weight]),
            gate_up=self._matrix([mlp.gate_proj.weight], [mlp.up_proj.weight]),
            down=self._matrix([mlp.down_proj.weight]),
            bias=self._numbers(self._padded(torch.cat(biases))) if biases else None,
            norm_attention=self._numbers(layer.input_layernorm.weight),
            norm_mlp=self._numbers(layer.post_attention_layernorm.weight),
            norm_q=None if norms[0] is None else self._numbers(norms[0].weight),
            norm_k=None if norms[1] is None else self._numbers(norms[1].weight),
        )

    def _matrix(self, *joined: Sequence[torch.nn.Parameter]) -> Matrix:
        """Store weights, stacked row-wise, as one matrix. If there are several groups, interleave their panels.

        Weights stay packed if the file has blocks for all of them.
        """
        blocks = [[self._file and self._file.blocks(weight) for weight in weights] for weights in joined]
        known = [block for one in blocks for block in one if block]
        bits = 8 * self.dtype.itemsize
        if len(known) == sum(map(len, joined)):
            bits = max(block.bits for block in known)
            panels = [self._packed([block for block in one if block], bits) for one in blocks]
        else:
            panels = [self._in_panels(torch.cat(tuple(weights))) for weights in joined]
        together = torch.stack(panels, dim=1)
        self.matrix_bytes += together.nbytes
        return Matrix(self._keep(together), bits)

    def _packed(self, blocks: Sequence[Blocks], bits: int) -> torch.Tensor:
        """Return stacked blocks as bytes ``[panels, n]``, in the order that ``Product::expand`` in C++ expects."""
        scales = self._padded(torch.cat([block.scales for block in blocks], dim=1).transpose(0, 1))
        numbers = self._padded(torch.cat([block.numbers for block in blocks]))
        step = 2 if self._pairs else 1  # inputs
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
                panels.reshape(count, inputs // 2, 2, outputs)
                if self._pairs
                else panels.reshape(count, inputs, 2, outputs // 2)
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
            start, length = ctypes.c_void_p(self._free.data_ptr()), ctypes.c_int64(self._free.numel())
            self._kernels.use_huge_pages(start, length)
            self._kept.append(self._free)
        place, self._free = self._free[:size], self._free[size:]
        place[: numbers.numel()] = numbers
        return place.data_ptr()


def kernels_of(model: PreTrainedModel, tell: Callable[[str], None] = lambda line: None) -> ctypes.CDLL:
    """Return the compiled library with the longest vectors that the model's sizes allow.

    Args:
        model: a model that passes :func:`check_model`.
        tell: called with a message if the library must be compiled first.

    Raises:
        CannotCompileError: a C++ compiler is missing or fails.
    """
    kernels = library(_SOURCE, tell=tell)
    if death := death_of("the compiled pass", Path(kernels._name).name, _PROBE):
        raise CannotCompileError(f"{death}: set pair.mode to eager")
    panel = 2 * kernels.lanes()
    if model.config.hidden_size % panel or _head_dim(model) % panel:
        return library(_SOURCE, (f"-DLANES={_NARROWEST // 2}",), tell)
    return kernels


def check_model(model: PreTrainedModel) -> None:
    """Raise :class:`CannotCompileError` if a model is not supported, without compiling anything."""
    name = type(model).__name__
    if name not in ARCHITECTURES:
        raise CannotCompileError(
            f"compiled passes support {', '.join(ARCHITECTURES)}, but the model is a {name}"
        )
    config = model.config
    rotation = (config.rope_parameters or {}).get("rope_type", "default")
    head_dim = _head_dim(model)
    reasons = {
        "has another pair.row_order than 'built'": getattr(config, "row_order", "built") != "built",
        "has sliding windows": any(layer_windows(config).values()),
        "is spread over devices by a device_map": is_spread(model),
        f"is on {model.device}, not on the CPU": model.device.type not in ("cpu", "meta"),
        f"is {str(model.dtype).removeprefix('torch.')}, not bfloat16, float16 or float32": (
            model.dtype not in (torch.bfloat16, torch.float16, torch.float32)
        ),
        f"has the activation {config.hidden_act!r}, not 'silu'": config.hidden_act != "silu",
        f"has {rotation!r} rotations, not {', '.join(_STEADY_ROTATIONS)}": rotation not in _STEADY_ROTATIONS,
        f"has a hidden size of {config.hidden_size}, not a multiple of {_NARROWEST}": (
            config.hidden_size % _NARROWEST != 0
        ),
        f"has heads of {head_dim} numbers, not a multiple of {_NARROWEST}": head_dim % _NARROWEST != 0,
        "has biases other than those of queries, keys and values": any(
            name.endswith("bias") and not name.endswith(("q_proj.bias", "k_proj.bias", "v_proj.bias"))
            for name, _ in model.named_parameters()
        ),
        "has projections other than torch.nn.Linear, such as adapters": any(
            type(part) is not torch.nn.Linear
            for name, part in model.named_modules()
            if name.endswith(("_proj", "lm_head"))
        ),
    }
    if why := next((reason for reason, applies in reasons.items() if applies), ""):
        raise CannotCompileError(f"the {config.model_type} model {why}, so there is no compiled pass of it")


def _state(model: PreTrainedModel) -> list[tuple[int, int]]:
    return [(one.data_ptr(), 0 if one.is_inference() else one._version) for one in model.parameters()]


def _head_dim(model: PreTrainedModel) -> int:
    config = model.config
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


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
        """Return a weight's blocks, or None if the file stores it in another type.

        Raises:
            CannotCompileError: the model's weight differs from the file's.
        """
        tensor = self._tensors[self._names[id(weight)]]
        if tensor.tensor_type.name not in TYPES:
            return None
        bits, scales, numbers = _blocks(tensor)
        rows = torch.arange(len(numbers))
        # in files of Llama models, the rows of each head's two halves are interleaved
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
    # 4 bits: the low nibbles are the first 16 numbers; 8 bits: numbers are signed
    numbers = torch.cat((numbers & 15, numbers >> 4), dim=2) if bits == 4 else numbers ^ 128
    return Blocks(bits, scales, numbers.reshape(rows, -1))
