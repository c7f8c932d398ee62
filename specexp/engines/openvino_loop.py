"""OpenVINO GenAI with its default settings, on a model made of the Hugging Face one; and OpenVINO's matrix products."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from typing_extensions import override

from specexp.engines.openvino_model import write_openvino
from specexp.engines.plain_loop import PlainLoop

if TYPE_CHECKING:
    from transformers import PreTrainedModel


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
            write_openvino(model, folder)
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
