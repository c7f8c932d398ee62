"""Hugging Face's ``generate`` as an engine in this process: assisted generation and prompt lookup."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Literal

from typing_extensions import override

from specexp.base.messages import restated
from specexp.engines.engine import EngineAnswer, EngineError, ForeignEngine, RunningEngine, check_drafter
from specexp.engines.settings import HuggingFaceSettings

if TYPE_CHECKING:
    from specexp.bench.hugging_face_arm import Reference
    from specexp.models.pair import ModelPair

_LOOPS: dict[str | None, Reference] = {
    None: "hf-eager",
    "model": "hf-assisted",
    "prompt-lookup": "hf-prompt-lookup",
}
_SETTINGS = {
    None: [set[str](), {"cache_implementation"}],
    "model": [{"num_assistant_tokens"}, {"num_assistant_tokens", "assistant_confidence_threshold"}],
    "prompt-lookup": [{"prompt_lookup_num_tokens"}, {"prompt_lookup_num_tokens", "max_matching_ngram_size"}],
}


class HuggingFace(ForeignEngine):
    """Hugging Face's ``model.generate``, with drafts of fixed length or drafts that end below a confidence threshold.

    Args:
        drafts: the drafter: ``model`` (the pair's draft), ``prompt-lookup``, or null for no speculation.
        settings: draft length and threshold, named as in the generation config; without speculation, the cache.

    Raises:
        EngineError: the settings are not among those allowed for the drafter.

    Example:
        >>> engine = HuggingFace("model", HuggingFaceSettings(num_assistant_tokens=4))
    """

    exported_as = "hf-generation-config"

    def __init__(
        self,
        drafts: Literal["model", "prompt-lookup"] | None = None,
        settings: HuggingFaceSettings = HuggingFaceSettings(),  # noqa: B008 - frozen
    ) -> None:
        check_drafter(self, drafts, settings.given("num_assistant_tokens_schedule"), _SETTINGS)
        if settings.num_assistant_tokens_schedule not in (None, "constant"):
            raise EngineError(
                "HuggingFace: num_assistant_tokens_schedule must be 'constant', since other schedules change the "
                f"length between prompts, got {settings.num_assistant_tokens_schedule!r}"
            )
        self.drafts = drafts
        self.settings = settings

    @override
    def plain(self) -> HuggingFace:
        return HuggingFace()

    @override
    def deployed_settings(self) -> dict[str, Any]:
        given = self.settings.deployed()
        return {**given, "num_assistant_tokens_schedule": "constant"} if self.drafts == "model" else given

    @override
    def check(self, pair: ModelPair, longest: int) -> None:
        if self.drafts == "model" and pair.draft is None:
            raise EngineError("HuggingFace: drafts must be 'prompt-lookup' without a draft model, or set pair.draft")

    @property
    @override
    def version(self) -> str:
        return version("transformers")

    @property
    @override
    def restart_key(self) -> Hashable:
        return None  # settings are arguments of each call, so no restart is needed

    @override
    def start(self, pair: ModelPair) -> RunningEngine:
        return _Generate(pair)


class _Generate(RunningEngine):
    def __init__(self, pair: ModelPair) -> None:
        self.pair = pair

    @override
    def answer(
        self, engine: ForeignEngine, token_ids: Sequence[int], max_new_tokens: int, eos: frozenset[int]
    ) -> EngineAnswer:
        from specexp.bench.arm import Generation
        from specexp.bench.hugging_face_arm import HuggingFaceArm

        assert isinstance(engine, HuggingFace)
        pair, loop = self.pair, _LOOPS[engine.drafts]
        generation = Generation(max_new_tokens=max_new_tokens, stop_at_eos=bool(eos), stop_at_repetition=False)
        settings = engine.settings.given("num_assistant_tokens_schedule")
        with restated(ValueError, lambda error: EngineError(str(error))):
            arm = HuggingFaceArm(
                "generate", loop, pair.target, pair.tokenizer, generation, draft=pair.draft, **settings
            )
        run = arm.generate(list(token_ids), "", None)
        return EngineAnswer(
            run.token_ids,
            run.finish_reason,
            run.prefill_seconds,
            run.decode_seconds,
            len(run.token_ids) - run.tokens_of_pass[0],
            run.steps,
            run.accepted_drafts,
            run.drafted_nodes,
        )
