"""Drafts with a second causal language model that has the target's vocabulary and its own KV cache."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterator, Sequence
from copy import copy, deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from specexp.core.context import Context
from specexp.core.contracts import Drafter, LearnsFrom
from specexp.core.dialogue import Candidates, Filled, Request
from specexp.core.outcome import Outcome
from specexp.core.runtime import Runtime
from specexp.core.tree import TreeShape
from specexp.drafters.draft_source import DraftSource, Fed, ModelSource
from specexp.drafters.draft_vocabulary import DraftVocabulary, VocabularyFile, VocabularySize
from specexp.drafters.ranking import Scoring, Temperature, TopK, TopP, answered_in_part

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class DraftModel(Drafter):
    """Drafts with a smaller model, which processes the nodes of the tree as it grows.

    One pass feeds all frontier nodes that the model has not processed yet; a repeated request needs no pass. After a
    step, the cache keeps the rows of accepted nodes and drops the others. Candidates are the most probable tokens or
    random draws. The random numbers for a draw depend only on its place: seed, sequence, root position and the parent's
    rank path. The tree therefore does not depend on how passes are batched.

    A PARD model has a ``pard_token`` in its configuration. It drafts all depths in one pass, so all nodes at a given
    depth have the same candidates.

    Args:
        model: a Hugging Face causal LM; if None, the pair's draft model is used.
        temperature: temperature of the draft's distribution; None means 1, or the target's temperature if ``coupled``.
        top_k: keep only this many of the most probable tokens.
        top_p: keep only the smallest set of most probable tokens with at least this total probability.
        coupled: for the verifier ``KeyedSampling``: rank tokens by their score plus the noise that the target adds at
            that position. The output is unchanged, but more drafts are accepted. Log-probabilities are computed from
            the noisy scores, and candidates are never drawn.
        vocabulary: JSON file with a list of token ids, most frequent first. Only these can be drafted, which makes the
            output layer smaller. Their probabilities are those of the full layer, rescaled to sum to 1. If None, use
            ``draft_vocabulary`` from the model's configuration, or all ids if it has none.
        vocabulary_size: number of ids to use from the file; None for all. Without a file, the lowest ids are used,
            which are roughly the most frequent tokens of a BPE tokenizer.

    Raises:
        ValueError: ``coupled`` is given with a temperature, or ``model`` is a string.
    """

    gives_log_probs = True
    learns_from: LearnsFrom = "nothing"
    runs_model = True
    _filled: TreeShape | None  # shape of a tree that was drafted as a whole

    def __init__(
        self,
        model: object | None = None,
        temperature: Temperature | None = None,
        top_k: TopK | None = None,
        top_p: TopP | None = None,
        coupled: bool = False,
        vocabulary: VocabularyFile | None = None,
        vocabulary_size: VocabularySize | None = None,
    ) -> None:
        if isinstance(model, str):
            raise ValueError(
                f"DraftModel: model must be a Hugging Face model, got the name {model!r}: set pair.draft to it instead"
            )
        self.temperature = temperature
        self.top_k = top_k
        self.top_p = top_p
        self.coupled = coupled
        self.draws = not coupled
        self._scoring = Scoring(temperature, top_k, top_p, coupled)
        self._vocabulary = vocabulary, vocabulary_size
        self.scoring = None if vocabulary else self._scoring  # recordings have the whole vocabulary
        self._siblings = _Siblings()
        self._context: Context | None = None  # the sequence in the cache
        self._source: DraftSource | None = None
        self._given: object | None = None  # the model behind the source
        self._has_own = False
        self._forget_tree()
        if model is not None:
            self.use_draft_model(cast("PreTrainedModel", model))
        self._has_own = model is not None  # from here on the pair's draft does not replace it

    @override
    def use_draft_model(self, model: PreTrainedModel | Runtime | DraftSource | None) -> None:
        """Use the pair's draft model or a recording of it, unless the constructor was given a model.

        A runtime is copied, so drafters share its weights but have their own caches.
        """
        if self._has_own or (model is None and self._source is not None):
            return
        if model is None:
            raise ValueError(
                "DraftModel needs a draft model and the pair has none: set pair.draft, or pass DraftModel(model)"
            )
        if model is self._given:
            return
        if isinstance(model, DraftSource):
            source = model
        else:
            from specexp.core.language_model import runtime_for

            runtime = deepcopy(model) if isinstance(model, Runtime) else runtime_for(model)
            reduced = DraftVocabulary.read(*self._vocabulary, runtime.vocab_size) or DraftVocabulary.of(runtime)
            if reduced is not None:
                runtime = reduced.runtime(runtime)
            source = _source_of(runtime)
            self.scoring = None if source.parallel else self.scoring  # recordings have a model's own answers
        self.reset()
        self._source = source
        self._given = model
        self._siblings = _Siblings()  # the old siblings' caches hold rows of the previous model

    @property
    def source(self) -> DraftSource:
        """The model or recording that answers the drafter's passes. Raises ``ValueError`` if it is not set yet."""
        if self._source is None:
            raise ValueError("DraftModel has no model yet: pass one, as in DraftModel(pair.draft)")
        return self._source

    @property
    @override
    def models(self) -> tuple[Runtime, ...]:
        return (self._source.model,) if isinstance(self._source, ModelSource) else ()

    @override
    def for_new_sequence(self) -> DraftModel:
        other = copy(self)
        other._source = None if self._source is None else self._source.for_new_sequence()
        other._context = None
        other._forget_tree()
        return other

    @property
    @override
    def max_candidates(self) -> int:
        return 2**31 if self._source is None else self._source.vocab_size

    @override
    def check_vocabulary(self, vocab_size: int) -> None:
        if self.source.vocab_size != vocab_size:
            raise ValueError(
                f"the draft model must have the target's vocabulary of {vocab_size} tokens, got "
                f"{self.source.vocab_size}: choose another draft model"
            )

    @override
    def begin(self, context: Context, prefill: Outcome | None) -> None:
        source = self.source
        is_next_turn = context.continued and context is self._context
        kept = source.length if is_next_turn else self._known_of(context)
        source.truncate(kept)  # also drops the rows of an unfinished step
        # a sibling may hold a longer prefix of this prompt: copying its rows is cheaper than a prefill
        known = {one: one._known_of(context) for one in self._siblings} if not is_next_turn else {}
        other = max(known, key=lambda one: known[one], default=self)
        if known.get(other, 0) > kept:
            source.copy_from(other.source, known[other])
        self._forget_tree()
        self._context = context
        self._siblings.add(self)
        source.prefill(context.token_ids[source.length : min(len(context) - 1, source.context_limit)].tolist())

    @override
    def path_states(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        node, found = 0, []
        for token in tokens:
            if (node := self._children.get((node, token), -1)) < 0:
                break
            found.append(self.source.state(self._answers[node]))
        return np.array(found, dtype=np.float32)

    @override
    def costs_pass(self, request: Request) -> bool:
        return not self._answers or (not self.source.parallel and None in self._nodes_of(request))

    @override
    def drop_answers(self, request: Request) -> None:
        gone = set(self._nodes_of(request))
        for place in [place for place, node in self._children.items() if node in gone]:
            del self._children[place]

    @override
    def propose(self, context: Context, request: Request) -> Candidates:
        return self.propose_together([(self, context, request)])[0]

    @override
    def fill(self, context: Context, shape: TreeShape) -> Filled | None:
        pending = len(context) - self.source.length
        tokens = self.source.draft(self._scoring, context, shape)
        if tokens is None:
            return None
        self._pending = pending
        self._filled = shape
        return Filled(tokens, (pending, *shape.fed_sizes))

    @property
    @override
    def team(self) -> Hashable:
        return None if self._source is None else self._source.team

    @override
    def propose_together(self, requested: Sequence[tuple[DraftModel, Context, Request]]) -> list[Candidates]:
        found = [
            (drafter, context, request, *drafter._rows_to_feed(context, request))
            for drafter, context, request in requested
        ]
        feeding = [(drafter, context, fed) for drafter, context, _, _, fed in found if fed is not None]
        if feeding:  # one pass of the model for all sequences
            answered = self.source.feed_together([(one.source, context, fed) for one, context, fed in feeding])
            for (drafter, _, _), answers in zip(feeding, answered, strict=True):
                drafter._answers += answers
        whole = [
            (drafter.source, context, request, [drafter._answers[node] for node in nodes if node is not None])
            for drafter, context, request, nodes, _ in found
            if None not in nodes
        ]
        together = iter(self.source.candidates_together(self._scoring, whole) if whole else ())
        candidates = []
        for drafter, context, request, nodes, fed in found:
            in_part = None in nodes  # some rows are beyond the draft's context
            one = drafter._in_part(context, request, nodes) if in_part else next(together)
            costs = fed is not None and not (fed.known and drafter.source.parallel)
            candidates.append(replace(one, pass_tokens=(len(fed.tokens),)) if fed and costs else one)
        return candidates

    @override
    def observe(self, outcome: Outcome) -> None:
        node, kept = 0, list(range(self._pending))
        if self._filled is not None:
            nodes = self._filled.fed_nodes.tolist()
            accepted = outcome.accepted if outcome.tree.shape is self._filled else ()
            kept += [self._pending + nodes.index(row) for row in accepted if row in nodes]
        else:
            for row in outcome.accepted:
                node = self._children.get((node, int(outcome.tree.tokens[row])), 0)
                if node == 0:  # the last accepted node is a leaf that was never fed
                    break
                kept.append(self._pending - 1 + node)
        if kept:  # the new root is fed in the next step
            self.source.commit(kept[: len(outcome.context) - 1 - self.source.length])
        self._forget_tree()

    @override
    def reset(self) -> None:
        if self._source is not None:
            self._source.truncate(0)
        self._context = None
        self._forget_tree()

    def _known_of(self, context: Context) -> int:
        """Return how many cached rows are bitwise equal to those that a prefill of this sequence would write.

        If rows do not depend on the other rows in their pass, these are the rows of the common prefix. Otherwise, the
        whole prompt must match.
        """
        last, prompt = self._context, context.token_ids[: context.prompt_length]
        if last is None:
            return 0
        same = np.equal(last.token_ids[: prompt.size], prompt[: len(last)])
        common = same.size if same.all() else int(same.argmin())  # argmin: the first False
        if not self.source.independent_rows:
            whole = common == prompt.size == last.prompt_length and not last.continued
            common = common if whole else 0
        return max(min(common, prompt.size - 1, self.source.length), 0)

    def _forget_tree(self) -> None:
        self._filled = None
        self._pending = 0  # committed tokens fed in the step's first pass, the root last
        self._children: dict[tuple[int, int], int] = {}  # (fed node, token) -> fed node; the root is node 0
        self._answers: list[Any] = []  # the answer for each fed node, in the source's own format
        self._ancestors: list[list[int]] = []  # for each fed node: the nodes on its path, including itself

    def _nodes_of(
        self, request: Request, enter: Callable[[int, int], int | None] = lambda node, token: None
    ) -> Iterator[int | None]:
        """Yield the fed node for each frontier row. ``enter`` may create a missing node from its parent and token."""
        tokens = request.tokens.tolist()
        parents = request.parents.tolist()
        children = self._children
        found: dict[int, int | None] = {0: 0}  # row -> node
        for frontier in request.rows.tolist():
            row, path = frontier, []
            while row not in found:
                path.append(row)
                row = parents[row]
            node = found[row]
            for row in reversed(path):
                if node is not None:
                    above, node = node, children.get((node, tokens[row]))
                    if node is None:
                        node = enter(above, tokens[row])
                found[row] = node
            yield node

    def _rows_to_feed(self, context: Context, request: Request) -> tuple[Sequence[int | None], Fed | None]:
        """Return each frontier row's node (None beyond the context limit), and the pass to feed new nodes, if any."""
        source = self.source
        past, old = source.length, len(self._ancestors)
        tokens: list[int] = []
        if old == 0:
            tokens = context.token_ids[past:].tolist()
            if past + len(tokens) > source.context_limit:
                return [None] * request.rows.size, None
            self._pending = len(tokens)
            self._ancestors.append([0])
        depths = list(range(len(tokens)))
        room = source.context_limit - past
        ancestors, children = self._ancestors, self._children

        def enter(parent: int, token: int) -> int | None:
            above = ancestors[parent]
            depth = self._pending + len(above) - 1
            if depth >= room or len(above) >= source.most_depth:
                return None
            node = children[parent, token] = len(ancestors)
            ancestors.append([*above, node])
            tokens.append(token)
            depths.append(depth)
            return node

        nodes = list(self._nodes_of(request, enter))
        return nodes, Fed(tokens, depths, self._pending, old, ancestors) if tokens else None

    def _in_part(self, context: Context, request: Request, nodes: Sequence[int | None]) -> Candidates:
        fed = [index for index, node in enumerate(nodes) if node is not None]
        return answered_in_part(request, self.source.vocab_size, fed, lambda part: self.propose(context, part))


def _source_of(runtime: Runtime) -> DraftSource:
    if getattr(getattr(runtime.model, "config", None), "pard_token", None) is None:
        source: DraftSource = (runtime.draft_source or ModelSource)(runtime)
        return source
    from specexp.drafters.parallel import PardSource

    return PardSource(runtime)


class SelfDrafter(DraftModel):
    """A :class:`DraftModel` that runs a model made from the target's weights. Recordings do not contain its answers.

    Subclasses make the model in :meth:`use_target` and pass it to :meth:`draft_with`.
    """

    def __init__(
        self,
        temperature: Temperature | None = None,
        top_k: TopK | None = None,
        top_p: TopP | None = None,
        coupled: bool = False,
    ) -> None:
        super().__init__(None, temperature, top_k, top_p, coupled)
        self.scoring = None

    @override
    def use_draft_model(self, model: PreTrainedModel | Runtime | DraftSource | None) -> None: ...

    @override
    def check_vocabulary(self, vocab_size: int) -> None: ...  # the vocabulary is the target's

    @abstractmethod
    @override
    def use_target(self, target: Runtime) -> None: ...

    def draft_with(self, model: Runtime | DraftSource) -> None:
        """Draft with this model, which was made from the target's weights."""
        super().use_draft_model(model)


class _Siblings(WeakSet[DraftModel]):
    """Drafters that share a model and hold a sequence in its cache. A copy starts empty, even in another process."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _Siblings, ()
