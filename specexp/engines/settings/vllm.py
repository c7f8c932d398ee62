"""vLLM: one JSON object, as ``--speculative-config`` or ``LLM(speculative_config=...)``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field
from typing_extensions import override

from specexp.engines.settings.settings import Settings, SettingsError

_WITH_MODEL = ("draft_model", "medusa", "mlp_speculator", "eagle", "eagle3", "custom_class")
_NGRAM = ("ngram", "ngram_gpu")
_SUFFIX = (
    "suffix_decoding_max_tree_depth",
    "suffix_decoding_max_cached_requests",
    "suffix_decoding_max_spec_factor",
    "suffix_decoding_min_token_prob",
)
_Share = Annotated[float, Field(ge=0, le=1)]


@dataclass(frozen=True)
class VllmSettings(Settings):
    """Its fields by their own names; what is None is left to vLLM.

    Args:
        method: how drafts are made.
        num_speculative_tokens: length of the chain.
        model: the draft model, the heads, or the dotted path of a class.
        num_speculative_tokens_per_batch_size: ``[first, last, length]`` of requests at once, ends among them.
        prompt_lookup_min: shortest n-gram looked up.
        prompt_lookup_max: longest n-gram looked up.
        suffix_decoding_max_tree_depth: deepest suffix kept.
        suffix_decoding_max_cached_requests: answers kept; 0 keeps none.
        suffix_decoding_max_spec_factor: drafted tokens for each one that matched.
        suffix_decoding_min_token_prob: least share of a continuation.
        draft_tensor_parallel_size: devices of the draft model.
        max_model_len: tokens of the draft model's context.
        rejection_sample_method: how drafts are accepted; ``synthetic`` is for benchmarks alone.
        synthetic_acceptance_rates: of every position, that all drafts up to it are accepted.
        synthetic_acceptance_length: tokens of a step, the bonus token among them.
        draft_sample_method: how the draft model chooses.
        use_heterogeneous_vocab: whether the draft model has another vocabulary.
        parallel_drafting: whether the drafts of a step come from one pass.

    Raises:
        SettingsError: fields contradict one another.
    """

    engine: ClassVar[str] = "vllm"
    read_for: ClassVar[str] = "vLLM 0.32.0"

    method: Literal[
        "ngram", "ngram_gpu", "suffix", "draft_model", "medusa", "mlp_speculator", "eagle", "eagle3", "mtp", "dflash",
        "dspark", "extract_hidden_states", "custom_class",
    ]  # fmt: skip
    num_speculative_tokens: Annotated[int, Field(ge=1)]
    model: str | None = None
    num_speculative_tokens_per_batch_size: list[list[Annotated[int, Field(ge=0)]]] | None = None
    prompt_lookup_min: Annotated[int, Field(ge=1)] | None = None
    prompt_lookup_max: Annotated[int, Field(ge=1)] | None = None
    suffix_decoding_max_tree_depth: Annotated[int, Field(ge=1)] | None = None
    suffix_decoding_max_cached_requests: Annotated[int, Field(ge=0)] | None = None
    suffix_decoding_max_spec_factor: Annotated[float, Field(ge=0)] | None = None
    suffix_decoding_min_token_prob: _Share | None = None
    draft_tensor_parallel_size: Annotated[int, Field(ge=1)] | None = None
    max_model_len: Annotated[int, Field(ge=1)] | None = None
    rejection_sample_method: Literal["standard", "synthetic", "block"] | None = None
    synthetic_acceptance_rates: list[_Share] | None = None
    synthetic_acceptance_length: Annotated[float, Field(ge=1)] | None = None
    draft_sample_method: Literal["greedy", "probabilistic"] | None = None
    use_heterogeneous_vocab: bool | None = None
    parallel_drafting: bool | None = None

    def __post_init__(self) -> None:
        if self.method in _WITH_MODEL and not self.model:
            raise SettingsError(f"vllm: method {self.method!r} needs model, and none is given")
        if self.method == "custom_class" and "." not in (self.model or ""):
            raise SettingsError(
                f"vllm: model is {self.model!r}; of custom_class the dotted path of a class is allowed"
            )
        self.refuse_unless("method", _NGRAM, ("prompt_lookup_min", "prompt_lookup_max"))
        self.refuse_unless("method", ("suffix",), _SUFFIX)
        shortest, longest = self.prompt_lookup_min, self.prompt_lookup_max
        if shortest is not None and longest is not None and shortest > longest:
            raise SettingsError(f"vllm: prompt_lookup_min is {shortest}, above prompt_lookup_max {longest}")
        self._check_schedule()
        self._check_synthetic()

    def _check_schedule(self) -> None:
        before, name = 0, "num_speculative_tokens_per_batch_size"
        for row in self.num_speculative_tokens_per_batch_size or ():
            if len(row) != 3 or not before < row[0] <= row[1] or row[2] > self.num_speculative_tokens:
                raise SettingsError(
                    f"vllm: {name} has {row}; [first, last, length] is allowed, the requests rising from entry to "
                    f"entry and no length above num_speculative_tokens {self.num_speculative_tokens}"
                )
            before = row[1]

    def _check_synthetic(self) -> None:
        rates, length, most = (
            self.synthetic_acceptance_rates,
            self.synthetic_acceptance_length,
            self.num_speculative_tokens,
        )
        if (self.rejection_sample_method == "synthetic") != (rates is not None or length is not None) or (
            rates is not None and length is not None
        ):
            raise SettingsError(
                "vllm: rejection_sample_method synthetic goes with exactly one of synthetic_acceptance_rates and "
                "synthetic_acceptance_length, and these with nothing else"
            )
        if rates is not None and (len(rates) != most or sorted(rates, reverse=True) != rates):
            raise SettingsError(
                f"vllm: synthetic_acceptance_rates is {rates}; {most} rates are allowed, one a drafted token, "
                "none above the one before"
            )
        if length is not None and length > most + 1:
            raise SettingsError(
                f"vllm: synthetic_acceptance_length is {length:g}; at most num_speculative_tokens + 1 = "
                f"{most + 1} is allowed"
            )

    @override
    def deployed(self) -> dict[str, Any]:
        """The object of ``--speculative-config``."""
        return self.given()
