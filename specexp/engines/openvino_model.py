"""A Hugging Face model in the form that OpenVINO GenAI's pipelines expect.

Inputs are ``input_ids``, ``attention_mask``, ``position_ids`` and ``beam_idx``, keys and values the model's own state.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any
from warnings import catch_warnings, simplefilter

import numpy as np
import torch

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_INPUTS = ("input_ids", "attention_mask", "position_ids")


def write_openvino(
    model: PreTrainedModel, folder: Path, tokenizer: PreTrainedTokenizerBase | None = None
) -> None:
    """Write a model, and beside it a tokenizer, which pipelines with a draft model ask for."""
    import openvino

    folder.mkdir(parents=True, exist_ok=True)
    _write(model, folder)
    if tokenizer is not None:
        from openvino_tokenizers import convert_tokenizer

        for made, name in zip(
            convert_tokenizer(tokenizer, with_detokenizer=True), ("tokenizer", "detokenizer"), strict=True
        ):
            openvino.save_model(made, folder / f"openvino_{name}.xml")


class _WithKeysAndValues(torch.nn.Module):
    """The model as a function of what it has cached."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        position_ids: torch.Tensor,
        past: list[tuple[torch.Tensor, torch.Tensor]],
    ) -> tuple[torch.Tensor, ...]:
        from transformers import DynamicCache

        cache: Any = DynamicCache(config=self.model.config)
        for layer, (keys, values) in zip(cache.layers, past, strict=True):
            layer.keys, layer.values, layer.is_initialized = keys, values, True
            layer.dtype, layer.device = keys.dtype, keys.device
        given = {"attention_mask": attention_mask, "position_ids": position_ids, "past_key_values": cache}
        logits = self.model(input_ids, **given, use_cache=True).logits
        return logits, *(kept for layer in cache.layers for kept in (layer.keys, layer.values))


def _write(model: PreTrainedModel, folder: Path) -> None:
    import openvino

    config, whole = (
        model.config,
        deepcopy(model).float(),
    )  # half precision is how weights are kept, not a type of logits
    heads = config.num_key_value_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    past = [tuple(torch.zeros(2, heads, 3, width) for _ in range(2)) for _ in range(config.num_hidden_layers)]
    example = {
        "input_ids": torch.ones(2, 2, dtype=torch.int64),
        "attention_mask": torch.ones(2, 5, dtype=torch.int64),
        "position_ids": torch.tensor([[3, 4], [3, 4]]),
        "past": past,
    }
    with torch.no_grad(), catch_warnings():
        simplefilter("ignore")  # what a trace takes for constant is so for every input of this form
        made = openvino.convert_model(_WithKeysAndValues(whole), example_input=example)
    kept = [f"{layer}.{what}" for layer in range(len(past)) for what in ("key", "value")]
    for port, name in zip(made.inputs, [*_INPUTS, *(f"past.{one}" for one in kept)], strict=True):
        port.get_tensor().set_names({name})
        shape = [-1, -1] if name in _INPUTS else [-1, heads, -1, width]
        port.get_node().set_partial_shape(openvino.PartialShape(shape))
    for port, name in zip(made.outputs, ["logits", *(f"present.{one}" for one in kept)], strict=True):
        port.get_tensor().set_names({name})
    made.validate_nodes_and_infer_types()
    _keep_state(made, kept, (heads, width))
    openvino.save_model(made, folder / "openvino_model.xml", compress_to_fp16=model.dtype != torch.float32)
    config.save_pretrained(folder)


def _keep_state(made: Any, kept: Sequence[str], sizes: tuple[int, int]) -> None:
    """Turn keys and values into state, in the order of ``beam_idx`` and empty at first."""
    from openvino import Type, opset13
    from openvino._offline_transformations import apply_make_stateful_transformation

    beams = opset13.parameter([-1], Type.i32, name="beam_idx")
    beams.output(0).get_tensor().set_names({"beam_idx"})
    made.add_parameters([beams])
    for name in kept:
        port = made.input(f"past.{name}")
        readers = port.get_target_inputs()
        chosen = opset13.gather(port, beams, opset13.constant(0))
        for reader in readers:
            reader.replace_source_output(chosen.output(0))
    made.validate_nodes_and_infer_types()
    apply_make_stateful_transformation(made, {f"past.{name}": f"present.{name}" for name in kept})
    shape_of = opset13.shape_of(made.input("input_ids"), output_type="i64")
    batch = opset13.gather(shape_of, opset13.constant([0]), opset13.constant(0))
    heads, width = sizes
    empty = opset13.concat([batch, opset13.constant(np.array([heads, 0, width], dtype=np.int64))], axis=0)
    for node in made.get_ops():
        if node.get_type_name() == "ReadValue":
            zero = opset13.constant(0.0, dtype=node.get_output_element_type(0))
            node.set_arguments([opset13.broadcast(zero, empty)])
    made.validate_nodes_and_infer_types()
