"""Suffix lookup in current and past texts and a corpus (REST, He et al. 2024; SuffixDecoding, Oliaro et al. 2025)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import inf, log
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field
from typing_extensions import override

from specexp.base.checked import Reference
from specexp.core.context import Context, PerSequence
from specexp.core.dialogue import Candidates, Request
from specexp.core.outcome import Outcome
from specexp.core.tree import NO_CANDIDATE
from specexp.drafters.suffix_index import Followers, Run, SuffixArray, SuffixIndex
from specexp.drafters.token_drafter import TokenDrafter

Estimate = Literal["escape", "frequency"]


class SuffixAutomaton(TokenDrafter):
    """Finds the longest earlier match for the tokens ending at a node, and proposes the tokens that followed it.

    It searches the prompt and the output so far, earlier texts (with ``state="carry"``) and a ``corpus`` (if given).
    With a corpus, this is REST (He et al. 2024); with earlier texts, it is SuffixDecoding (Oliaro et al. 2025).
    Candidate probabilities are estimated from occurrence counts. For SuffixDecoding's greedy tree, use
    :class:`~specexp.builders.DySpecGreedy` with ``top-k`` candidates.

    Args:
        corpus: arrays of a :class:`~specexp.drafters.suffix_index.SuffixArray`; in a configuration, the path to a
            ``suffix-corpus`` artifact.
        min_run: length of the shortest run to look up, in tokens.
        candidates: maximum number of candidates per node.
        estimate: how a candidate's probability is estimated. ``frequency``, as published, is the share of the longest
            run's occurrences that this candidate follows. ``escape`` (prediction by partial matching, method C)
            reserves some probability for tokens not seen after that run. This part is divided among the followers of
            shorter runs, so a continuation seen only once is not treated as certain.
        reach: maximum draft depth, as a multiple of the length of the run matched at the root (SuffixDecoding's
            ``max_spec_factor``); None for no limit.
        state: ``cold`` searches only the current prompt and its output; ``carry`` also searches all earlier texts.

    Raises:
        ValueError: the corpus is empty or damaged.
    """

    gives_log_probs = True
    learns_from = "nothing"
    max_candidates: int = 1

    def __init__(
        self,
        corpus: Annotated[Mapping[str, Any], Reference("suffix-corpus")] | None = None,
        min_run: Annotated[int, Field(ge=1, le=64)] = 1,
        candidates: Annotated[int, Field(ge=1, le=64)] = 8,
        estimate: Estimate = "escape",
        reach: Annotated[float, Field(gt=0)] | None = None,
        state: Literal["cold", "carry"] = "cold",
    ) -> None:
        self.min_run = min_run
        self.max_candidates = candidates
        self.estimate = estimate
        self.reach = reach
        self.state = state
        self._corpus = None if corpus is None else SuffixArray(corpus)
        self.reset()

    @override
    def check_vocabulary(self, vocab_size: int) -> None:
        if self._corpus is not None and self._corpus.largest_token >= vocab_size:
            raise ValueError(
                f"the corpus' token ids must be from 0 to {vocab_size - 1}, as in the target's vocabulary, got "
                f"{self._corpus.largest_token}: make the corpus with the target's tokenizer"
            )

    @override
    def begin(self, context: Context, prefill: Outcome | None) -> None:
        if context not in self._texts:
            if self.state == "cold":
                self._kept.clear()
            self._texts[context] = text = _Text(self._index if self.state == "carry" else SuffixIndex())
            self._kept.append(text)
        self._extend(context)

    @override
    def propose(self, context: Context, request: Request) -> Candidates:
        tokens = np.full((request.rows.size, request.k), NO_CANDIDATE, dtype=np.int64)
        log_probs = np.full(tokens.shape, -inf, dtype=np.float32)
        wanted, text = min(request.k, self.max_candidates), self._current(context)
        for number, row in enumerate(request.rows.tolist()):
            found = self._ranked(text, request.path_tokens(row), wanted)
            tokens[number, : len(found)] = [token for token, _ in found]
            log_probs[number, : len(found)] = [value for _, value in found]
        return Candidates(tokens, log_probs)

    @override
    def next_token(self, context: Context, path: tuple[int, ...]) -> int:
        found = self._ranked(self._current(context), path, 1)
        return found[0][0] if found else NO_CANDIDATE

    @override
    def observe(self, outcome: Outcome) -> None:
        self._extend(outcome.context)

    @override
    def reset(self) -> None:
        self._index = SuffixIndex()  # index of all texts, if state is "carry"
        self._kept: list[_Text] = []  # in the order in which they began
        self._texts: PerSequence[_Text] = PerSequence()

    @override
    def state_dict(self) -> dict[str, Any]:
        """Return the stored texts: their concatenated ``tokens`` ``[n]`` and their ``lengths`` ``[texts]``."""
        if self.state == "cold":
            return {}
        import torch  # imported late: checking a configuration does not need it

        texts = [text.tokens for text in self._kept if text.tokens]
        return {
            "tokens": torch.tensor([token for text in texts for token in text], dtype=torch.int32),
            "lengths": torch.tensor([len(text) for text in texts], dtype=torch.int64),
        }

    @override
    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.state == "cold":
            super().load_state_dict(state)
            return
        self.check_entries(state, ("lengths", "tokens"))
        tokens, lengths = np.asarray(state["tokens"]), np.asarray(state["lengths"])
        if lengths.min(initial=1) < 1 or lengths.sum() != tokens.size or tokens.min(initial=0) < 0:
            raise ValueError(
                f"the saved texts are damaged: lengths must add up to {tokens.size} tokens, got {lengths.sum()}"
            )
        under_way = list(self._texts)
        self.reset()
        for end, length in zip(lengths.cumsum().tolist(), lengths.tolist(), strict=True):
            self._kept.append(text := _Text(self._index))
            text.extend(tokens[end - length : end].tolist())
        known = {tuple(text.tokens): text for text in self._kept}
        for context in under_way:
            self._texts[context] = known.get(tuple(context.token_ids.tolist())) or _Text(self._index)
            if not self._texts[context].tokens:
                self._kept.append(self._texts[context])
            self._extend(context)

    def _extend(self, context: Context) -> None:
        text = self._texts[context]
        text.extend(context.token_ids[len(text.tokens) :].tolist())

    def _current(self, context: Context) -> _Text:
        """Return a sequence's text with this step's lookups, which include the root's."""
        text = self._texts[context]
        clock = text.index.clock
        if text.walked != clock:  # any sequence may have added to the index, which makes lookups stale
            text.walks.clear()
            text.walked = clock
            corpus = None if self._corpus is None else self._corpus.longest(text.tokens)
            text.walks[()] = root = (text.place, len(text.tokens), corpus)
            if self.reach is not None:
                text.deepest = self.reach * next((length for length, _ in self._levels(text, root)), 0)
        return text

    def _walk(self, text: _Text, path: tuple[int, ...]) -> _Walk:
        known = text.walks.get(path)
        if known is None:
            place, length, run = self._walk(text, path[:-1])
            place, length = text.index.step(place, length, path[-1])
            corpus = self._corpus
            if corpus is not None and run is not None:
                run = corpus.step(run, path[-1]) or corpus.longest([*text.tokens[-64:], *path])
            known = text.walks[path] = (place, length, run)
        return known

    def _levels(self, text: _Text, walk: _Walk) -> Iterator[tuple[int, Followers]]:
        """Return the length and followers of each run that ends at a node, longest first. On ties, texts come first."""
        place, length, run = walk
        levels = text.index.known(place, length)
        if self._corpus is not None and run is not None and run[2] > 0:
            levels = iter(sorted([*levels, (run[2], self._corpus.followers(run))], key=lambda level: -level[0]))
        return (level for level in levels if level[0] >= self.min_run and level[1])

    def _ranked(self, text: _Text, path: tuple[int, ...], wanted: int) -> list[tuple[int, float]]:
        found: dict[int, float] = {}
        left = 1.0  # probability not yet assigned by longer runs
        for _, followers in self._levels(text, self._walk(text, path)) if len(path) < text.deepest else ():
            fresh = [(token, count) for token, count in followers if token not in found]
            if not fresh:
                continue
            # method C: P(token) = n(token) / (n + d), P(escape) = d / (n + d), with d distinct followers
            escape = len(fresh) if self.estimate == "escape" else 0
            total = sum(count for _, count in fresh) + escape
            found.update((token, left * count / total) for token, count in fresh)
            left *= escape / total
            # shorter runs share what is left, so they cannot overtake the best candidates
            if left == 0 or (wanted == 1 and left <= max(found.values())):
                break
        best = sorted(found.items(), key=lambda one: -one[1])[:wanted]
        return [(token, log(probability)) for token, probability in best]


_Walk = tuple[int, int, Run | None]
"""A lookup: state and length of the run found in the texts, and the run found in the corpus."""


class _Text:
    """A text and its position in an index of this text or of all texts."""

    def __init__(self, index: SuffixIndex) -> None:
        self.index = index
        self.tokens: list[int] = []
        self.place = 0
        self.walks: dict[tuple[int, ...], _Walk] = {}  # lookups by path, valid until the index grows
        self.walked = -1
        self.deepest = inf  # depth of the deepest node that gets candidates

    def extend(self, tokens: list[int]) -> None:
        self.tokens += tokens
        for token in tokens:
            self.place = self.index.add(self.place, token)
