"""SGLang: flags of its server, and the file of its adaptive speculation."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field
from typing_extensions import override

from specexp.engines.settings.settings import Settings, SettingsError

_TRIPLE = ("num_steps", "eagle_topk", "num_draft_tokens")
_NGRAM = (
    "ngram_min_bfs_breadth",
    "ngram_max_bfs_breadth",
    "ngram_match_type",
    "ngram_max_trie_depth",
    "ngram_capacity",
    "ngram_external_corpus_path",
    "ngram_external_sam_budget",
    "ngram_external_corpus_max_tokens",
)
_STEPPED = ("EAGLE", "EAGLE3", "NEXTN", "STANDALONE")
_GLOBAL = ("ema_alpha", "warmup_batches", "update_interval")
"""Keys of the adaptive file beside numbers of requests."""
_Positive = Annotated[int, Field(ge=1)]


@dataclass(frozen=True)
class SglangSettings(Settings):
    """Its flags without ``--speculative-`` and with underscores; what is None is left to SGLang.

    Args:
        algorithm: how drafts are made; ``STANDALONE`` is a draft model of its own.
        draft_model_path: the draft model or the heads.
        num_steps: draft passes of a step: depth.
        eagle_topk: branches of a node; 1 drafts a chain.
        num_draft_tokens: tokens verified in a step, the root among them.
        accept_threshold_single: 1 accepts what the target says; less is not lossless.
        accept_threshold_acc: likewise.
        use_rejection_sampling: accepts by rejection sampling.
        ngram_min_bfs_breadth: fewest continuations of a node.
        ngram_max_bfs_breadth: most continuations of a node.
        ngram_match_type: which continuations are taken.
        ngram_max_trie_depth: longest n-gram kept.
        ngram_capacity: nodes kept.
        ngram_external_corpus_path: JSONL, every line one JSON text.
        ngram_external_sam_budget: nodes for that text.
        ngram_external_corpus_max_tokens: most tokens of it.
        adaptive: the adaptive file: by requests at once the ``candidate_steps`` and hystereses, and global keys.

    Raises:
        SettingsError: flags contradict one another, or would change the output.
    """

    engine: ClassVar[str] = "sglang"
    read_for: ClassVar[str] = "SGLang's main branch of autumn 2026"

    algorithm: Literal["DFLASH", "DSPARK", "EAGLE", "EAGLE3", "NEXTN", "STANDALONE", "NGRAM"]
    draft_model_path: str | None = None
    num_steps: _Positive | None = None
    eagle_topk: _Positive | None = None
    num_draft_tokens: _Positive | None = None
    accept_threshold_single: Annotated[float, Field(gt=0, le=1)] | None = None
    accept_threshold_acc: Annotated[float, Field(gt=0, le=1)] | None = None
    use_rejection_sampling: bool | None = None
    ngram_min_bfs_breadth: _Positive | None = None
    ngram_max_bfs_breadth: _Positive | None = None
    ngram_match_type: Literal["BFS", "PROB"] | None = None
    ngram_max_trie_depth: _Positive | None = None
    ngram_capacity: _Positive | None = None
    ngram_external_corpus_path: str | None = None
    ngram_external_sam_budget: _Positive | None = None
    ngram_external_corpus_max_tokens: _Positive | None = None
    adaptive: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.algorithm == "STANDALONE" and not self.draft_model_path:
            raise SettingsError("sglang: algorithm STANDALONE needs draft_model_path, and none is given")
        self.refuse_unless("algorithm", ("NGRAM",), _NGRAM)
        self._check_shape()
        for name in ("accept_threshold_single", "accept_threshold_acc"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise SettingsError(
                    f"sglang: {name} is {value:g}, and below 1 the output is not the target's: leave it out"
                )
        low, high = self.ngram_min_bfs_breadth, self.ngram_max_bfs_breadth
        if low is not None and high is not None and low > high:
            raise SettingsError(f"sglang: ngram_min_bfs_breadth is {low}, above ngram_max_bfs_breadth {high}")
        if self.adaptive is not None:
            self._check_adaptive(self.adaptive)

    def _check_shape(self) -> None:
        if self.algorithm == "NGRAM":
            self.refuse_unless("algorithm", _STEPPED, ("num_steps", "eagle_topk"))
            return
        given = [name for name in _TRIPLE if getattr(self, name) is not None]
        if given and len(given) < len(_TRIPLE):
            raise SettingsError(
                f"sglang: {' and '.join(given)} {'is' if len(given) == 1 else 'are'} given; {', '.join(_TRIPLE)} "
                "are set all or not at all"
            )
        if self.eagle_topk == 1 and self.num_draft_tokens != (self.num_steps or 0) + 1:
            raise SettingsError(
                f"sglang: num_draft_tokens is {self.num_draft_tokens}; a chain (eagle_topk 1) of num_steps "
                f"{self.num_steps} verifies {(self.num_steps or 0) + 1}, the root among them"
            )

    def _check_adaptive(self, adaptive: dict[str, Any]) -> None:
        if self.algorithm not in ("EAGLE", "EAGLE3") or self.eagle_topk != 1:
            raise SettingsError(
                f"sglang: adaptive is for EAGLE and EAGLE3 with eagle_topk 1, and algorithm is {self.algorithm} with "
                f"eagle_topk {self.eagle_topk}: leave it out"
            )
        slots = {key: value for key, value in adaptive.items() if key not in _GLOBAL}
        for key, slot in slots.items():
            steps = slot.get("candidate_steps") if isinstance(slot, dict) else None
            whole = isinstance(steps, list) and all(type(one) is int and one >= 0 for one in steps)
            if not key.isdecimal() or not steps or not whole:
                raise SettingsError(
                    f"sglang: adaptive.{key} is {slot!r}; a number of requests with candidate_steps, a list of lengths "
                    f"from 0, or one of {', '.join(_GLOBAL)} is allowed"
                )

    @override
    def deployed(self) -> str:
        """The flags in one line; where there is an adaptive file, what it holds in the next."""
        words = [
            f"--speculative-{name.replace('_', '-')}" + ("" if value is True else f" {value}")
            for name, value in self.given("adaptive").items()
            if value is not False
        ]
        if self.adaptive is None:
            return " ".join(words) + "\n"
        words.append("--speculative-adaptive --speculative-adaptive-config adaptive.json")
        return f"{' '.join(words)}\n{json.dumps(self.adaptive)}\n"
