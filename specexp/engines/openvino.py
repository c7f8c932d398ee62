"""OpenVINO GenAI in this process: a draft model of static or dynamic length, and prompt lookup."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import Field
from typing_extensions import override

from specexp.engines.engine import EngineAnswer, EngineError, ForeignEngine, RunningEngine
from specexp.engines.settings import OpenVinoSettings

if TYPE_CHECKING:
    from specexp.models.pair import ModelPair

_MILLI = 1e-3


class OpenVINO(ForeignEngine):
    """The pair's models converted, run on the CPU.

    Args:
        drafts: Who guesses: the pair's draft ``model``, ``prompt-lookup``, or null for nobody.
        settings: How much, by OpenVINO's own names.
        threads: Of the CPU.

    Raises:
        EngineError: The settings do not go with who guesses.

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
        given = settings.given()
        allowed = {
            None: (set(),),
            "model": ({"num_assistant_tokens"}, {"assistant_confidence_threshold"}),
            "prompt-lookup": ({"num_assistant_tokens", "max_ngram_size"},),
        }[drafts]
        if given.keys() not in allowed:
            ways = " or ".join(" and ".join(sorted(way)) or "no settings" for way in allowed)
            raise EngineError(
                f"OpenVINO drafts by {drafts}, with {', '.join(given) or 'no settings'}; it takes exactly {ways}"
            )
        self.drafts = drafts
        self.settings = settings
        self.threads = threads

    @override
    def plain(self) -> OpenVINO:
        return OpenVINO(threads=self.threads)

    @override
    def deployed_settings(self) -> dict[str, Any]:
        return self.settings.given()

    @property
    @override
    def version(self) -> str:
        try:
            return version("openvino-genai")
        except PackageNotFoundError:
            return "not installed"

    @property
    @override
    def restart_key(self) -> Hashable:
        return self.drafts, self.threads

    @override
    def start(self, pair: ModelPair) -> RunningEngine:
        try:
            return _Pipeline(self, pair)
        except ImportError as error:
            raise EngineError(
                "OpenVINO does not start: OpenVINO GenAI is not installed: pip install 'specexp[openvino]'"
            ) from error
        except RuntimeError as error:
            raise EngineError(f"OpenVINO does not start: {' '.join(str(error).split())[:300]}") from error


class _Pipeline(RunningEngine):
    def __init__(self, engine: OpenVINO, pair: ModelPair) -> None:
        import openvino_genai
        import torch

        from specexp.engines.openvino_model import write_openvino

        properties: dict[str, Any] = {"INFERENCE_NUM_THREADS": engine.threads}
        # Unless told, it rounds to what the processor multiplies fastest.
        if pair.target.dtype == torch.float32:
            properties |= {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
        given = dict(properties)
        with TemporaryDirectory(prefix="specexp-openvino-") as made:
            target, draft = Path(made, "target"), Path(made, "draft")
            write_openvino(pair.target, target, pair.tokenizer)
            if engine.drafts == "prompt-lookup":
                given["prompt_lookup"] = True
            elif engine.drafts == "model":
                if pair.draft is None:
                    raise EngineError("OpenVINO drafts by model, and the pair has none: give pair.draft")
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
            raise EngineError(f"OpenVINO did not answer: {' '.join(str(error).split())[:300]}") from error
        tokens = [int(token) for token in found.tokens[0]]
        raw = found.perf_metrics.raw_metrics
        times, sizes = list(raw.m_new_token_times), list(raw.m_batch_sizes)
        counted: Any = getattr(found, "extended_perf_metrics", None)
        tells = counted is not None and hasattr(counted, "get_num_accepted_tokens")
        # Until a pipeline says how many tokens came first, it is the one of the prompt's pass.
        first = int(sizes[0]) if len(sizes) == len(times) and sum(sizes) == len(tokens) else 1
        return EngineAnswer(
            tokens,
            "eos" if tokens and tokens[-1] in eos else "length",
            prefill_seconds=found.perf_metrics.get_ttft().mean * _MILLI,
            decode_seconds=(times[-1] - times[0]) * _MILLI,
            first_tokens=first,
            steps=len(times),
            accepted_drafts=counted.get_num_accepted_tokens() if tells else len(tokens) - len(times),
            drafted_nodes=counted.get_num_draft_tokens() if tells else 0,
        )
