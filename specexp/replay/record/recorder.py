"""Records turns: first plain decoding, then the coverage's builders at every root, and finally learning drafters.

A draft model is run at every root of the output, since a replay may visit any of them. A learning drafter depends on
all its earlier steps, so it decodes once with each builder of the coverage. A replay with one of these builders learns
from the same outcomes. A replay with any other builder learns only from outcomes that were recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import InitVar, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import override

from specexp.bench.arm import Generation, sequence_name
from specexp.builders import BeamRerank, DySpecGreedy
from specexp.core.context import Context
from specexp.core.contracts import Drafter, TreeBuilder, Verifier
from specexp.core.dialogue import Candidates, Request, Selection, Verdict
from specexp.core.loop import Decoder, Decoding, Drafting, Lane, draft_together
from specexp.core.outcome import Outcome, prefill_outcome
from specexp.core.parts import Parts
from specexp.core.tree import NO_CANDIDATE, NodeKind, TokenTree, TreeShape, root_tree
from specexp.drafters.draft_source import DraftSource, Fed, ModelSource
from specexp.drafters.ranking import Scoring
from specexp.replay.format.recording import RecordedTurn
from specexp.replay.format.trie import TrieWriter
from specexp.replay.play.fidelity import learns, models_in
from specexp.replay.play.player import NO_LOGITS, add_fed_nodes

if TYPE_CHECKING:
    from specexp.core.runtime import Runtime
    from specexp.data import Prompt

_ROWS = 256
"""Maximum number of drafted nodes per target pass. Exceeded only if a single answer token has more below it."""

Best = tuple[NDArray[np.int64], NDArray[np.float32]]
"""The target's best tokens after a node, with their logits."""


@dataclass(frozen=True)
class Coverage:
    """Determines which predictions are recorded for each answer."""

    builders: Sequence[TreeBuilder]  # run once at every root
    candidates: int  # minimum number of draft candidates kept after every answer token
    target_top_k: int  # number of the target's best tokens kept after every recorded node


def _narrower(builder: TreeBuilder) -> Iterator[TreeBuilder]:
    """Yield smaller variants of a builder, which may request candidates that the builder itself does not."""
    if isinstance(builder, BeamRerank):  # the tree of a wide beam does not contain the tree of a narrow one
        yield from (BeamRerank(builder.budget, builder.depth, beam) for beam in range(1, builder.beam))
    elif isinstance(builder, DySpecGreedy):  # a small tree may prefetch nodes that a large one does not
        candidates: Selection = "drawn" if builder.kind is NodeKind.DRAWN else "top-k"
        limits = builder.prefetch, builder.max_depth, candidates, builder.acceptance_power
        for halved in range(1, builder.budget.bit_length() - 2):
            yield DySpecGreedy(builder.budget >> halved, *limits)


def _without_phrases(builder: TreeBuilder) -> list[TreeBuilder]:
    """Return ``builder`` if it requests no phrases, otherwise the builders inside it that request single tokens."""
    if builder.phrase_length == 1:
        return [builder]
    return [one for inner in builder.inner for one in _without_phrases(inner)]


@dataclass(eq=False)
class Recorder:
    """Records turns by running the models. Without a drafter, only the target is recorded."""

    model: Runtime
    verifier: Verifier
    drafter: Drafter | None
    coverage: Coverage

    def __post_init__(self) -> None:
        drafter = self.drafter
        builders = self.coverage.builders
        self.plain = Decoder(self.model, verifier=self.verifier)
        self._questioner = drafter  # runs the draft model at every root
        self._learner: Drafter | None = None  # drafts at every root and learns from the target's predictions
        self._runs: list[Decoder] = []
        if drafter is not None and learns(drafter):
            # a nested draft model's candidates do not depend on learning, so it runs by itself, and drafts no phrases
            self._questioner = deepcopy(next(iter(models_in(drafter)), None))
            self._learner = deepcopy(drafter)
            self._runs = [Decoder(self.model, deepcopy(drafter), one, self.verifier) for one in builders]
            builders = [one for builder in builders for one in _without_phrases(builder)]
        self._builders = [*(one for builder in builders for one in _narrower(builder)), *builders]

    @property
    def shares_state(self) -> bool:
        """True if the recording of a prompt depends on earlier prompts."""
        return self.drafter is not None and self.drafter.shares_state

    def state_dict(self) -> list[dict[str, Any]]:
        """Return the states of the learning drafters."""
        return [drafter.state_dict() for drafter in self._learning()]

    def load_state_dict(self, state: Sequence[dict[str, Any]]) -> None:
        """Restore the states returned by :meth:`state_dict`."""
        for drafter, learned in zip(self._learning(), state, strict=True):
            drafter.load_state_dict(learned)

    def _learning(self) -> list[Drafter]:
        drafters = (self._learner, *(run.parts.drafter for run in self._runs))
        return [drafter for drafter in drafters if drafter is not None]

    @torch.inference_mode()
    def conversation(
        self,
        prompt: Prompt,
        sample: int,
        context_of: Callable[[int, list[int]], list[int]],
        generation: Generation,
        eos_token_ids: frozenset[int],
    ) -> Iterator[RecordedTurn]:
        """Record a conversation and yield its turns.

        ``context_of(turn, before)`` returns the full context of a turn, given the token ids ``before`` it.
        """
        sequence, turns = sequence_name(prompt, sample), len(prompt.turns)
        model, k = self.model, self.coverage.target_top_k
        before: list[int] = []
        drafting: Drafting | None = None
        wanted: Any = {
            "max_new_tokens": generation.max_new_tokens,
            "eos_token_id": eos_token_ids,
            "stop_at_repetition": generation.stop_at_repetition,
            "seed": generation.seed,
            "sequence": sequence,
        }
        for number in range(turns):
            context_ids = context_of(number, before)
            best: list[Best] = []

            def keep_best(outcome: Outcome, best: list[Best] = best) -> None:
                best.append((outcome.top_k(k)[0].copy(), outcome.top_k_logits(k)[0].copy()))

            wanted["continue_conversation"] = number > 0
            model.check_request(context_ids, generation.max_new_tokens)
            if number == 0:
                model.cache.truncate(0, 0)
                model.conversation = None
            result = self.plain.generate(context_ids, observers=(keep_best,), **wanted)
            known = max(len(before) - 1, 0)
            turn = _Turn(model, k, context_ids, result.token_ids, known, generation.max_new_tokens)
            turn.writer.target.update(enumerate(best))
            if drafting is None:
                parts = Parts(self._questioner, verifier=self.verifier)  # _cover sets the builder
                drafting = Drafting(parts, parts.context(context_ids, generation.seed, sequence))
            else:
                drafting.context.next_turn(context_ids[len(before) :])
            self._cover(turn, drafting)
            if self._learner is not None:
                self._teach(self._learner, turn, generation.seed, sequence)
            for run in self._runs:
                turn.open_sources(run.parts.drafter)
                run.generate(context_ids, observers=(turn.observe,), **wanted)
            model.cache.truncate(0, len(context_ids) - 1)
            turn.answer_rest()
            before = [*context_ids, *turn.answer]
            values, tokens = turn.prefill_logits.topk(k, dim=-1)
            yield RecordedTurn(
                prompt_id=prompt.prompt_id,
                category=prompt.category,
                index=prompt.index,
                sample=sample,
                turn=number,
                turns=turns,
                prompt=np.array(context_ids, dtype=np.int32),
                answer=np.array(turn.answer, dtype=np.int32),
                finish_reason=str(result.finish_reason),
                prefill_top=tokens.numpy(force=True).astype(np.int32),
                prefill_logits=values.float().numpy(force=True),
                trie=turn.writer.finish(),
            )

    def _cover(self, turn: _Turn, drafting: Drafting) -> None:
        """Run every builder of the coverage at every root of the answer."""
        context = drafting.context
        if self._questioner is None:
            context.append(turn.answer)
            return
        sources = turn.open_sources(self._questioner)
        drafting.begin(turn.prefill(context))
        for root, following in enumerate(turn.answer):
            for builder in self._builders:
                for source in sources:
                    source.width = builder.max_candidates
                drafting.builder = builder
                turn.enter(root, draft_together([(drafting, turn.room - root - 1)])[0].tree)
            context.append([following])
            context.steps += 1
            drafting.learn(Outcome(context, root_tree(context.root), NO_LOGITS, (), (following,)))

    def _teach(self, drafter: Drafter, turn: _Turn, seed: int, sequence: str) -> None:
        """Let a learning drafter draft its largest tree at every root, and record the target's predictions for it."""
        turn.open_sources(drafter)
        prompt, answer = turn.prompt, turn.answer
        largest = max(self.coverage.builders, key=lambda builder: builder.max_nodes)
        parts = Parts(drafter, largest, self.verifier)
        context = parts.context(prompt, seed, sequence)
        self.model.cache.truncate(0, len(prompt) - 1)
        drafting = Drafting(parts, context)
        drafting.begin(turn.prefill(context))
        lane = Lane(
            context,
            self.model,
            _GivenAnswer(len(prompt), answer),
            drafting,
            max_new_tokens=turn.room,
            stop=lambda tokens: len(tokens) == len(answer),
        )
        decoding = Decoding(self.model, (turn.observe,))
        decoding.add(lane)
        while decoding.lanes:
            decoding.step()


class _GivenAnswer(Verifier):
    """Verifier that rejects all drafts and commits the next token of a known answer."""

    def __init__(self, start: int, answer: Sequence[int]) -> None:
        self._start = start
        self._answer = answer

    @override
    def verify(self, context: Context, tree: TokenTree, logits: torch.Tensor) -> Verdict:
        return Verdict((), self._answer[len(context) - self._start])


@dataclass(eq=False)
class _Turn:
    """A turn being recorded. Its trie stores the target's ``top_k`` best tokens after each node.

    The first ``known`` tokens of the prompt were already processed in earlier turns.
    """

    model: Runtime
    top_k: int
    prompt: list[int]
    answer: Sequence[int]
    known: InitVar[int]
    max_new_tokens: InitVar[int]

    def __post_init__(self, known: int, max_new_tokens: int) -> None:
        self.fresh = np.array(self.prompt[known:-1], dtype=np.int64)  # tokens fed in this turn's prefill
        self.room = min(max_new_tokens, self.model.context_limit - len(self.prompt))  # maximum length of the answer
        self.writer = TrieWriter(self.prompt[-1], self.answer)
        self._drafted: set[int] = set()  # nodes of all drafted trees
        # After the prefill, the cache holds the prompt without its last token.
        self.model.cache.truncate(0, len(self.prompt) - 1 - self.fresh.size)
        logits = self.model.prefill(0, self.fresh.tolist(), all_logits=True).logits
        # [a, V] logits after each of the `a` fresh tokens
        self.prefill_logits = logits[0] if logits else torch.empty(0, self.model.vocab_size)

    def prefill(self, context: Context) -> Outcome | None:
        """Return the outcome of the turn's prefill (step 0); None if no token was fed."""
        return prefill_outcome(context, self.fresh, self.prefill_logits) if self.fresh.size else None

    def open_sources(self, drafter: Drafter | None) -> list[RecordingSource]:
        """Make the draft models of a drafter record into this trie, and return their sources."""
        sources: list[RecordingSource] = [one.source for one in models_in(drafter)]
        for source in sources:
            source.open(self.writer, len(self.prompt))
        return sources

    def observe(self, outcome: Outcome) -> None:
        """Record the target's predictions for the tree of a step."""
        root = len(outcome.context) - len(outcome.new_token_ids) - len(self.prompt)
        writer, nodes = self.writer, self.enter(root, outcome.tree)
        # Plain decoding has already recorded the nodes of the answer.
        missing = [row for row, node in enumerate(nodes) if node > writer.spine and node not in writer.target]
        self._keep([nodes[row] for row in missing], outcome.logits[missing])

    def enter(self, root: int, tree: TokenTree) -> list[int]:
        """Add a tree at the node ``root`` and return its ``n + 1`` nodes.

        :meth:`answer_rest` runs the target on those that are not in the answer.
        """
        nodes = [root]
        for parent, token in zip(tree.shape.parents.tolist()[1:], tree.tokens.tolist()[1:], strict=True):
            nodes.append(self.writer.enter(nodes[parent], token))
        self._drafted.update(nodes)
        return nodes

    def answer_rest(self) -> None:
        """Run the target on every drafted node without a recorded prediction.

        Nodes below consecutive answer tokens share a pass. The cache must hold the prompt without its last token.
        """
        writer, spine = self.writer, self.writer.spine
        hanging: list[list[int]] = [[] for _ in range(spine + 1)]
        off = list(range(spine + 1))  # for each node, its nearest ancestor in the answer, or itself
        for node in range(spine + 1, len(writer.parents)):
            off.append(off[writer.parents[node]])
            if node in self._drafted and node not in writer.target:
                hanging[off[node]].append(node)
        first = 0
        while first <= spine:
            last, count = first, len(hanging[first])
            while last < spine and count + len(hanging[last + 1]) <= _ROWS:
                last += 1
                count += len(hanging[last]) + 1
            nodes = [*range(first, last + 1), *(n for node in range(first, last + 1) for n in hanging[node])]
            row = {node: index for index, node in enumerate(nodes)}
            parents = [-1, *(row[writer.parents[node]] for node in nodes[1:])]
            shape = TreeShape(parents, [-1] + [0] * (len(nodes) - 1))
            tokens = np.array([writer.tokens[node] for node in nodes], dtype=np.int64)
            (logits,) = self.model.tree_pass((0,), (TokenTree(shape, tokens),)).logits
            missing = [index for index, node in enumerate(nodes) if node not in writer.target]
            self._keep([nodes[index] for index in missing], logits[missing])
            kept = min(last + 1, spine) - first  # the last token of an answer is fed only in the next turn
            if kept:
                self.model.cache.commit(0, range(kept))
            first = last + 1

    def _keep(self, nodes: Sequence[int], logits: torch.Tensor) -> None:
        """Record the target's best tokens after ``nodes``, from its ``[n, V]`` logits."""
        values, best = logits.topk(self.top_k, dim=-1)
        found, scores = best.numpy(force=True), values.float().numpy(force=True)
        for index, node in enumerate(nodes):
            self.writer.target[node] = found[index].copy(), scores[index].copy()


class RecordingSource(ModelSource):
    """A draft model that records its candidates in a trie. It runs only when unrecorded candidates are requested.

    Fed tokens are buffered until an unrecorded prediction is needed, and are then fed in one pass. The model may
    therefore lag behind the sequence. The drafter then feeds it the missing committed tokens, as after any step.

    At least ``width`` candidates are kept per node, and at least ``spine_width`` at nodes of the turn's answer.
    """

    # sequences are not batched, since each lacks different predictions
    feed_together = DraftSource.feed_together
    candidates_together = DraftSource.candidates_together
    draft = DraftSource.draft  # pass by pass, so that every prediction is recorded

    def __init__(self, model: Runtime, width: int, spine_width: int, slots: Any = None) -> None:
        super().__init__(model, slots)
        self.team = None
        self.independent_rows = False
        self.width = width
        self.spine_width = spine_width
        self.writer = TrieWriter(0, ())
        self._start = 0
        self._forget_step()

    def _forget_step(self) -> None:
        self._nodes: list[int] = []  # trie nodes of the tokens fed in this step
        self._answers: list[Any] = []  # the model's outputs for the nodes fed so far
        self._waiting: list[Fed] = []  # buffered tokens, not yet fed to the model
        self._pending = 0  # committed tokens in the step's first pass

    def open(self, writer: TrieWriter, prompt_length: int) -> None:
        """Record into the given trie from now on."""
        self.writer = writer
        self._start = prompt_length

    @override
    def truncate(self, rows: int) -> None:
        self._forget_step()
        super().truncate(rows)

    @override
    def feed(self, context: Context, fed: Fed) -> list[Any]:
        # the returned handles are indices into _nodes
        if fed.known == 0:
            self._forget_step()
        self._waiting.append(fed)
        self._pending = fed.pending
        add_fed_nodes(self._nodes, fed, len(context) - self._start, self.writer.enter)
        return list(range(fed.known, len(self._nodes)))

    @override
    def commit(self, rows: Sequence[int]) -> None:
        if self._answers:
            fed = self._pending + len(self._answers) - 1
            super().commit([row for row in rows if row < fed])
        self._forget_step()

    @override
    def candidates(self, scoring: Scoring, context: Context, request: Request, answers: Sequence[Any]) -> Candidates:
        nodes = [self._nodes[answer] for answer in answers]
        known, k = self.writer.draft, request.k
        wanted = [self._width_of(node, k) for node in nodes]
        lacking = [
            row
            for row, (node, most) in enumerate(zip(nodes, wanted, strict=True))
            if node not in known or known[node][0].size < most
        ]
        if lacking:
            self._run(context)
            missing = replace(request, rows=request.rows[lacking], k=max(wanted[row] for row in lacking))
            found = [self._answers[answers[row]] for row in lacking]
            wide = super().candidates(scoring, context, missing, found)
            assert wide.log_probs is not None
            for place, row in enumerate(lacking):
                best = slice(wanted[row])
                known[nodes[row]] = wide.tokens[place, best].copy(), wide.log_probs[place, best].copy()
        tokens = np.full((len(nodes), k), NO_CANDIDATE, dtype=np.int64)
        log_probs = np.full(tokens.shape, -np.inf, dtype=np.float32)
        for row, node in enumerate(nodes):
            ranked, values = known[node]
            tokens[row, : ranked.size] = ranked[:k]
            log_probs[row, : values.size] = values[:k]
        return Candidates(tokens, log_probs)

    def _width_of(self, node: int, k: int) -> int:
        """Return the number of candidates to keep after a node if ``k`` are requested."""
        return min(max(k, self.spine_width if node <= self.writer.spine else self.width), self.vocab_size)

    @override
    def for_new_sequence(self) -> RecordingSource:
        return RecordingSource(self.model, self.width, self.spine_width, self._slots)

    def __deepcopy__(self, memo: dict[int, Any]) -> RecordingSource:
        """Return a new source with the same model, since copies of a drafter learn separately but share the model."""
        return self.for_new_sequence()

    def _run(self, context: Context) -> None:
        """Feed the model all buffered tokens in one pass."""
        waiting = self._waiting
        if waiting:
            whole = Fed(
                [token for fed in waiting for token in fed.tokens],
                [depth for fed in waiting for depth in fed.depths],
                self._pending,
                len(self._answers),
                waiting[-1].ancestors[: len(self._nodes)],
            )
            self._answers += super().feed_together([(self, context, whole)])[0]
            self._waiting = []
