"""The loop: draft, target pass, absorb, learn, written once, over one sequence or several.

A :class:`Lane` is a sequence being decoded in a slot of the target; a :class:`Decoding` takes all its lanes through one
step at a time, and lanes come and go between two steps. Who drafts may stand elsewhere (:mod:`specexp.scheduling`), and
who answers may be a recording; clock, counters, EOS, stops and limits are here alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import index
from secrets import randbits
from time import perf_counter
from types import TracebackType
from typing import Literal

import numpy as np
import torch
from transformers import PreTrainedModel

from specexp.core.checked import check_arguments
from specexp.core.compatibility import check_composition, join_target
from specexp.core.context import Context
from specexp.core.language_model import LanguageModel
from specexp.core.outcome import Outcome, Top, prefill_outcome
from specexp.core.parts import (
    Controller,
    DeterministicVerifier,
    Drafter,
    DraftState,
    Parts,
    Request,
    TreeBuilder,
    Verdict,
    Verifier,
    walk,
)
from specexp.core.runtime import Runtime, Target
from specexp.core.sampling import check_best, check_logits, on_host, to_host
from specexp.core.tree import TokenTree, root_tree

FinishReason = Literal["", "eos", "stop", "length", "context"]
"""Why an output ended: a token, a :data:`Stop`, ``max_new_tokens`` or the model's limit; empty while it goes on."""
Stop = Callable[[Sequence[int]], bool]
"""Whether the output ends with these new tokens. It is asked after every one of them, so that the output ends in the
same place however many were accepted together."""
OutcomeObserver = Callable[[Outcome], None]
Clock = Callable[[Outcome], Mapping[str, float]]
"""Seconds of a step by phase, where they are modelled."""
PHASES = ("draft", "build", "target", "verify", "commit", "update")
"""Where the time of a step goes: the drafter's answers, the builder and controller, the target pass, acceptance,
keeping the accepted rows, and learning. They add up to the step."""
Side = Literal["target", "draft"]
What = Literal["prefill", "draft", "learn", "target", "verify", "resample"]
"""``target`` is a pass of the target; ``verify`` the decision after it where the accepted path is as deep as the tree,
and ``resample`` where it ends before that, and the target's own token takes a draft's place."""
_ROOM_AHEAD = 4096
"""New tokens whose room in the cache is reserved before the first of them; the cache of a longer output grows."""


@dataclass
class GenerationResult:
    """What decoding one sequence gave, and what it took; every metric of the papers derives from these.

    Attributes:
        token_ids: the new tokens, once the output has ended; EOS, where it came, is the last.
        finish_reason: why the output ended.
        seed: what its randomness was keyed by: the same seed, sequence and prompt give the same tokens again.
        steps: target passes, the prefill not counted.
        accepted_drafts: drafted tokens that became output.
        bonus_tokens: tokens the target added itself, at most one a step.
        draft_passes: forward passes of a draft model.
        drafted_nodes: nodes fed to the target, roots not counted.
        drafted_at: steps whose tree reached each depth, from depth 1 on: drafted positions, whatever a tree's width.
        accepted_at: steps whose accepted path reached it and became output.
        useful_tokens: drafted tokens of the first-ranked path that the target answered identically, also beyond the
            first mismatch (Post-use & Pre-cut, eq. 7); None unless asked for.
        prefill_seconds: time before the first step.
        seconds: time of all steps by phase, see :data:`PHASES`.
    """

    token_ids: list[int] = field(default_factory=list)
    finish_reason: FinishReason = ""
    seed: int = 0
    steps: int = 0
    accepted_drafts: int = 0
    bonus_tokens: int = 0
    draft_passes: int = 0
    drafted_nodes: int = 0
    drafted_at: list[int] = field(default_factory=list)
    accepted_at: list[int] = field(default_factory=list)
    useful_tokens: int | None = None
    prefill_seconds: float = 0.0
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))

    @property
    def decode_seconds(self) -> float:
        """Time of all steps, prefill apart."""
        return sum(self.seconds.values())

    @property
    def tokens_per_step(self) -> float:
        """New tokens per target pass; accepted drafts per step plus one, but for a cut last step."""
        return len(self.token_ids) / self.steps


@dataclass(frozen=True, slots=True)
class Draft:
    """What drafting gave, and what it took.

    Attributes:
        tree: what the target should check.
        pass_tokens: tokens fed in each forward pass of a draft model.
        draft_seconds: time of the drafter's answers.
        build_seconds: time of builder and controller.
    """

    tree: TokenTree
    pass_tokens: tuple[int, ...] = ()
    draft_seconds: float = 0.0
    build_seconds: float = 0.0


def _count_each(counts: list[int], positions: int) -> None:
    """One more of each of the first positions."""
    counts.extend([0] * (positions - len(counts)))
    for position in range(positions):
        counts[position] += 1


class Drafting:
    """Who drafts for one sequence, and learns; it knows nothing of the target.

    Args:
        parts: drafter and builder, None in plain decoding, and the controller.
        context: the sequence.
    """

    def __init__(self, parts: Parts, context: Context) -> None:
        self.drafter, self.builder, _, self.controller = parts
        self.context = context
        self.learned_candidates = 0 if self.drafter is None else self.drafter.most_learned
        # most controllers never stop a draft: spare those the question
        self._may_stop = type(self.controller).keep_drafting is not Controller.keep_drafting

    def begin(self, prefill: Outcome | None) -> None:
        """The prompt is known: let the parts begin."""
        if self.drafter is not None:
            self.drafter.begin(self.context, prefill)
        self.controller.begin(self.context, prefill)

    def draft(self, depth: int) -> Draft:
        """The tree the target should check next.

        Args:
            depth: deepest node of use: the tokens still wanted, less the bonus token.
        """
        started = perf_counter()
        drafting = 0.0
        pass_tokens: list[int] = []
        drafter, builder = self.drafter, self.builder
        if drafter is None or builder is None or depth == 0:
            tree = root_tree(self.context.root)
        else:
            plan = self.controller.plan(self.context)
            if plan.max_depth is None or plan.max_depth > depth:
                plan = replace(plan, max_depth=depth)
            build = builder.build(self.context.root, plan)
            try:
                request = next(build)
                while True:
                    if (
                        self._may_stop
                        and drafter.costs_pass(request)
                        and not self._keep_drafting(request, pass_tokens)
                    ):
                        request = build.send(None)
                        continue
                    asked = perf_counter()
                    passes, fed = drafter.draft_passes, drafter.fed_tokens
                    answer = drafter.propose(self.context, request)
                    if passes := drafter.draft_passes - passes:  # several of one answer share its tokens
                        pass_tokens += [(drafter.fed_tokens - fed) // passes] * passes
                    drafting += perf_counter() - asked
                    request = build.send(answer)
            except StopIteration as finished:
                tree = finished.value
        return Draft(tree, tuple(pass_tokens), drafting, perf_counter() - started - drafting)

    def learn(self, outcome: Outcome) -> None:
        """What the target said of the last draft; the context already holds the new tokens."""
        if self.drafter is not None:
            self.drafter.observe(outcome)
        self.controller.observe(outcome)

    def _keep_drafting(self, request: Request, pass_tokens: Sequence[int]) -> bool:
        nodes = int(np.count_nonzero(request.tokens >= 0)) - 1
        depths = request.depths()
        log_prob, last = request.best_path_log_probs()
        state = DraftState(nodes, max(depths, default=0), tuple(pass_tokens), log_prob, last)
        return self.controller.keep_drafting(self.context, state)


class Lane:
    """A sequence being decoded: where it lies at the target, what is accepted, where the output ends, what it took.

    Args:
        context: prompt and noise keys.
        target: whose slot it has.
        verifier: what is accepted.
        drafting: who drafts for it; None where that stands elsewhere.
        slot: the sequence's slot.
        max_new_tokens: tokens to generate at most.
        eos_token_ids: tokens that end the output.
        stop: whether the output ends otherwise.
        count_useful: also count useful tokens, outside the timed phases.
        clock: seconds of a step, for parts that learn from them; measured if None.

    Attributes:
        draft: what the target checks in the next step; None while there is none.
        result: what it gave and took so far.
    """

    def __init__(
        self,
        context: Context,
        target: Target,
        verifier: Verifier,
        drafting: Drafting | None = None,
        *,
        slot: int = 0,
        max_new_tokens: int,
        eos_token_ids: Collection[int] = frozenset(),
        stop: Stop | None = None,
        count_useful: bool = False,
        clock: Clock | None = None,
    ) -> None:
        self.context = context
        self.target = target
        self.verifier = verifier
        self.drafting = drafting
        self.slot = slot
        self.draft: Draft | None = None
        self.result = GenerationResult(seed=context.seed, useful_tokens=0 if count_useful else None)
        room = target.context_limit - len(context)
        self._limit: FinishReason = "length" if max_new_tokens <= room else "context"
        self._end = len(context) + min(max_new_tokens, room)
        self._eos = frozenset(eos_token_ids)
        self._stop = stop
        self._clock = clock
        self._seconds_before = dict(self.result.seconds)

    @property
    def depth(self) -> int:
        """Deepest node of use in the next tree: the tokens still wanted, less the bonus token."""
        return self._end - len(self.context) - 1

    @property
    def own_drafting(self) -> Drafting:
        """Who drafts for it here."""
        assert self.drafting is not None, "drafts for this lane are made elsewhere"
        return self.drafting

    @property
    def ended(self) -> bool:
        """Whether the output has ended."""
        return self.result.finish_reason != ""

    def take(self, draft: Draft) -> None:
        """A step begins: this is what the target checks in it."""
        seconds = self.result.seconds
        self._seconds_before = dict(seconds)
        seconds["draft"] += draft.draft_seconds
        seconds["build"] += draft.build_seconds
        self.draft = draft

    def absorb(self, logits: torch.Tensor, hidden: torch.Tensor | None = None) -> Outcome:
        """Accept, keep the accepted rows, and commit the new tokens; after the last ones the lane has :attr:`ended`.

        Args:
            logits: ``[n + 1, V]`` the target's answer to the tree of :attr:`draft`.
            hidden: ``[n + 1, d]`` its hidden states, where they are kept.
        """
        result, draft = self.result, self.draft
        assert draft is not None
        tree = draft.tree
        started = perf_counter()
        verdict, top = self.decide(tree, logits)
        tokens = self._cut([*(int(tree.tokens[row]) for row in verdict.accepted), verdict.bonus])
        accepted = verdict.accepted[: len(tokens)]
        verified = perf_counter()
        # The last new token is the next root: it stays out of the cache even where a cut left it a drafted node.
        self.target.commit(self.slot, [0, *accepted[: len(tokens) - 1]])
        if result.useful_tokens is not None:
            paused = perf_counter()
            result.useful_tokens += self._useful(tree, logits)
            pause = perf_counter() - paused
            started, verified = started + pause, verified + pause  # outside the clock
        self.context.append(tokens)
        self.context.steps += 1
        result.seconds["commit"] += perf_counter() - verified
        result.seconds["verify"] += verified - started
        result.steps += 1
        result.accepted_drafts += len(accepted)
        result.bonus_tokens += len(tokens) - len(accepted)
        result.drafted_nodes += tree.num_nodes
        _count_each(result.drafted_at, tree.shape.max_depth)
        _count_each(result.accepted_at, len(accepted))
        result.draft_passes += len(draft.pass_tokens)
        if self.ended:
            result.token_ids = self.context.new_token_ids
        outcome = self.outcome(draft, logits, accepted, tuple(tokens))
        outcome.hidden = hidden
        if top is not None:
            outcome.top = top
        if self._clock is None:
            before = self._seconds_before
            outcome.seconds = {phase: spent - before[phase] for phase, spent in result.seconds.items()}
        else:
            outcome.seconds = self._clock(outcome)
        self.draft = None
        return outcome

    def decide(self, tree: TokenTree, logits: torch.Tensor) -> tuple[Verdict, Top | None]:
        """What the verifier decided, and what was read beside it of the target's best tokens, for who learns them.

        Where the logits are on a device, its tokens, whether they are numbers, and what is learned come in one copy; a
        verifier that tries child after child has the logits themselves copied, and works on the host.
        """
        verifier, scores = self.verifier, None
        if not on_host(logits):
            if isinstance(verifier, DeterministicVerifier):
                scores = verifier.scores(self.context, tree, logits)
            else:
                logits = logits.cpu()
        if scores is None:
            check_logits(logits, "target", self.context)
            return verifier.verify(self.context, tree, logits), None
        best, tokens = scores.max(dim=-1)
        wanted = [tokens, best.float()]
        if self.drafting is not None and (k := self.drafting.learned_candidates):
            values, indices = logits.topk(k, dim=-1)
            wanted += [indices, values.float()]
        said, highest, *top = to_host(*wanted)
        check_best(highest, "target", self.context)
        return walk(tree, said.tolist().__getitem__), (top[0], top[1]) if top else None

    def outcome(
        self, draft: Draft, logits: torch.Tensor, accepted: tuple[int, ...], new_token_ids: tuple[int, ...]
    ) -> Outcome:
        """What is learned from."""
        return Outcome(self.context, draft.tree, logits, accepted, new_token_ids, draft.pass_tokens)

    def _cut(self, tokens: list[int]) -> list[int]:
        """End the output at the first EOS, at the first stop and at the limit, and say why."""
        said = self.context.new_token_ids if self._stop is not None else []
        for place, token in enumerate(tokens):
            said.append(token)
            reason: FinishReason = ""
            if token in self._eos:
                reason = "eos"
            elif self._stop is not None and self._stop(said):
                reason = "stop"
            elif len(self.context) + place + 1 == self._end:
                reason = self._limit
            if reason:
                self.result.finish_reason = reason
                return tokens[: place + 1]
        return tokens

    def _useful(self, tree: TokenTree, logits: torch.Tensor) -> int:
        verifier = self.verifier
        if not isinstance(verifier, DeterministicVerifier):
            return 0
        useful, row, position = 0, 0, len(self.context)
        while tree.shape.children[row]:
            child = tree.shape.children[row][0]
            useful += verifier.target_token(self.context, logits[row], position) == tree.tokens[child]
            row, position = child, position + 1
        return useful


class Decoding:
    """Lanes on one target, taken through a step at a time; they come and go between two steps.

    Drafts are made here, by each lane's own parts, one lane after the other. A subclass whose drafts are made elsewhere
    replaces :meth:`begin`, :meth:`drafts` and :meth:`learn`, and :meth:`note` if it wants to know who did what when.

    Args:
        target: it answers all lanes of a step in one pass.
        observers: called with every step's outcome after it was learned from, outside the lanes' clocks.

    Attributes:
        lanes: those under way, by slot, in the order they came.
        passes: target passes so far.

    Example:
        >>> decoding = Decoding(model)  # doctest: +SKIP
        >>> decoding.start(Lane(context, model, verifier, Drafting(parts, context), max_new_tokens=64))
        >>> while decoding.lanes:
        ...     ended = decoding.step()
    """

    def __init__(self, target: Target, observers: Iterable[OutcomeObserver] = ()) -> None:
        self.target = target
        self.observers = tuple(observers)
        self.lanes: dict[int, Lane] = {}
        self.passes = 0

    def start(self, lane: Lane, wants_logits: bool = False, since: float | None = None) -> None:
        """Feed what the lane's slot lacks of the prompt, all but the root, and let its parts begin.

        Args:
            lane: takes part from the next step on; its slot holds a beginning of the prompt, or nothing.
            wants_logits: whether its drafter learns from the target's answers to the prompt.
            since: when its prefill began; now if None.
        """
        started = perf_counter() if since is None else since
        context, target = lane.context, self.target
        fed = context.token_ids[target.length(lane.slot) : -1].copy()
        logits = target.prefill(lane.slot, fed.tolist(), all_logits=wants_logits)
        target.synchronize()
        read = perf_counter()
        self.note("target", "prefill", lane, started, read, fed.size)
        hidden = target.hidden[0] if target.hidden else None
        if logits is None and hidden is not None:
            logits = torch.empty((0, 0))
        self.begin(lane, None if logits is None else prefill_outcome(context, fed, logits, hidden))
        lane.result.prefill_seconds += perf_counter() - started
        self.add(lane)

    def add(self, lane: Lane) -> None:
        """Let a lane take part from the next step on, whose prompt its slot and its parts know.

        Raises:
            ValueError: another lane has its slot.
        """
        if lane.slot in self.lanes:
            raise ValueError(
                f"slot {lane.slot} holds a sequence that goes on: remove its lane first, or take another"
            )
        self.lanes[lane.slot] = lane

    def remove(self, lane: Lane) -> None:
        """Leave a lane's output where it is; its slot is free."""
        del self.lanes[lane.slot]

    def step(self) -> list[Lane]:
        """Draft, pass, absorb, learn; the lanes whose output has ended with it, which take part no more."""
        lanes = self.drafts()
        trees = [lane.draft.tree for lane in lanes if lane.draft is not None]
        started = perf_counter()
        answers = self.target.tree_pass([lane.slot for lane in lanes], trees)
        self.target.synchronize()
        ended = perf_counter()
        fed = sum(tree.tokens.size for tree in trees)
        self.note("target", "target", lanes[0], started, ended, fed)
        hidden: Sequence[torch.Tensor | None] = self.target.hidden or [None] * len(lanes)
        for lane, tree, logits, states in zip(lanes, trees, answers, hidden, strict=True):
            lane.result.seconds["target"] += (ended - started) / len(lanes)
            answered = perf_counter()
            outcome = lane.absorb(logits, states)
            decision: What = "resample" if len(outcome.accepted) < tree.shape.max_depth else "verify"
            self.note("target", decision, lane, answered, perf_counter(), len(outcome.accepted))
            if lane.ended:
                self.remove(lane)  # first, so that one whose parts fail to learn is over all the same
            self.learn(lane, outcome)
            for observe in self.observers:
                observe(outcome)
        self.passes += 1
        return [lane for lane in lanes if lane.ended]

    def begin(self, lane: Lane, prefill: Outcome | None) -> None:
        """Let the parts of a lane begin."""
        started = perf_counter()
        with DraftingFor(lane.context.sequence):
            lane.own_drafting.begin(prefill)
        self.note("draft", "prefill", lane, started, perf_counter())

    def drafts(self) -> list[Lane]:
        """The lanes that the next pass answers, each with what it drafted."""
        lanes = list(self.lanes.values())
        for lane in lanes:
            started = perf_counter()
            lane.context.lanes = len(lanes)
            with DraftingFor(lane.context.sequence):
                lane.take(draft := lane.own_drafting.draft(lane.depth))
            self.note("draft", "draft", lane, started, perf_counter(), draft.tree.num_nodes)
        return lanes

    def learn(self, lane: Lane, outcome: Outcome) -> None:
        """Let the parts of a lane learn from a step."""
        started = perf_counter()
        with DraftingFor(lane.context.sequence):
            lane.own_drafting.learn(outcome)
        ended = perf_counter()
        lane.result.seconds["update"] += ended - started
        self.note("draft", "learn", lane, started, ended)

    def note(self, side: Side, what: What, lane: Lane, started: float, ended: float, tokens: int = 0) -> None:
        """Something was done, for a lane; here nobody keeps it.

        Args:
            side: who did it.
            what: was done.
            lane: for whom it was done; the first of several.
            started: when, by :func:`time.perf_counter`.
            ended: when it was over.
            tokens: tokens fed in a prefill or pass, nodes drafted, tokens accepted.
        """


class DraftingFor:
    """Notes in whatever is raised within for whose draft it was; None names nobody."""

    __slots__ = ("sequence",)

    def __init__(self, sequence: int | str | None) -> None:
        self.sequence = sequence

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception) and self.sequence is not None:
            error.add_note(f"raised while drafting for sequence {self.sequence!r}")


class Decoder:
    """Generates with a target model and four freely composed parts: one lane.

    Args:
        target: a Hugging Face causal LM with full attention, or one already wrapped.
        drafter: who guesses; None, with ``builder`` None, is plain autoregressive decoding.
        builder: which guesses become nodes.
        verifier: what is accepted; greedy decoding if None.
        controller: how much to draft; the builder's own limits if None.

    Raises:
        ValueError: the parts cannot work together or with the target; the sentence says what to change.

    Example:
        >>> pair = specexp.load_pair("stdlib")  # doctest: +SKIP
        >>> decoder = Decoder(pair.target, TokenRecycling(), TokenRecyclingTree())  # doctest: +SKIP
        >>> decoder.generate(pair.tokenizer("def main(").input_ids, max_new_tokens=32).token_ids  # doctest: +SKIP
    """

    def __init__(
        self,
        target: PreTrainedModel | Runtime,
        drafter: Drafter | None = None,
        builder: TreeBuilder | None = None,
        verifier: Verifier | None = None,
        controller: Controller | None = None,
    ) -> None:
        check_composition(drafter, builder, verifier, controller)
        self.model = target if isinstance(target, Runtime) else LanguageModel(target)
        self.parts = Parts(drafter, builder, verifier, controller)
        join_target(self.parts, self.model)
        self._kept: Context | None = None

    def generate(
        self,
        input_ids: Sequence[int] | torch.Tensor,
        *,
        max_new_tokens: int = 128,
        eos_token_id: int | Collection[int] | None = None,
        seed: int | None = None,
        sequence: int | str | None = None,
        continue_conversation: bool = False,
        count_useful: bool = False,
        observers: Sequence[OutcomeObserver] = (),
    ) -> GenerationResult:
        """Continue one prompt.

        Args:
            input_ids: ``[p]`` or ``[1, p]`` prompt tokens, at least one.
            max_new_tokens: tokens to generate at most; never exceeded.
            eos_token_id: token or tokens that end the output.
            seed: seed of the run, for verifiers and drafters that draw. Without one the system's entropy draws it, and
                :attr:`GenerationResult.seed` says which; a continued conversation keeps its own.
            sequence: which continuation; n samples of a prompt need n values; 0 if None. A continued conversation
                keeps its own.
            continue_conversation: ``input_ids`` begins with everything the last call fed and generated: keep its
                cache and the parts' state, and prefill only what follows.
            count_useful: also count useful tokens (costs time outside the clock).
            observers: called with every step's outcome, outside the clock.

        Calls from several threads with one decoder, or with decoders that share a wrapped model, wait for each other.

        Raises:
            ValueError: the prompt holds no tokens, does not fit the context, or does not continue the last call's; a
                continued conversation is given another seed or sequence than its own; or an observer decodes with
                the model that it observes.
        """
        model, parts = self.model, self.parts
        prompt = _token_list(input_ids)
        model.check_request(prompt, max_new_tokens)
        others = {"seed": seed, "sequence": sequence, "continue_conversation": continue_conversation}
        check_arguments(
            Decoder.generate, (), {**others, "count_useful": count_useful, "observers": observers}
        )
        eos_token_ids = _eos_set(eos_token_id, model.vocab_size)
        with model.exclusively(), torch.inference_mode():
            started = perf_counter()
            if continue_conversation:
                context = self._continued(prompt, seed, sequence)
            else:
                context = parts.context(
                    prompt, randbits(62) if seed is None else seed, 0 if sequence is None else sequence
                )
            if context is not model.conversation:  # a new one, or another decoder used the cache in between
                model.cache.truncate(0, 0)
            self._kept = model.conversation = context
            model.keep_hidden(
                parts.wants_hidden
            )  # of decoders that share the model another may have asked for them
            room = min(len(prompt) + min(max_new_tokens, _ROOM_AHEAD), model.context_limit)
            model.cache.reserve(room + parts.max_rows)
            lane = Lane(
                context,
                model,
                parts.verifier,
                Drafting(parts, context),
                max_new_tokens=max_new_tokens,
                eos_token_ids=eos_token_ids,
                count_useful=count_useful,
            )
            decoding = Decoding(model, observers)
            decoding.start(lane, parts.wants_prefill_logits, started)
            while decoding.lanes:
                decoding.step()
        return lane.result

    def _continued(self, prompt: list[int], seed: int | None, sequence: int | str | None) -> Context:
        context = self._kept
        if context is None:
            raise ValueError(
                "there is no conversation to continue: call generate without continue_conversation first"
            )
        for name, given, kept in (("seed", seed, context.seed), ("sequence", sequence, context.sequence)):
            if given is not None and given != kept:
                raise ValueError(
                    f"{name} was {given!r}, but the conversation to continue has {kept!r}: leave it out, or start "
                    "a new conversation"
                )
        known = context.token_ids.tolist()
        if prompt[: len(known)] != known or len(prompt) == len(known):
            raise ValueError(
                f"the prompt of {len(prompt)} tokens does not continue the conversation: it must begin with the "
                f"{len(known)} tokens fed and generated so far and add at least one"
            )
        self.model.cache.truncate(0, len(known) - 1)  # an interrupted step may have left more
        context.next_turn(prompt[len(known) :])
        return context


def _token_list(input_ids: Sequence[int] | torch.Tensor) -> list[int]:
    if isinstance(input_ids, Mapping):
        raise ValueError("the prompt is a tokenizer's whole answer: pass its input_ids")
    if isinstance(input_ids, str):
        raise ValueError("the prompt is text: pass a tokenizer's input_ids of it")
    try:
        tokens = np.asarray(input_ids.cpu() if isinstance(input_ids, torch.Tensor) else input_ids)
    except ValueError:  # lists of different lengths
        tokens = np.empty((len(input_ids), 0))
    if tokens.ndim == 2 and tokens.shape[0] != 1:
        raise ValueError(f"input_ids has a batch of {tokens.shape[0]}; one prompt a call is decoded")
    if tokens.ndim not in (1, 2) or (tokens.size and not np.issubdtype(tokens.dtype, np.integer)):
        given = f"{tokens.dtype} {list(tokens.shape)}"
        if tokens.ndim == 0 or tokens.dtype.kind not in "biuf":
            given = f"{input_ids!r:.60}"
        raise ValueError(f"input_ids is {given}; token ids [p] or [1, p] are expected")
    return [int(token) for token in tokens.flatten()]


def _eos_set(eos_token_id: int | Collection[int] | None, vocab_size: int) -> frozenset[int]:
    if eos_token_id is None:
        return frozenset()
    if isinstance(eos_token_id, (torch.Tensor, np.ndarray)):
        eos_token_id = eos_token_id.flatten().tolist()
    given = eos_token_id if isinstance(eos_token_id, Collection) else [eos_token_id]
    try:
        if any(isinstance(token, bool) for token in given):
            raise TypeError("a truth is no token")
        found = frozenset(map(index, given))
    except TypeError as error:
        raise ValueError(f"eos_token_id is {eos_token_id!r}; a token id or several are expected") from error
    if unknown := sorted(found - set(range(vocab_size))):
        raise ValueError(
            f"eos_token_id is {unknown[0]}; the target's vocabulary has ids 0 to {vocab_size - 1}"
        )
    return found
