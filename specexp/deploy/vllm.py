"""A drafter for vLLM that drafts chains with an artifact's parts: ``method: custom_class`` of vLLM 0.32.

``python -m specexp.export ARTIFACT --to vllm`` writes the option. vLLM imports :class:`Proposer` in its own process, so
specexp must be installed there: ``pip install --no-deps specexp``. This module imports numpy, torch, pydantic, PyYAML
and safetensors, which vLLM itself needs, and neither transformers, Lightning nor Optuna.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from specexp.builders.regular_trees import Chain
from specexp.config.artifacts import LoadedArtifact, load_artifact
from specexp.core.context import Context, common_prefix
from specexp.core.contracts import BuilderLimits, Controller, Drafter
from specexp.core.outcome import Outcome
from specexp.core.tree import NO_CANDIDATE, TokenTree
from specexp.drafters.token_drafter import TokenDrafter, drafts_from_tokens
from specexp.drafters.token_recycling import TokenRecycling

_MOST_CANDIDATES = 64  # of a drafter that learns the target's candidates
_IDLE = 16  # sequences that are kept although they are in no batch, such as preempted ones
_MOST_TOKENS = 1_000_000  # texts that a drafter carries are dropped after this many tokens
_NO_LOGITS = torch.empty(0, 0)


def controls_from_counts(controller: Controller) -> bool:
    """Return whether a controller can limit a chain, and learns nothing or from accepted counts alone."""
    needs = controller.needs_log_probs or controller.reads_states or controller.num_choices > 1
    return not needs and not (controller.learns and controller.reads_answers)


def lost_by(drafter: Drafter) -> tuple[str, ...]:
    """Return descriptions of what a drafter learns elsewhere but not from tokens alone."""
    found = [what for one in drafter.inner for what in lost_by(one)]
    if isinstance(drafter, TokenRecycling):
        found.append("the target's candidates (TokenRecycling learns the token that followed)")
    return tuple(dict.fromkeys(found))


@dataclass(slots=True)
class _Sequence:
    """One request's text with its parts, and its latest draft without the root."""

    context: Context
    drafter: TokenDrafter
    controller: Controller
    draft: list[int]


class Proposer:
    """Drafts a chain per request with an artifact's drafter and controller.

    vLLM passes no request ids, and a request may move to another row between steps. So a sequence is found by its text
    before the tokens of this step. A text that is not found, such as a new one, starts a new sequence. Drafters learn
    from the committed tokens alone. Controllers also get the number of accepted tokens, the number of requests in the
    batch and the seconds since the last call.

    In vLLM's configuration, ``speculative_config.revision`` is the artifact's path or reference, and
    ``num_speculative_tokens`` the maximum length of a chain. Raises ArtifactError if the artifact cannot be loaded, and
    ValueError if ``revision`` is missing or the drafter needs more than tokens or another vocabulary.
    """

    def __init__(self, vllm_config: Any) -> None:
        settings, model = vllm_config.speculative_config, vllm_config.model_config
        if not settings.revision:
            raise ValueError("speculative_config: revision must be the path of an artifact, got none")
        self._artifact = load_artifact(settings.revision)
        self._vocab_size = model.get_vocab_size()
        self._limit = model.max_model_len
        self._drafter = self._new_drafter()
        controller = self._artifact.controller
        self._controller = controller if controller and controls_from_counts(controller) else BuilderLimits()
        self._shape = Chain(settings.num_speculative_tokens).shape
        self._sequences: dict[bytes, list[_Sequence]] = {}  # by text, least recently used first
        self._carried = 0  # tokens learned since the drafter was new
        self._called = perf_counter()

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: there is no model."""

    def propose(
        self,
        sampled_token_ids: Sequence[Sequence[int]],
        num_tokens_no_spec: NDArray[np.int32],
        token_ids_cpu: NDArray[np.int32],
        slot_mappings: Any = None,
    ) -> list[list[int]]:
        """Return the drafted tokens of each request.

        ``sampled_token_ids`` holds the new tokens of each request; none if its prompt is not yet processed.
        ``token_ids_cpu`` ``[requests, max length]`` holds the texts. Their lengths in ``num_tokens_no_spec``
        ``[requests]`` include the new tokens. ``slot_mappings`` is not used.
        """
        now = perf_counter()
        seconds = now - self._called
        self._called = now
        if self._carried > _MOST_TOKENS:  # texts that a drafter carries are never dropped one by one
            self._drafter = self._new_drafter()
            self._sequences.clear()
            self._carried = 0
        lanes = sum(map(bool, sampled_token_ids))
        under_way: list[tuple[bytes, _Sequence]] = []
        drafts: list[list[int]] = []
        for row, new in enumerate(sampled_token_ids):
            length = int(num_tokens_no_spec[row])
            if not new or length >= self._limit:
                drafts.append([])
                continue
            text = token_ids_cpu[row, :length]
            one = self._taken(text, len(new))
            if one is None:
                one = self._begun(text)
            else:
                self._learn(one, list(new), seconds)
            one.context.lanes = lanes
            one.draft = self._chain(one, self._limit - length)
            drafts.append(one.draft)
            under_way.append((text.tobytes(), one))
        for key, one in under_way:
            self._sequences.setdefault(key, []).append(one)
        while len(self._sequences) > len(under_way) + _IDLE:
            del self._sequences[next(iter(self._sequences))]
        return drafts

    def _taken(self, text: NDArray[np.int32], new: int) -> _Sequence | None:
        """Remove and return a sequence with this text before its ``new`` last tokens; None if there is none."""
        before = text[: text.size - new].tobytes()
        known = self._sequences.get(before)
        if known is None:
            return None
        if len(known) == 1:
            del self._sequences[before]
        return known.pop()

    def _begun(self, text: NDArray[np.int32]) -> _Sequence:
        context = Context(text.tolist(), sequence=self._carried)
        one = _Sequence(context, self._drafter.for_new_sequence(), self._controller.for_new_sequence(), [])
        one.drafter.begin(context, None)
        one.controller.begin(context, None)
        self._carried += text.size
        return one

    def _learn(self, one: _Sequence, new: list[int], seconds: float) -> None:
        one.context.append(new)
        one.context.steps += 1
        self._carried += len(new)
        accepted = common_prefix(one.draft, new[:-1])
        # after rejected tokens the target's answers are unknown, and a drafter would take them for answers
        one.drafter.observe(self._outcome(one, new, accepted, accepted, seconds))
        if not one.controller.same_plan:
            one.controller.observe(self._outcome(one, new, accepted, len(one.draft), seconds))

    def _outcome(self, one: _Sequence, new: list[int], accepted: int, nodes: int, seconds: float) -> Outcome:
        """Return the outcome of the first ``nodes`` tokens of a draft. The context holds the new tokens already."""
        root = int(one.context.token_ids[-1 - len(new)])
        tree = TokenTree(self._shape.first_nodes(nodes), np.array([root, *one.draft[:nodes]], dtype=np.int64))
        best = np.full((nodes + 1, _MOST_CANDIDATES), NO_CANDIDATE, dtype=np.int64)
        best[: accepted + 1, 0] = new[: accepted + 1]
        rows = tuple(range(1, accepted + 1))
        top = (best, np.zeros(best.shape, dtype=np.float32))
        return Outcome(one.context, tree, _NO_LOGITS, rows, tuple(new), seconds={"target": seconds}, top=top)

    def _chain(self, one: _Sequence, room: int) -> list[int]:
        plan = one.controller.plan(one.context)
        limits = (self._shape.num_nodes, room, plan.max_depth, plan.max_nodes)
        depth = min(limit for limit in limits if limit is not None)
        chain: list[int] = []
        while len(chain) < depth:
            token = one.drafter.next_token(one.context, tuple(chain))
            if token == NO_CANDIDATE:
                break
            chain.append(token)
        return chain

    def _new_drafter(self) -> TokenDrafter:
        drafter = LoadedArtifact(self._artifact.content).drafter
        if not isinstance(drafter, TokenDrafter) or not drafts_from_tokens(drafter):
            raise ValueError(
                f"{self._artifact.folder}: the drafter must draft from tokens alone, got {type(drafter).__name__}"
            )
        drafter.check_vocabulary(self._vocab_size)
        return drafter
