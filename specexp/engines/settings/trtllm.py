"""TensorRT-LLM: the block ``speculative_config`` of the YAML that ``--config`` names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import yaml
from pydantic import Field
from typing_extensions import override

from specexp.engines.settings.settings import Settings, SettingsError

_NGRAM = ("max_matching_ngram_size", "is_public_pool", "is_keep_all", "is_use_oldest")
_TREE = ("use_dynamic_tree", "dynamic_tree_max_topK", "max_total_draft_tokens")
_Positive = Annotated[int, Field(ge=1)]


@dataclass(frozen=True)
class TrtllmSettings(Settings):
    """Its fields by their own names; what is None is left to TensorRT-LLM.

    Args:
        decoding_type: how drafts are made.
        max_draft_len: length of a chain, or depth of a tree.
        speculative_model: the draft model or the heads.
        use_dynamic_tree: draft a tree, of Eagle3 alone.
        dynamic_tree_max_topK: branches of its nodes.
        max_total_draft_tokens: its nodes.
        max_matching_ngram_size: longest n-gram looked up.
        is_public_pool: whether requests share what they know.
        is_keep_all: whether all continuations are kept.
        enable_global_pool: whether suffix automata of other requests are searched too.
        is_use_oldest: which of them is taken; false is our order.
        max_concurrency: most requests at once that speculate.
        draft_len_schedule: length by requests at once.
        acceptance_rate_window_size: steps that are looked at.
        acceptance_rate_threshold: below it speculation ends for good.
        use_rejection_sampling: accepts by rejection sampling.

    Raises:
        SettingsError: fields contradict one another.
    """

    engine: ClassVar[str] = "trtllm"
    read_for: ClassVar[str] = "TensorRT-LLM's main branch of autumn 2026"

    decoding_type: Literal[
        "AUTO", "DFlash", "DSpark", "Draft_Target", "Eagle3", "Eagle", "MTP", "NGram", "PARD", "SA", "SaveState",
        "User_Provided",
    ]  # fmt: skip
    max_draft_len: _Positive
    speculative_model: str | None = None
    use_dynamic_tree: bool | None = None
    dynamic_tree_max_topK: _Positive | None = None  # noqa: N815 - its name
    max_total_draft_tokens: _Positive | None = None
    max_matching_ngram_size: _Positive | None = None
    is_public_pool: bool | None = None
    is_keep_all: bool | None = None
    is_use_oldest: bool | None = None
    enable_global_pool: bool | None = None
    max_concurrency: _Positive | None = None
    draft_len_schedule: dict[int, Annotated[int, Field(ge=0)]] | None = None
    acceptance_rate_window_size: Annotated[int, Field(ge=0)] | None = None
    acceptance_rate_threshold: Annotated[float, Field(ge=0, le=1)] | None = None
    use_rejection_sampling: bool | None = None

    def __post_init__(self) -> None:
        if self.decoding_type == "Draft_Target" and not self.speculative_model:
            raise SettingsError(
                "trtllm: decoding_type Draft_Target needs speculative_model, and none is given"
            )
        self.refuse_unless("decoding_type", ("NGram",), _NGRAM)
        self.refuse_unless("decoding_type", ("SA",), ("enable_global_pool",))
        self.refuse_unless("decoding_type", ("Eagle3",), _TREE)
        if self.use_dynamic_tree:
            depth, nodes, branches = (
                self.max_draft_len,
                self.max_total_draft_tokens,
                self.dynamic_tree_max_topK,
            )
            if nodes is None or branches is None or not depth <= nodes <= branches * depth:
                raise SettingsError(
                    f"trtllm: max_total_draft_tokens is {nodes} and dynamic_tree_max_topK {branches}; of a "
                    "dynamic tree "
                    f"max_draft_len {depth} <= max_total_draft_tokens <= dynamic_tree_max_topK * {depth} is allowed"
                )
        schedule = self.draft_len_schedule
        if schedule is not None and (
            schedule.get(1) != self.max_draft_len
            or min(schedule) < 1
            or max(schedule.values()) > self.max_draft_len
        ):
            raise SettingsError(
                f"trtllm: draft_len_schedule is {schedule}; lengths by requests at once are allowed, that of 1 being "
                f"max_draft_len {self.max_draft_len} and none longer"
            )

    @override
    def deployed(self) -> str:
        """The YAML block."""
        return yaml.safe_dump({"speculative_config": self.given()}, sort_keys=False)
