"""Speculation settings of engines, under each engine's own names and in its own format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, ClassVar, Literal

import yaml
from pydantic import ConfigDict, Field
from typing_extensions import override

from specexp.base.checked import Checked
from specexp.models.gguf import is_gguf

PROPOSER = "specexp.deploy.vllm.Proposer"
"""The ``model`` of vLLM's method ``custom_class`` with which our drafters draft; ``revision`` is their artifact."""
Positive = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, le=1)]
Ngram = Annotated[int, Field(ge=1, le=1024)]
Least = Annotated[int, Field(ge=0, le=1024)]


_OF_A_DRAFT_MODEL = ("draft_tensor_parallel_size", "max_model_len", "use_heterogeneous_vocab", "parallel_drafting")
"""vLLM's fields that only a draft model or head has."""


class SettingsError(ValueError):
    """Settings are not valid for their engine. The message is one sentence."""


class Settings(metaclass=Checked):
    """Settings for one engine under the engine's own names. None selects the engine's default.

    To add an engine, define a frozen dataclass with each field's bounds in its annotation.

    Attributes:
        engine: name of the engine.
        read_for: version of the engine that has these settings.
        drafters: our drafters that the engine has too, in chains.
        samples_drafts: whether the engine samples with a draft model.
        dead: settings that the engine accepts without effect, with the reason. They are refused.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    engine: ClassVar[str]
    read_for: ClassVar[str]
    drafters: ClassVar[tuple[str, ...]] = ("DraftModel", "PromptLookup")
    samples_drafts: ClassVar[bool] = True
    dead: ClassVar[Mapping[str, str]] = {}

    def __post_init__(self) -> None:
        for name in self.given():
            if name in self.dead:
                raise SettingsError(f"{self.engine}: {name} must be left out: {self.dead[name]}")

    def deployed(self) -> Any:
        """Return the settings in the engine's format: JSON values, or the text of a file or of command-line flags."""
        return self.given()

    def given(self, *but: str) -> dict[str, Any]:
        """Return the fields that are set, except those named in ``but``."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}  # type: ignore[arg-type]
        return {name: value for name, value in values.items() if value is not None and name not in but}


@dataclass(frozen=True)
class VllmSettings(Settings):
    """The fields of vLLM's ``--speculative-config``, under vLLM's names.

    Args:
        num_speculative_tokens_per_batch_size: rows ``[first, last, length]``: the draft length for ``first`` to
            ``last`` concurrent requests, inclusive.
        prompt_lookup_min: number of tokens of the shortest n-gram; vLLM's default is ``prompt_lookup_max``, or 5.
        revision: for ``custom_class`` with ``specexp.deploy.vllm.Proposer``, the path of the artifact it drafts with.
        suffix_decoding_max_cached_requests: number of earlier answers that are kept; 0 keeps none.
        suffix_decoding_max_spec_factor: maximum number of drafted tokens per matched token.
    """

    engine: ClassVar[str] = "vllm"
    read_for: ClassVar[str] = "vLLM 0.32.0"
    drafters: ClassVar[tuple[str, ...]] = (*Settings.drafters, "SuffixAutomaton")

    method: Literal[
        "ngram", "ngram_gpu", "suffix", "draft_model", "medusa", "mlp_speculator", "eagle", "eagle3", "mtp", "dflash",
        "dspark", "extract_hidden_states", "custom_class",
    ]  # fmt: skip
    num_speculative_tokens: Positive
    model: str | None = None
    revision: str | None = None
    num_speculative_tokens_per_batch_size: list[list[Annotated[int, Field(ge=0)]]] | None = None
    prompt_lookup_min: Positive | None = None
    prompt_lookup_max: Positive | None = None
    suffix_decoding_max_tree_depth: Positive | None = None
    suffix_decoding_max_cached_requests: Annotated[int, Field(ge=0)] | None = None
    suffix_decoding_max_spec_factor: Annotated[float, Field(ge=0)] | None = None
    suffix_decoding_min_token_prob: Share | None = None
    draft_tensor_parallel_size: Positive | None = None
    max_model_len: Positive | None = None
    rejection_sample_method: Literal["standard", "block"] | None = None
    draft_sample_method: Literal["greedy", "probabilistic"] | None = None
    use_heterogeneous_vocab: bool | None = None
    parallel_drafting: bool | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        longest = self.prompt_lookup_max
        if longest is not None and (self.prompt_lookup_min or 1) > longest:
            least = self.prompt_lookup_min
            raise SettingsError(f"vllm: prompt_lookup_max must be at least prompt_lookup_min, {least}, got {longest}")
        for way, prefix in (("ngram", "prompt_lookup_"), ("suffix", "suffix_decoding_")):
            other = [name for name in self.given() if name.startswith(prefix) and not self.method.startswith(way)]
            if other:
                raise SettingsError(f"vllm: {other[0]} must be left out if method is {self.method!r}")
        if self.method.startswith(("ngram", "suffix")):
            other = [name for name in _OF_A_DRAFT_MODEL if name in self.given()]
            if other:
                raise SettingsError(f"vllm: {other[0]} must be left out if method is {self.method!r}")
        ends = 0
        for row in self.num_speculative_tokens_per_batch_size or []:
            if len(row) != 3 or not ends < row[0] <= row[1]:
                where = "num_speculative_tokens_per_batch_size"
                raise SettingsError(f"vllm: {where} must have rows [first, last, length] in ascending order, got {row}")
            ends = row[1]
        if self.model is None and self.method in ("draft_model", "eagle", "eagle3", "medusa", "custom_class"):
            raise SettingsError(f"vllm: model must be set if method is {self.method!r}")
        if self.model is not None and self.model.startswith(PROPOSER.rpartition(".")[0]) and self.model != PROPOSER:
            raise SettingsError(f"vllm: model must be {PROPOSER!r} to draft with an artifact, got {self.model!r}")


@dataclass(frozen=True)
class SglangSettings(Settings):
    """The flags of SGLang that an export sets, with underscores and without the prefix ``--speculative-``.

    Args:
        algorithm: ``STANDALONE`` drafts with a separate model.
        num_steps: number of draft passes per step, which is also the depth of the tree.
        eagle_topk: number of children per node; 1 drafts a chain.
        num_draft_tokens: number of tokens verified per step, including the root.
    """

    engine: ClassVar[str] = "sglang"
    read_for: ClassVar[str] = "SGLang's main branch of autumn 2026"

    algorithm: Literal["STANDALONE", "NGRAM"]
    draft_model_path: str | None = None
    num_steps: Positive | None = None
    eagle_topk: Positive | None = None
    num_draft_tokens: Positive | None = None
    ngram_max_bfs_breadth: Positive | None = None
    ngram_max_trie_depth: Positive | None = None

    @override
    def deployed(self) -> str:
        words = [f"--speculative-{name.replace('_', '-')} {value}" for name, value in self.given().items()]
        return " ".join(words) + "\n"


@dataclass(frozen=True)
class TrtllmSettings(Settings):
    """The fields of TensorRT-LLM's ``speculative_config`` that an export sets, under TensorRT-LLM's names.

    Args:
        max_draft_len: length of the chain.
        enable_global_pool: whether the suffix automata of other requests are also searched.
        is_use_oldest: whether the oldest match is used; our drafters use the newest.
    """

    engine: ClassVar[str] = "trtllm"
    read_for: ClassVar[str] = "TensorRT-LLM's main branch of autumn 2026"
    drafters: ClassVar[tuple[str, ...]] = (*Settings.drafters, "SuffixAutomaton")

    decoding_type: Literal["Draft_Target", "NGram", "SA"]
    max_draft_len: Positive
    speculative_model: str | None = None
    max_matching_ngram_size: Positive | None = None
    is_use_oldest: bool | None = None
    enable_global_pool: bool | None = None

    @override
    def deployed(self) -> str:
        return yaml.safe_dump({"speculative_config": self.given()}, sort_keys=False)


@dataclass(frozen=True)
class OpenVinoSettings(Settings):
    """The fields of OpenVINO GenAI's generation config, under OpenVINO's names.

    The pipeline's constructor chooses between a draft model and prompt lookup.

    Args:
        num_assistant_tokens: length of the chain, or number of nodes of the tree.
        assistant_confidence_threshold: refused, since it has no effect on greedy decoding.
        branching_factor: number of children per node in an EAGLE3 tree of depth ``tree_depth``.
    """

    engine: ClassVar[str] = "openvino"
    read_for: ClassVar[str] = "OpenVINO GenAI 2026.4"
    samples_drafts: ClassVar[bool] = False
    dead: ClassVar[Mapping[str, str]] = {
        "assistant_confidence_threshold": (
            "with greedy decoding OpenVINO GenAI 2026.4 drafts one token at every threshold"
        ),
    }

    num_assistant_tokens: Positive | None = None
    assistant_confidence_threshold: Annotated[float, Field(gt=0, lt=1)] | None = None
    max_ngram_size: Positive | None = None
    branching_factor: Positive | None = None
    tree_depth: Positive | None = None


@dataclass(frozen=True)
class HuggingFaceSettings(Settings):
    """The fields of transformers' generation config, under transformers' names.

    Args:
        prompt_lookup_num_tokens: length of the chain that prompt lookup drafts.
        num_assistant_tokens: length of the chain that an assistant drafts.
        assistant_confidence_threshold: draft probability of a single token; the chain ends with the first token below
            it. If scikit-learn is installed, transformers adapts the threshold.
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
    """llama.cpp's flags, with underscores instead of hyphens.

    Args:
        spec_draft_model: the draft's GGUF file.
        spec_draft_n_max: maximum length of the chain.
        spec_draft_n_min: minimum length of the chain; shorter chains are not verified.
        spec_draft_p_min: minimum draft probability of a single token; 0 always drafts the full length.
        spec_draft_p_split: refused, as are ``min_hits`` of ``simple`` and ``map_k``, since they have no effect.
        spec_ngram_simple_size_n: exact number of tokens that are looked up. ``size_m`` is the length of the chain, and
            must be at least as large. ``map_k`` keeps the n-grams in a map, and drafts shorter chains too. ``map_k4v``
            keeps up to four continuations of each, and ``min_hits`` is the required number of occurrences.
        spec_ngram_mod_n_match: number of tokens looked up in a store shared by all requests.
    """

    engine: ClassVar[str] = "llama-cpp"
    read_for: ClassVar[str] = "llama.cpp 0c1e570 (llama-cpp-python 0.3.36)"
    dead: ClassVar[Mapping[str, str]] = {
        "spec_draft_p_split": "llama.cpp's server drafts no second branch",
        "spec_ngram_simple_min_hits": "llama.cpp drafts after a single occurrence at every value",
        "spec_ngram_map_k_min_hits": "llama.cpp drafts after a single occurrence at every value",
    }

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

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        shortest = self.spec_ngram_simple_size_n or 12  # its defaults
        length = self.spec_ngram_simple_size_m or 48
        if self.spec_type == "ngram-simple" and length < shortest:
            raise SettingsError(
                f"llama-cpp: spec_ngram_simple_size_m must be at least spec_ngram_simple_size_n, {shortest}, since "
                f"ngram-simple drafts nothing below it, got {length}; ngram-map-k drafts"
            )
        kind = "draft" if self.spec_type == "draft-simple" else self.spec_type.replace("-", "_")
        other = [name for name in self.given("spec_type") if not name.startswith(f"spec_{kind}_")]
        if other:
            raise SettingsError(f"llama-cpp: {other[0]} must be left out if spec_type is {self.spec_type!r}")
        if kind == "draft" and not self.spec_draft_model:
            raise SettingsError("llama-cpp: spec_draft_model must be set if spec_type is 'draft-simple'")
        if self.spec_draft_model and not is_gguf(self.spec_draft_model):
            why = f"must be a GGUF file, got {self.spec_draft_model!r}"
            raise SettingsError(f"llama-cpp: spec_draft_model {why}")

    @override
    def deployed(self) -> str:
        # section [*] applies to every model
        lines = [f"{name.replace('_', '-')} = {value}" for name, value in self.given().items()]
        return "\n".join(["version = 1", "", "[*]", *lines, ""])


ENGINES = {one.engine: one for one in Settings.__subclasses__()}
"""The settings of each engine, keyed by the value of ``specexp.export --to``."""


def runs_in(parts: Mapping[str, Any]) -> list[str]:
    """Return the engines that decode as specifications of parts do: in chains, with a drafter that they have too.

    Args:
        parts: ``class_path`` and ``init_args`` by family, as in an artifact's ``parts.json``.
    """

    def name(family: str) -> str:
        return str((parts.get(family) or {}).get("class_path", "")).rpartition(".")[2]

    paths = ((parts.get("builder") or {}).get("init_args") or {}).get("rank_paths")
    is_chain = name("builder") == "Chain" or (isinstance(paths, list) and not any(map(any, paths)))
    limits = ((parts.get("controller") or {}).get("init_args") or {}).values()
    controls = name("controller") not in ("", "Fixed") or any(limit is not None for limit in limits)
    if not is_chain or controls or name("execution"):
        return []
    draws = name("drafter") == "DraftModel" and name("verifier") not in ("", "Greedy")
    return [
        engine
        for engine, one in ENGINES.items()
        if name("drafter") in one.drafters and (one.samples_drafts or not draws)
    ]


def engines_note(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a line on the engines that run each row of a table; ``rows`` maps labels to specifications of parts."""
    groups: dict[str, list[str]] = {}
    for label, parts in rows.items():
        groups.setdefault(", ".join(runs_in(parts)), []).append(label)
    others = groups.pop("", [])
    found = [f"{', '.join(labels)} in {engines}" for engines, labels in groups.items()]
    found += [f"{'the others' if found else 'all rows'} in specexp only"] * bool(others)
    return f"runs in: {'; '.join(found)}"
