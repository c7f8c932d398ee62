"""Settings of other engines' speculation, by the engines' own names, as their deployments read them."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import Annotated, Any, ClassVar, Literal

import yaml
from pydantic import ConfigDict, Field
from typing_extensions import override

from specexp.core.checked import Checked, IntegerKey

Positive = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, le=1)]
Ngram = Annotated[int, Field(ge=1, le=1024)]
Least = Annotated[int, Field(ge=0, le=1024)]


class SettingsError(ValueError):
    """Settings that an engine would refuse or misread; the message is one sentence."""


class Settings(metaclass=Checked):
    """Fields of one engine, by the engine's own names; None leaves a field to the engine's default.

    A further engine is one frozen dataclass. Its annotations are the bounds.

    Attributes:
        engine: name of the engine.
        read_for: version of the engine that the fields are those of.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    engine: ClassVar[str]
    read_for: ClassVar[str]

    def deployed(self) -> Any:
        """Return what the engine's deployment loads: JSON values, or the text of a file or of flags."""
        return self.given()

    def given(self, *but: str) -> dict[str, Any]:
        """Return the fields that are set, in their order, except for some."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}  # type: ignore[arg-type]
        return {name: value for name, value in values.items() if value is not None and name not in but}


@dataclass(frozen=True)
class VllmSettings(Settings):
    """vLLM's ``--speculative-config``, by its own names.

    Args:
        num_speculative_tokens_per_batch_size: rows ``[first, last, length]``, the draft length for ``first`` to
            ``last`` concurrent requests, both included.
        suffix_decoding_max_cached_requests: answers kept; 0 keeps none.
        suffix_decoding_max_spec_factor: drafted tokens for each matched one.
        rejection_sample_method: ``synthetic`` is for benchmarks alone.
        synthetic_acceptance_rates: probability at each position that all drafts up to it are accepted.
        synthetic_acceptance_length: tokens of a step, the bonus token included.
    """

    engine: ClassVar[str] = "vllm"
    read_for: ClassVar[str] = "vLLM 0.32.0"

    method: Literal[
        "ngram", "ngram_gpu", "suffix", "draft_model", "medusa", "mlp_speculator", "eagle", "eagle3", "mtp", "dflash",
        "dspark", "extract_hidden_states", "custom_class",
    ]  # fmt: skip
    num_speculative_tokens: Positive
    model: str | None = None
    num_speculative_tokens_per_batch_size: list[list[Annotated[int, Field(ge=0)]]] | None = None
    prompt_lookup_min: Positive | None = None
    prompt_lookup_max: Positive | None = None
    suffix_decoding_max_tree_depth: Positive | None = None
    suffix_decoding_max_cached_requests: Annotated[int, Field(ge=0)] | None = None
    suffix_decoding_max_spec_factor: Annotated[float, Field(ge=0)] | None = None
    suffix_decoding_min_token_prob: Share | None = None
    draft_tensor_parallel_size: Positive | None = None
    max_model_len: Positive | None = None
    rejection_sample_method: Literal["standard", "synthetic", "block"] | None = None
    synthetic_acceptance_rates: list[Share] | None = None
    synthetic_acceptance_length: Annotated[float, Field(ge=1)] | None = None
    draft_sample_method: Literal["greedy", "probabilistic"] | None = None
    use_heterogeneous_vocab: bool | None = None
    parallel_drafting: bool | None = None


@dataclass(frozen=True)
class SglangSettings(Settings):
    """SGLang's flags, without ``--speculative-`` and with underscores.

    Args:
        algorithm: ``STANDALONE`` is a draft model of its own.
        num_steps: draft passes of a step, the depth.
        eagle_topk: branches of a node; 1 drafts a chain.
        num_draft_tokens: tokens verified in a step, the root included.
        ngram_external_corpus_path: JSONL, one JSON text a line.
        adaptive: the adaptive file: by requests at once the ``candidate_steps`` and hystereses, and global keys.
    """

    engine: ClassVar[str] = "sglang"
    read_for: ClassVar[str] = "SGLang's main branch of autumn 2026"

    algorithm: Literal["DFLASH", "DSPARK", "EAGLE", "EAGLE3", "NEXTN", "STANDALONE", "NGRAM"]
    draft_model_path: str | None = None
    num_steps: Positive | None = None
    eagle_topk: Positive | None = None
    num_draft_tokens: Positive | None = None
    # below 1 the output is not the target's
    accept_threshold_single: Annotated[float, Field(ge=1, le=1)] | None = None
    accept_threshold_acc: Annotated[float, Field(ge=1, le=1)] | None = None
    use_rejection_sampling: bool | None = None
    ngram_min_bfs_breadth: Positive | None = None
    ngram_max_bfs_breadth: Positive | None = None
    ngram_match_type: Literal["BFS", "PROB"] | None = None
    ngram_max_trie_depth: Positive | None = None
    ngram_capacity: Positive | None = None
    ngram_external_corpus_path: str | None = None
    ngram_external_sam_budget: Positive | None = None
    ngram_external_corpus_max_tokens: Positive | None = None
    adaptive: dict[str, Any] | None = None

    @override
    def deployed(self) -> str:
        """Return the flags in one line, and the content of an adaptive file in the next."""
        words = [
            f"--speculative-{name.replace('_', '-')}" + ("" if value is True else f" {value}")
            for name, value in self.given("adaptive").items()
            if value is not False
        ]
        if self.adaptive is None:
            return " ".join(words) + "\n"
        words.append("--speculative-adaptive --speculative-adaptive-config adaptive.json")
        return f"{' '.join(words)}\n{json.dumps(self.adaptive)}\n"


@dataclass(frozen=True)
class TrtllmSettings(Settings):
    """TensorRT-LLM's ``speculative_config``, by its own names.

    Args:
        max_draft_len: length of a chain, or depth of a tree.
        use_dynamic_tree: draft a tree, of Eagle3 alone; ``max_total_draft_tokens`` are its nodes.
        enable_global_pool: whether suffix automata of other requests are searched too.
        is_use_oldest: which match is taken; false is our order.
        draft_len_schedule: length by requests at once.
        acceptance_rate_threshold: below it, over ``acceptance_rate_window_size`` steps, speculation ends for good.
    """

    engine: ClassVar[str] = "trtllm"
    read_for: ClassVar[str] = "TensorRT-LLM's main branch of autumn 2026"

    decoding_type: Literal[
        "AUTO", "DFlash", "DSpark", "Draft_Target", "Eagle3", "Eagle", "MTP", "NGram", "PARD", "SA", "SaveState",
        "User_Provided",
    ]  # fmt: skip
    max_draft_len: Positive
    speculative_model: str | None = None
    use_dynamic_tree: bool | None = None
    dynamic_tree_max_topK: Positive | None = None  # noqa: N815 - its name
    max_total_draft_tokens: Positive | None = None
    max_matching_ngram_size: Positive | None = None
    is_public_pool: bool | None = None
    is_keep_all: bool | None = None
    is_use_oldest: bool | None = None
    enable_global_pool: bool | None = None
    max_concurrency: Positive | None = None
    draft_len_schedule: dict[IntegerKey, Annotated[int, Field(ge=0)]] | None = None
    acceptance_rate_window_size: Annotated[int, Field(ge=0)] | None = None
    acceptance_rate_threshold: Share | None = None
    use_rejection_sampling: bool | None = None

    @override
    def deployed(self) -> str:
        return yaml.safe_dump({"speculative_config": self.given()}, sort_keys=False)


@dataclass(frozen=True)
class OpenVinoSettings(Settings):
    """OpenVINO GenAI's generation config, by its own names.

    The pipeline's constructor chooses between a draft model and prompt lookup.

    Args:
        num_assistant_tokens: length of the chain; of a tree its nodes.
        assistant_confidence_threshold: least probability of a drafted token, by itself; the length is then dynamic.
        branching_factor: branches of an EAGLE3 tree, and ``tree_depth`` its depth; 0 drafts a chain.
    """

    engine: ClassVar[str] = "openvino"
    read_for: ClassVar[str] = "OpenVINO GenAI 2026.4"

    num_assistant_tokens: Positive | None = None
    assistant_confidence_threshold: Annotated[float, Field(gt=0, lt=1)] | None = None
    max_ngram_size: Positive | None = None
    branching_factor: Positive | None = None
    tree_depth: Positive | None = None


@dataclass(frozen=True)
class HuggingFaceSettings(Settings):
    """The generation config of transformers, by its own names.

    Args:
        prompt_lookup_num_tokens: length of the chain that prompt lookup drafts.
        num_assistant_tokens: length of the chain that an assistant drafts.
        assistant_confidence_threshold: least probability of a drafted token, by itself, with the one that fell below;
            with scikit-learn installed it moves by itself.
    """

    engine: ClassVar[str] = "hf-generation-config"
    read_for: ClassVar[str] = "transformers 5.23"

    prompt_lookup_num_tokens: Positive | None = None
    max_matching_ngram_size: Positive | None = None
    num_assistant_tokens: Positive | None = None
    num_assistant_tokens_schedule: Literal["constant", "heuristic", "heuristic_transient"] | None = None
    assistant_confidence_threshold: Annotated[float, Field(ge=0, lt=1)] | None = None
    cache_implementation: Literal["static"] | None = None


@dataclass(frozen=True)
class LlamaCppSettings(Settings):
    """llama.cpp's flags, with underscores.

    Args:
        spec_draft_model: the draft's GGUF file.
        spec_draft_n_max: length of the chain.
        spec_draft_n_min: shortest chain worth verifying.
        spec_draft_p_min: least probability of a drafted token, by itself; 0 drafts all.
        spec_draft_p_split: probability from which a second branch is tried.
        spec_ngram_simple_size_n: tokens looked up, exactly so many; ``size_m`` is the length of the chain, and
            ``min_hits`` the occurrences needed. ``map_k`` keeps n-grams in a map, ``map_k4v`` with up to four
            continuations.
        spec_ngram_mod_n_match: tokens looked up in a store that all requests share.
    """

    engine: ClassVar[str] = "llama-cpp"
    read_for: ClassVar[str] = "llama.cpp 0c1e570 (llama-cpp-python 0.3.36)"

    spec_type: Literal["none", "draft-simple", "ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod"]
    spec_draft_model: str | None = None
    spec_draft_n_max: Positive | None = None
    spec_draft_n_min: Annotated[int, Field(ge=0)] | None = None
    spec_draft_p_min: Share | None = None
    spec_draft_p_split: Share | None = None
    spec_ngram_simple_size_n: Ngram | None = None
    spec_ngram_simple_size_m: Ngram | None = None
    spec_ngram_simple_min_hits: Positive | None = None
    spec_ngram_map_k_size_n: Ngram | None = None
    spec_ngram_map_k_size_m: Ngram | None = None
    spec_ngram_map_k_min_hits: Positive | None = None
    spec_ngram_map_k4v_size_n: Ngram | None = None
    spec_ngram_map_k4v_size_m: Ngram | None = None
    spec_ngram_map_k4v_min_hits: Positive | None = None
    spec_ngram_mod_n_match: Ngram | None = None
    spec_ngram_mod_n_min: Least | None = None
    spec_ngram_mod_n_max: Least | None = None

    def __post_init__(self) -> None:
        kind = "draft" if self.spec_type == "draft-simple" else self.spec_type.replace("-", "_")
        other = [name for name in self.given("spec_type") if not name.startswith(f"spec_{kind}_")]
        if other:
            raise SettingsError(f"llama-cpp: {other[0]} must be left out where spec_type is {self.spec_type}")
        if kind == "draft" and not self.spec_draft_model:
            raise SettingsError("llama-cpp: spec_type draft-simple needs spec_draft_model, and none is given")

    @override
    def deployed(self) -> str:
        # the settings of [*] hold for every model
        lines = [f"{name.replace('_', '-')} = {value}" for name, value in self.given().items()]
        return "\n".join(["version = 1", "", "[*]", *lines, ""])
