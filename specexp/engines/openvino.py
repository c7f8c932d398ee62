"""OpenVINO GenAI with its default settings, on a model made of the Hugging Face one; and OpenVINO's matrix products.

The form of the model is the one that its pipelines expect: inputs ``input_ids``, ``attention_mask``, ``position_ids``
and ``beam_idx``, keys and values as the model's own state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any
from warnings import catch_warnings, simplefilter

import numpy as np
import torch
from typing_extensions import override

from specexp.engines.plain_loop import PlainLoop

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_INPUTS = ("input_ids", "attention_mask", "position_ids")


class OpenVinoError(ValueError):
    """OpenVINO GenAI is not here, or refused the model; one sentence."""


def check_openvino() -> None:
    """Refuse where it is not installed.

    Raises:
        OpenVinoError: one sentence.
    """
    try:
        import openvino  # noqa: F401
        import openvino_genai  # noqa: F401
    except ImportError as error:
        raise OpenVinoError("OpenVINO GenAI is not installed: pip install 'specexp[openvino]'") from error


class OpenVinoLoop(PlainLoop):
    """Its pipeline on the CPU.

    Args:
        model: a decoder of full attention; its weights are copied.
        folder: an empty one, for the form that OpenVINO reads; needed no more once this is made.
        threads: of the CPU.

    Raises:
        OpenVinoError: it is not installed, or cannot run the model.
    """

    def __init__(self, model: PreTrainedModel, folder: Path, threads: int) -> None:
        check_openvino()
        import openvino_genai

        self.name = f"OpenVINO GenAI {version('openvino-genai')}"
        try:
            _write(model, folder)
            self._pipeline: Any = openvino_genai.LLMPipeline(
                str(folder), "CPU", INFERENCE_NUM_THREADS=threads
            )
        except RuntimeError as error:
            raise OpenVinoError(
                f"OpenVINO GenAI cannot run the {model.config.model_type} model: {' '.join(str(error).split())}"
            ) from error
        self._settings = openvino_genai.GenerationConfig()
        self._settings.ignore_eos, self._settings.do_sample = True, False

    @override
    def decode(self, token_ids: Sequence[int], new_tokens: int) -> tuple[list[int], list[float]]:
        from openvino import Tensor

        self._settings.max_new_tokens = new_tokens
        found = self._pipeline.generate(Tensor(np.array([token_ids], dtype=np.int64)), self._settings)
        stamps = np.array(found.perf_metrics.raw_metrics.m_new_token_times)  # milliseconds
        return list(found.tokens[0]), (np.diff(stamps) / 1e3).tolist()


def openvino_products(
    matrices: Sequence[torch.Tensor], threads: int
) -> Callable[[int], Callable[[], object]]:
    """Products of rows of ones with matrices, one behind the other, by OpenVINO.

    Args:
        matrices: ``[outputs, inputs]`` each; those of half precision are kept so, and multiplied as OpenVINO likes.
        threads: of the CPU.

    Returns:
        What gives for a number of rows the call that takes all products.

    Raises:
        OpenVinoError: it is not installed.
    """
    check_openvino()
    from openvino import Core, Model, Tensor, Type, opset13

    inputs = {width: opset13.parameter([-1, width], Type.f32) for width in {one.shape[1] for one in matrices}}
    results = []
    for matrix in matrices:
        kept = torch.float32 if matrix.dtype == torch.float32 else torch.float16
        weights = opset13.constant(matrix.to(kept).numpy())
        if kept != torch.float32:
            weights = opset13.convert(weights, Type.f32)
        results.append(opset13.result(opset13.matmul(inputs[matrix.shape[1]], weights, False, True)))
    settings = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
    request = (
        Core().compile_model(Model(results, list(inputs.values())), "CPU", settings).create_infer_request()
    )

    def ready(rows: int) -> Callable[[], object]:
        given = [Tensor(np.ones((rows, width), dtype=np.float32)) for width in inputs]

        def multiply() -> Any:
            for place, tensor in enumerate(given):
                request.set_input_tensor(place, tensor)
            request.infer()
            return request

        return multiply

    return ready


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
