"""OpenVINO GenAI as an engine in this process, and the conversion of Hugging Face models for its pipelines."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from copy import deepcopy
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, Literal
from warnings import catch_warnings

import numpy as np
from pydantic import Field
from typing_extensions import override

from specexp.base.probe import death_of
from specexp.engines.engine import (
    NOT_INSTALLED,
    EngineAnswer,
    EngineError,
    ForeignEngine,
    RunningEngine,
    check_drafter,
)
from specexp.engines.settings import OpenVinoSettings

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from specexp.models.pair import ModelPair

_MILLI = 1e-3  # OpenVINO measures in milliseconds
_SETTINGS = {
    None: [set[str]()],
    "model": [{"num_assistant_tokens"}],
    "prompt-lookup": [{"num_assistant_tokens", "max_ngram_size"}],
}
_PROBE = (
    "from specexp import load_pair; from specexp.engines.openvino import OpenVINO; "
    "OpenVINO().start(load_pair('stdlib')).answer(OpenVINO(), [5, 6, 7], 4, frozenset())"
)
_INPUTS = ("input_ids", "attention_mask", "position_ids")


class OpenVINO(ForeignEngine):
    """OpenVINO GenAI on the CPU, with the pair's models converted to its format.

    Args:
        drafts: the drafter: ``model`` (the pair's draft), ``prompt-lookup``, or null for no speculation.
        settings: draft length and n-gram size, under OpenVINO's own names.
        threads: number of CPU threads.

    Raises:
        EngineError: the settings are not among those allowed for the drafter.

    Example:
        >>> engine = OpenVINO("prompt-lookup", OpenVinoSettings(5, max_ngram_size=3))
    """

    exported_as = "openvino"

    def __init__(
        self,
        drafts: Literal["model", "prompt-lookup"] | None = None,
        settings: OpenVinoSettings = OpenVinoSettings(),  # noqa: B008 - frozen
        threads: Annotated[int, Field(ge=1)] = 1,
    ) -> None:
        check_drafter(self, drafts, settings.given(), _SETTINGS)
        self.drafts = drafts
        self.settings = settings
        self.threads = threads

    @override
    def plain(self) -> OpenVINO:
        return OpenVINO(threads=self.threads)

    @property
    @override
    def version(self) -> str:
        try:
            return version("openvino-genai")
        except PackageNotFoundError:
            return NOT_INSTALLED

    @property
    @override
    def restart_key(self) -> Hashable:
        return self.drafts, self.threads

    @override
    def start(self, pair: ModelPair) -> RunningEngine:
        if death := death_of_openvino():
            raise EngineError(f"{death}: leave the engine out, or install another version of openvino-genai")
        try:
            return _Pipeline(self, pair)
        except ImportError as error:
            raise EngineError("OpenVINO GenAI is not installed: pip install 'specexp[openvino]'") from error
        except RuntimeError as error:
            raise EngineError(f"OpenVINO failed to start: {' '.join(str(error).split())[:300]}") from error


def death_of_openvino() -> str:
    """Return how OpenVINO died in a test pass on this machine; empty if it did not."""
    return death_of("OpenVINO", OpenVINO().version, _PROBE)


class _Pipeline(RunningEngine):
    def __init__(self, engine: OpenVINO, pair: ModelPair) -> None:
        import openvino_genai

        properties: dict[str, Any] = {"INFERENCE_NUM_THREADS": engine.threads}
        # by default OpenVINO rounds to the processor's fastest dtype, which can change the tokens
        if str(pair.target.dtype) == "torch.float32":
            properties |= {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
        given = dict(properties)
        with TemporaryDirectory(prefix="specexp-openvino-") as made:
            target, draft = Path(made, "target"), Path(made, "draft")
            write_openvino(pair.target, target, pair.tokenizer)
            if engine.drafts == "prompt-lookup":
                given["prompt_lookup"] = True
            elif engine.drafts == "model":
                if pair.draft is None:
                    raise EngineError("OpenVINO: pair.draft must be set for drafts='model', got none")
                write_openvino(pair.draft, draft, pair.tokenizer)
                given["draft_model"] = openvino_genai.draft_model(str(draft), "CPU", **properties)
            self._pipeline: Any = openvino_genai.LLMPipeline(str(target), "CPU", **given)
        self._config = openvino_genai.GenerationConfig

    @override
    def answer(
        self, engine: ForeignEngine, token_ids: Sequence[int], max_new_tokens: int, eos: frozenset[int]
    ) -> EngineAnswer:
        from openvino import Tensor

        config = self._config(
            max_new_tokens=max_new_tokens,
            do_sample=False,
            ignore_eos=not eos,
            stop_token_ids=set(eos),
            **engine.deployed_settings(),
        )
        try:
            found = self._pipeline.generate(Tensor(np.array([token_ids], dtype=np.int64)), config)
        except RuntimeError as error:
            raise EngineError(f"OpenVINO failed to decode: {' '.join(str(error).split())[:300]}") from error
        tokens = [int(token) for token in found.tokens[0]]
        raw = found.perf_metrics.raw_metrics
        times, sizes = list(raw.m_new_token_times), list(raw.m_batch_sizes)
        accepted = len(tokens) - len(times)  # each pass yields its accepted tokens and one more
        counted: Any = getattr(found, "extended_perf_metrics", None)
        has_counts = counted is not None and hasattr(counted, "get_num_accepted_tokens")
        # OpenVINO does not count the last pass: add its accepted drafts, which are the missing ones
        uncounted = accepted - counted.get_num_accepted_tokens() if has_counts else 0
        # if the sizes of the passes are not reported, assume that the prompt's pass yields one token
        first = int(sizes[0]) if len(sizes) == len(times) and sum(sizes) == len(tokens) else 1
        return EngineAnswer(
            tokens,
            "eos" if tokens and tokens[-1] in eos else "length",
            prefill_seconds=found.perf_metrics.get_ttft().mean * _MILLI,
            decode_seconds=(times[-1] - times[0]) * _MILLI,
            decode_tokens=len(tokens) - first,
            steps=len(times),
            accepted_drafts=accepted,
            drafted_nodes=counted.get_num_draft_tokens() + uncounted if has_counts else 0,
        )


def write_openvino(model: PreTrainedModel, folder: Path, tokenizer: PreTrainedTokenizerBase | None = None) -> None:
    """Convert a model to OpenVINO's format and write it, with the tokenizer if one is given.

    The converted model has the inputs ``input_ids``, ``attention_mask``, ``position_ids`` and ``beam_idx``. It keeps
    keys and values as internal state.
    """
    import openvino
    import torch
    from transformers import DynamicCache

    class WithKeysAndValues(torch.nn.Module):
        """The model as a function that takes cached keys and values and returns new ones, so that it can be traced."""

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
            cache: Any = DynamicCache(config=self.model.config)
            for layer, (keys, values) in zip(cache.layers, past, strict=True):
                layer.keys = keys
                layer.values = values
                layer.is_initialized = True
                layer.dtype = keys.dtype
                layer.device = keys.device
            given = {"attention_mask": attention_mask, "position_ids": position_ids, "past_key_values": cache}
            logits = self.model(input_ids, **given, use_cache=True).logits
            return logits, *(kept for layer in cache.layers for kept in (layer.keys, layer.values))

    folder.mkdir(parents=True, exist_ok=True)
    config, heads = model.config, model.config.num_key_value_heads
    whole = deepcopy(model).float()  # half precision is only for the stored weights, not for the computation
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    # batch and lengths are arbitrary, but above 1: the tracer may treat a size of 1 as a constant
    past = [tuple(torch.zeros(2, heads, 3, width) for _ in range(2)) for _ in range(config.num_hidden_layers)]
    example = {
        "input_ids": torch.ones(2, 2, dtype=torch.int64),
        "attention_mask": torch.ones(2, 5, dtype=torch.int64),
        "position_ids": torch.tensor([[3, 4], [3, 4]]),
        "past": past,
    }
    # the tracer warns that Python numbers become constants; these numbers are the same for all inputs
    with torch.no_grad(), catch_warnings(action="ignore"):
        made = openvino.convert_model(WithKeysAndValues(whole), example_input=example)
    kept = [f"{layer}.{what}" for layer in range(len(past)) for what in ("key", "value")]
    # the pipelines expect the input and output names of models that Optimum exports
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
    if tokenizer is not None:
        from openvino_tokenizers import convert_tokenizer

        both = convert_tokenizer(tokenizer, with_detokenizer=True)
        for made, name in zip(both, ("tokenizer", "detokenizer"), strict=True):
            openvino.save_model(made, folder / f"openvino_{name}.xml")


def _keep_state(made: Any, kept: Sequence[str], sizes: tuple[int, int]) -> None:
    """Turn inputs and outputs for keys and values into state, which starts empty and is reordered by ``beam_idx``."""
    from openvino import Type, opset13
    from openvino._offline_transformations import apply_make_stateful_transformation

    beams = opset13.parameter([-1], Type.i32, name="beam_idx")
    beams.output(0).get_tensor().set_names({"beam_idx"})
    made.add_parameters([beams])
    for name in kept:
        port = made.input(f"past.{name}")
        readers = port.get_target_inputs()
        chosen = opset13.gather(port, beams, opset13.constant(0))  # [beams, heads, length, width]
        for reader in readers:
            reader.replace_source_output(chosen.output(0))
    made.validate_nodes_and_infer_types()
    apply_make_stateful_transformation(made, {f"past.{name}": f"present.{name}" for name in kept})
    shape_of = opset13.shape_of(made.input("input_ids"), output_type="i64")
    batch = opset13.gather(shape_of, opset13.constant([0]), opset13.constant(0))
    heads, width = sizes
    # a state needs an initial value for the first pass: an empty tensor, of length 0
    empty = opset13.concat([batch, opset13.constant(np.array([heads, 0, width], dtype=np.int64))], axis=0)
    for node in made.get_ops():
        if node.get_type_name() == "ReadValue":
            zero = opset13.constant(0.0, dtype=node.get_output_element_type(0))
            node.set_arguments([opset13.broadcast(zero, empty)])
    made.validate_nodes_and_infer_types()
