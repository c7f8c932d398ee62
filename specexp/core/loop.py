"""The decoding loop on one page: draft, target pass, verify, absorb, learn, for one or several sequences.

:class:`Drafting` builds one sequence's draft trees. A :class:`Lane` is a sequence in a slot of the target.
:class:`Decoding` advances all lanes one step at a time, and :class:`Decoder` decodes one prompt. Drafts may be made
elsewhere (:mod:`specexp.scheduling`), and the target may be a recording.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Hashable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from operator import index
from secrets import randbits
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import torch
from pydantic import Field

from specexp.base.checked import check_arguments
from specexp.base.messages import shown
from specexp.core.constraint import Constraint, constrained, masked
from specexp.core.context import Context, repeats
from specexp.core.contracts import (
    ArgmaxVerifier,
    Controller,
    DeterministicVerifier,
    Drafter,
    TreeBuilder,
    Verifier,
    follow,
)
from specexp.core.dialogue import Candidates, DraftState, Plan, Request, Verdict
from specexp.core.outcome import FinishReason, GenerationResult, Outcome, Top, count_step, prefill_outcome
from specexp.core.parts import Parts, check_composition, join_target
from specexp.core.runtime import TargetTokens, TokenRequest
from specexp.core.sampling import allowed_after, check_best, check_logits, on_host, to_host
from specexp.core.tree import TokenTree, root_tree

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from specexp.core.runtime import Runtime, Target

OutcomeObserver = Callable[[Outcome], None]
Stop = Callable[[Sequence[int]], bool]
"""Returns whether to end the output after these new tokens. Called for each token, even if a step adds several."""
Clock = Callable[[Outcome], Mapping[str, float]]
"""Returns the modelled duration of each phase of a step, in seconds."""
_ROOM_AHEAD = 4096  # new tokens that the cache has room for from the start; it grows for longer outputs


# Drafting: one tree for one sequence, and several trees at once.


@dataclass(frozen=True, slots=True)
class Draft:
    """A draft tree, the tokens fed in each draft pass, and the seconds spent drafting and building."""

    tree: TokenTree
    pass_tokens: tuple[int, ...] = ()
    draft_seconds: float = 0.0
    build_seconds: float = 0.0


class Drafting:
    """The parts that draft for one sequence and learn from it. They have no access to the target.

    ``max_nodes`` limits every tree, in addition to the controller's plans.
    """

    def __init__(self, parts: Parts, context: Context, max_nodes: int | None = None) -> None:
        self.drafter, self.builder, _, self.controller = parts
        self.context = context
        self.max_nodes = max_nodes
        self.learned_candidates = 0 if self.drafter is None else self.drafter.learned_candidates
        # most controllers never stop a draft, so their call is skipped
        self._may_stop = type(self.controller).keep_drafting is not Controller.keep_drafting
        self._needs_requests = self._may_stop or self.controller.needs_log_probs

    def begin(self, prefill: Outcome | None) -> None:
        """Start the parts after the prompt's prefill."""
        if self.drafter is not None:
            self.drafter.begin(self.context, prefill)
            for model in self.drafter.models if self.controller.reads_states else ():
                model.keep_hidden(True)
        self.controller.begin(self.context, prefill)

    def learn(self, outcome: Outcome) -> None:
        """Let the parts learn from a step after its tokens have been added to the context."""
        if self.drafter is not None:
            if self.controller.reads_states:
                path = outcome.tree.tokens[[*outcome.tree.best_path()]]
                outcome.draft_states = self.drafter.path_states(path.tolist())
            self.drafter.observe(outcome)
        self.controller.observe(outcome)

    def build(self, depth: int, unshared: bool) -> Generator[Request, Candidates | None, Draft]:
        """Build one tree of at most ``depth`` levels. ``unshared`` means that no other sequence shares its passes."""
        if self.builder is None or depth == 0:
            return Draft(root_tree(self.context.root))
        plan = self.controller.plan(self.context)
        if plan.max_nodes == 0:
            return Draft(root_tree(self.context.root))
        if plan.max_depth is None or plan.max_depth > depth:
            plan = replace(plan, max_depth=depth)
        if self.max_nodes is not None and (plan.max_nodes is None or plan.max_nodes > self.max_nodes):
            plan = replace(plan, max_nodes=self.max_nodes)
        filled = self._filled(plan, unshared)
        if filled is None:
            return Draft((yield from self.builder.build(self.context.root, plan)))
        return filled

    def _filled(self, plan: Plan, unshared: bool) -> Draft | None:
        """Return the draft if the drafter can fill this step's whole tree at once, else None."""
        drafter = self.drafter
        if drafter is None or self.builder is None:
            return None
        if self.context.constraint is not None:  # candidates are filtered level by level
            return None
        if drafter.runs_model and (self._needs_requests or not unshared):
            return None
        shape = self.builder.shape_of(plan)
        started = perf_counter()
        filled = None if shape is None else drafter.fill(self.context, shape)
        if shape is None or filled is None:
            return None
        tokens, tree = filled.tokens, TokenTree(shape, filled.tokens)
        tree = tree if min(tokens.tolist()) >= 0 else tree.select(tokens >= 0)
        return Draft(tree, filled.pass_tokens, perf_counter() - started)

    def stops(self, request: Request, pass_tokens: tuple[int, ...]) -> bool:
        """Return whether the controller ends the draft before a request that costs a draft pass."""
        if not self._may_stop or self.drafter is None or self.builder is None:
            return False
        if not self.drafter.costs_pass(request):
            return False
        drafted = int(np.count_nonzero(request.tokens >= 0)) - 1
        depth = max(request.depths(), default=0)
        rows, log_probs = request.best_path()
        path = request.tokens[rows[::-1]].tolist()
        nodes = min(drafted, self.builder.max_nodes)
        states = self.drafter.path_states(path) if self.controller.reads_states else None
        state = DraftState(nodes, depth, pass_tokens, sum(log_probs), (log_probs or [0.0])[0], states)
        return not self.controller.keep_drafting(self.context, state)


class _GrowingTree:
    """A tree under construction and its costs so far."""

    def __init__(self, drafting: Drafting, depth: int, unshared: bool) -> None:
        # the drafter, its sequence and the builder's open request; None once the tree is complete
        self.question: tuple[Drafter, Context, Request] | None = None
        self.pass_tokens: tuple[int, ...] = ()
        self.draft_seconds = self.build_seconds = 0.0
        self._drafting = drafting
        self._build = drafting.build(depth, unshared)
        self.advance(None)

    def advance(self, answer: Candidates | None) -> None:
        """Send the builder an answer and run it until its next request or its end."""
        started = perf_counter()
        drafting = self._drafting
        with drafting_for(drafting.context.sequence):
            try:
                if answer is not None and self.question is not None and drafting.context.constraint is not None:
                    answer = constrained(drafting.context.constraint, self.question[2], answer)
                request = self._build.send(answer)
                while drafting.stops(request, self.pass_tokens):
                    request = self._build.send(None)
                assert drafting.drafter is not None  # builders make requests only if there is a drafter
                self.question = drafting.drafter, drafting.context, request
            except StopIteration as finished:
                self.question = None
                built = finished.value
                self.tree = built.tree
                self.pass_tokens += built.pass_tokens
                self.draft_seconds += built.draft_seconds
                self.build_seconds -= built.draft_seconds  # this call's time includes it
        self.build_seconds += perf_counter() - started


def draft_together(draftings: Sequence[tuple[Drafting, int]]) -> list[Draft]:
    """Build the next tree for each drafting, up to its maximum depth. All drafters must belong to one team."""
    unshared = len(draftings) == 1
    trees = [_GrowingTree(drafting, depth, unshared) for drafting, depth in draftings]
    while growing := [(tree, tree.question) for tree in trees if tree.question is not None]:
        started = perf_counter()
        drafter, context, request = growing[0][1]
        if len(growing) == 1:
            with drafting_for(context.sequence):
                answers = [drafter.propose(context, request)]
        else:
            answers = drafter.propose_together([question for _, question in growing])
        share = (perf_counter() - started) / len(growing)
        for (tree, _), answer in zip(growing, answers, strict=True):
            if not isinstance(answer, Candidates):  # a drafter's None would silently end the draft
                raise TypeError(f"{type(drafter).__name__}.propose must return Candidates, got {type(answer).__name__}")
            tree.pass_tokens += answer.pass_tokens
            tree.draft_seconds += share
            tree.advance(answer)
    return [Draft(tree.tree, tree.pass_tokens, tree.draft_seconds, tree.build_seconds) for tree in trees]


def teams(draftings: Sequence[Drafting]) -> list[list[int]]:
    """Return the indices of the draftings, grouped by team. Teams are ordered by their first members."""
    found: dict[Hashable, list[int]] = {}
    for number, drafting in enumerate(draftings):
        team = None if drafting.drafter is None else drafting.drafter.team
        found.setdefault((None, number) if team is None else (team,), []).append(number)
    return list(found.values())


class drafting_for:  # noqa: N801 - a context manager, faster than a generator
    """Adds the sequence's key to any exception raised within the block."""

    def __init__(self, sequence: int | str) -> None:
        self._sequence = sequence

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception):
            error.add_note(f"raised while drafting for sequence {self._sequence!r}")


# A lane: one sequence at the target.


@dataclass(eq=False)
class Lane:
    """A sequence being decoded: its slot in the target, its draft, its stopping conditions and its counters."""

    context: Context
    target: Target
    verifier: Verifier
    drafting: Drafting | None = None  # None if drafts are made elsewhere
    _: KW_ONLY
    slot: int = 0
    max_new_tokens: int
    eos_token_ids: Collection[int] = frozenset()
    stop: Stop | None = None
    stop_at_repetition: bool = False
    # models the duration of each phase, for parts that learn from timings; if None, it is measured
    clock: Clock | None = None

    def __post_init__(self) -> None:
        self.draft: Draft | None = None  # the draft for the next target pass
        if self.context.constraint is not None:
            self.eos_token_ids = {*self.eos_token_ids, *self.context.constraint.eos_token_ids}
        self.result = GenerationResult(seed=self.context.seed)  # output, counters and seconds so far
        room = self.target.context_limit - len(self.context)
        self._limit: FinishReason = "length" if self.max_new_tokens <= room else "context"
        self._end = len(self.context) + min(self.max_new_tokens, room)
        self._seconds_before = dict(self.result.seconds)

    @property
    def depth(self) -> int:
        """The maximum useful depth of the next tree: the number of tokens still needed, minus the bonus token."""
        return self._end - len(self.context) - 1

    @property
    def tree(self) -> TokenTree:
        """The tree of the lane's current draft."""
        assert self.draft is not None
        return self.draft.tree

    @property
    def own_drafting(self) -> Drafting:
        """The lane's ``drafting``; asserts that the lane makes its own drafts."""
        assert self.drafting is not None
        return self.drafting

    @property
    def request(self) -> TokenRequest | None:
        """The lane's request for the target's tokens; None if its verifier or constraint needs all logits."""
        if not isinstance(self.verifier, DeterministicVerifier):
            return None
        if self.context.constraint is not None and self.verifier.law is not ArgmaxVerifier:
            return None
        learned = 0 if self.drafting is None else self.drafting.learned_candidates
        return TokenRequest(self.context, self.verifier, learned)

    @property
    def ended(self) -> bool:
        """True once the output has ended."""
        return self.result.finish_reason != ""

    def take(self, draft: Draft) -> None:
        """Begin a step with this draft; raises ``ValueError`` if a token is not in the target's vocabulary."""
        tokens = draft.tree.tokens.tolist()  # numpy's reductions cost more for such small trees
        vocab_size = self.target.vocab_size
        if not 0 <= min(tokens) <= max(tokens) < vocab_size:
            token = next(token for token in tokens if not 0 <= token < vocab_size)
            name = "the drafter" if self.drafting is None else type(self.drafting.drafter).__name__
            raise ValueError(f"{name} proposed token {token}; the target's vocabulary has ids 0 to {vocab_size - 1}")
        seconds = self.result.seconds
        self._seconds_before = dict(seconds)
        seconds["draft"] += draft.draft_seconds
        seconds["build"] += draft.build_seconds
        self.draft = draft

    def decide(self, logits: torch.Tensor, target: TargetTokens | None) -> tuple[Verdict, Top | None]:
        """Return the verdict on the draft, and the target's top tokens if they have been copied to the host.

        Args:
            logits: ``[n + 1, V]`` target logits for the tree of :attr:`draft`.
            target: the target's tokens, if the pass has computed them. Otherwise they are chosen from logits on a
                device; with logits on the host, the verifier decides.
        """
        started = perf_counter()
        if target is None:
            logits = masked(self.context.constraint, self.tree, logits)
            target = None if on_host(logits) else self._chosen(logits)
        if target is None:
            if logits.numel():  # a recording has no logits
                check_logits(logits, "target", self.context)
            verdict = self.verifier.verify(self.context, self.tree, logits)
        else:
            check_best(target.scores, "target", self.context)
            tokens = target.tokens.tolist()
            verdict = follow(self.tree, partial(allowed_after, self.context.constraint, self.tree, tokens, logits))
        self.result.seconds["verify"] += perf_counter() - started
        return verdict, None if target is None else target.top

    def _chosen(self, logits: torch.Tensor) -> TargetTokens | None:
        """Choose the tokens on the device and copy them in one transfer; return None if the verifier has no scores."""
        request = self.request
        if request is None:
            return None
        shape = self.tree.shape
        noise = None
        if request.verifier.noise_temperature:
            positions, size = shape.max_depth + 1, logits.shape[1]
            noise = self.context.target_noise(len(self.context), positions, size, logits.device)[shape.depths]
        scores = request.verifier.scores(logits, noise)
        if scores is None:
            return None
        best, tokens = scores.max(dim=-1)
        wanted = [tokens, best.float()]
        if request.learned:
            values, indices = logits.topk(request.learned, dim=-1)
            wanted += [indices, values.float()]
        chosen, highest, *top = to_host(*wanted)
        return TargetTokens(chosen, highest, (top[0], top[1]) if top else None)

    def absorb(
        self,
        verdict: Verdict,
        logits: torch.Tensor,
        hidden: torch.Tensor | None = None,
        top: Top | None = None,
    ) -> Outcome:
        """Keep the accepted rows and commit the new tokens. The lane is :attr:`ended` once its output is complete.

        Args:
            logits: ``[n + 1, V]`` target logits for the tree of :attr:`draft`.
            hidden: ``[n + 1, d]`` hidden states of the target, if they are kept.
            top: the target's top tokens, if they have already been copied to the host.
        """
        result, draft = self.result, self.draft
        assert draft is not None
        tree = draft.tree
        started = perf_counter()
        tokens = self._cut([*(int(tree.tokens[row]) for row in verdict.accepted), verdict.bonus])
        accepted = verdict.accepted[: len(tokens)]
        # The last new token is the next root. It stays out of the cache, even if a cut made a drafted node the last.
        self.target.commit(self.slot, [0, *accepted[: len(tokens) - 1]])
        self.context.append(tokens)
        self.context.steps += 1
        if self.context.constraint is not None:
            self.context.constraint.commit(tokens)
        result.seconds["commit"] += perf_counter() - started
        count_step(result, tree, len(accepted), len(tokens), len(draft.pass_tokens))
        if self.ended:
            result.token_ids = self.context.new_token_ids
        outcome = self.outcome(draft, logits, accepted, tuple(tokens))
        outcome.hidden = hidden
        if top is not None:
            outcome.top = top
        if self.clock is None:
            before = self._seconds_before
            outcome.seconds = {phase: spent - before[phase] for phase, spent in result.seconds.items()}
        else:
            outcome.seconds = self.clock(outcome)
        self.draft = None
        return outcome

    def outcome(
        self, draft: Draft, logits: torch.Tensor, accepted: tuple[int, ...], new_token_ids: tuple[int, ...]
    ) -> Outcome:
        """Return the outcome that parts and observers learn from."""
        return Outcome(self.context, draft.tree, logits, accepted, new_token_ids, draft.pass_tokens)

    def _cut(self, tokens: list[int]) -> list[int]:
        output = self.context.new_token_ids if self.stop is not None or self.stop_at_repetition else []
        for count, token in enumerate(tokens, start=1):
            output.append(token)
            reason: FinishReason = ""
            if token in self.eos_token_ids:
                reason = "eos"
            elif self.stop is not None and self.stop(output):
                reason = "stop"
            elif self.stop_at_repetition and repeats(output):
                reason = "repetition"
            elif len(self.context) + count == self._end:
                reason = self._limit
            if reason:
                self.result.finish_reason = reason
                return tokens[:count]
        return tokens


# The loop over all lanes.


class Decoding:
    """Advances the lanes of one target one step at a time. Lanes are added and removed between steps.

    Each stage is a method that a subclass may time or replace.

    Args:
        observers: called with the outcome of every step after the parts have learned from it; not timed.
        together: whether drafters of a team draft in one pass. If not, lanes cannot affect each other through rounding.
    """

    def __init__(self, target: Target, observers: Iterable[OutcomeObserver] = (), together: bool = True) -> None:
        self.target = target
        self.together = together
        self.observers = tuple(observers)
        self.lanes: dict[int, Lane] = {}  # active lanes by slot, in the order they were added
        self.passes = 0  # target passes so far

    def start(self, lane: Lane, wants_logits: bool = False, since: float | None = None) -> None:
        """Prefill the rest of the prompt, except the root, and start the lane's parts. The lane's slot must be empty or
        hold a prefix of the prompt. The prefill is timed from ``since``, or from the time of this call.
        """
        started = perf_counter() if since is None else since
        self.begin(lane, self.prefill(lane, wants_logits))
        lane.result.prefill_seconds += perf_counter() - started
        self.add(lane)

    def step(self) -> list[Lane]:
        """Draft, run the target pass, verify, absorb and learn. Remove and return the lanes that have ended."""
        lanes = self.drafts()
        started = perf_counter()
        trees = [lane.tree for lane in lanes]
        rows = sum(tree.tokens.size for tree in trees)
        for lane in lanes:
            lane.context.rows = rows
        result = self.target.tree_pass([lane.slot for lane in lanes], trees)
        self.target.synchronize()
        self.charge_pass(lanes, trees, started, perf_counter())
        for lane, (logits, hidden, target) in zip(lanes, result.by_tree(), strict=True):
            verdict, top = lane.decide(logits, target)
            outcome = lane.absorb(verdict, logits, hidden, top)
            if lane.ended:
                self.remove(lane)  # before it learns, which may fail
            self.learn(lane, outcome)
            for observe in self.observers:
                observe(outcome)
        self.passes += 1
        return [lane for lane in lanes if lane.ended]

    def add(self, lane: Lane) -> None:
        """Add a lane with a prefilled prompt. It is decoded from the next step on."""
        if lane.slot in self.lanes:
            raise ValueError(
                f"slot {lane.slot} holds a sequence that has not ended: remove its lane first, or use another slot"
            )
        self.lanes[lane.slot] = lane
        self.target.request_tokens(lane.slot, lane.request)

    def remove(self, lane: Lane) -> None:
        """Remove a lane, which ends its output, and free its slot."""
        del self.lanes[lane.slot]
        self.target.request_tokens(lane.slot, None)

    def prefill(self, lane: Lane, wants_logits: bool) -> Outcome | None:
        """Feed the prompt and return its outcome, or None if no part learns from it."""
        context, target = lane.context, self.target
        fed = context.token_ids[target.length(lane.slot) : -1].copy()
        result = target.prefill(lane.slot, fed.tolist(), all_logits=wants_logits)
        target.synchronize()
        if not result.logits and not result.hidden:
            return None
        logits = result.logits[0] if result.logits else torch.empty((0, 0))
        return prefill_outcome(context, fed, logits, result.hidden[0] if result.hidden else None)

    def begin(self, lane: Lane, prefill: Outcome | None) -> None:
        """Start the parts of a lane."""
        with drafting_for(lane.context.sequence):
            lane.own_drafting.begin(prefill)

    def drafts(self) -> list[Lane]:
        """Draft for all lanes and return the lanes that take part in the next pass."""
        lanes = list(self.lanes.values())
        for lane in lanes:
            lane.context.lanes = len(lanes)
        apart = [[number] for number in range(len(lanes))]
        groups = teams([lane.own_drafting for lane in lanes]) if self.together and len(lanes) > 1 else apart
        for numbers in groups:
            self.draft_group([lanes[number] for number in numbers])
        return lanes

    def draft_group(self, lanes: Sequence[Lane]) -> None:
        """Draft for lanes with drafters that belong to one team."""
        drafts = draft_together([(lane.own_drafting, lane.depth) for lane in lanes])
        for lane, draft in zip(lanes, drafts, strict=True):
            lane.take(draft)

    def charge_pass(self, lanes: Sequence[Lane], trees: Sequence[TokenTree], started: float, ended: float) -> None:
        """Divide the time of the target pass equally among its lanes."""
        for lane in lanes:
            lane.result.seconds["target"] += (ended - started) / len(lanes)

    def learn(self, lane: Lane, outcome: Outcome) -> None:
        """Let the parts of a lane learn from a step."""
        started = perf_counter()
        with drafting_for(lane.context.sequence):
            lane.own_drafting.learn(outcome)
        lane.result.seconds["update"] += perf_counter() - started


# One prompt.


class Decoder:
    """Continues one prompt at a time with a target model and four freely composed parts.

    Args:
        target: a Hugging Face causal LM, or a runtime. A model from :func:`specexp.load_pair` runs
            in its pair's mode, and any other model runs with its own code.
        drafter: None, together with ``builder``, for plain autoregressive decoding.
        verifier: if None, decoding is greedy.
        controller: if None, only the builder's own limits apply.

    Raises:
        ValueError: the parts cannot work together or with the target.

    Example:
        >>> pair = specexp.load_pair("stdlib")  # doctest: +SKIP
        >>> decoder = Decoder(pair.target, TokenRecycling(), TokenRecyclingTree())  # doctest: +SKIP
        >>> decoder.generate(pair.tokenizer("def main():\\n").input_ids, max_new_tokens=32).token_ids  # doctest: +SKIP
    """

    def __init__(
        self,
        target: PreTrainedModel | Runtime,
        drafter: Drafter | None = None,
        builder: TreeBuilder | None = None,
        verifier: Verifier | None = None,
        controller: Controller | None = None,
    ) -> None:
        from specexp.core.language_model import runtime_for  # transformers takes seconds to import

        check_composition(drafter, builder, verifier, controller)
        self.model = runtime_for(target)
        self.parts = Parts(drafter, builder, verifier, controller)
        join_target(self.parts, self.model)
        self._kept: Context | None = None

    def generate(
        self,
        input_ids: Sequence[int] | torch.Tensor,
        *,
        max_new_tokens: Annotated[int, Field(ge=1)] = 128,
        eos_token_id: int | Collection[int] | None = None,
        seed: int | None = None,
        sequence: int | str | None = None,
        continue_conversation: bool = False,
        stop_at_repetition: bool = False,
        constraint: Constraint | None = None,
        observers: Sequence[OutcomeObserver] = (),
    ) -> GenerationResult:
        """Continue one prompt. Calls from different threads that share a model wait for each other.

        Args:
            input_ids: ``[p]`` or ``[1, p]`` prompt tokens, at least one.
            eos_token_id: token or tokens that end the output.
            seed: seed for verifiers and drafters that sample. If None, a random seed is used and returned in
                :attr:`GenerationResult.seed`. A continued conversation keeps its seed.
            sequence: key of this continuation; n samples of a prompt need n different keys. Default: 0. A continued
                conversation keeps its key.
            continue_conversation: keep the cache and the parts' state, and prefill only new tokens. ``input_ids`` must
                begin with all tokens that the last call fed and generated.
            stop_at_repetition: end the output once it repeats itself; see :func:`~specexp.core.context.repeats`.
            constraint: what the output may be, such as a JSON schema; used for this output only. It ends at the
                constraint's EOS tokens, too.
            observers: called with every step's outcome, outside the measured time.

        Raises:
            ValueError: the prompt has no tokens, does not fit in the context or does not continue the conversation;
                another seed or sequence is given for a conversation; or an observer decodes with the same model.
        """
        model, parts = self.model, self.parts
        prompt = token_list(input_ids)
        flags = {"continue_conversation": continue_conversation, "stop_at_repetition": stop_at_repetition}
        others = {"seed": seed, "sequence": sequence, **flags}
        check_arguments(Decoder.generate, (), {**others, "max_new_tokens": max_new_tokens, "observers": observers})
        model.check_request(prompt, max_new_tokens)
        eos_token_ids = eos_set(eos_token_id, model.vocab_size)
        with model.exclusively(), torch.inference_mode():
            started = perf_counter()
            if continue_conversation:
                context = self._continued(prompt, seed, sequence)
            else:
                seed = randbits(62) if seed is None else seed
                context = parts.context(prompt, seed, 0 if sequence is None else sequence)
            if context is not model.conversation:  # the context is new, or another decoder used the cache in between
                model.cache.truncate(0, 0)
            context.constraint = constraint
            self._kept = model.conversation = context
            model.keep_hidden(parts.wants_hidden)  # another decoder of the model may have changed it
            room = min(len(prompt) + min(max_new_tokens, _ROOM_AHEAD), model.context_limit)
            model.cache.reserve(room + parts.max_rows)
            lane = Lane(
                context,
                model,
                parts.verifier,
                Drafting(parts, context),
                max_new_tokens=max_new_tokens,
                eos_token_ids=eos_token_ids,
                stop_at_repetition=stop_at_repetition,
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
                "continue_conversation must be false in a decoder's first call: there is no conversation yet"
            )
        for name, given, kept in (("seed", seed, context.seed), ("sequence", sequence, context.sequence)):
            if given is not None and given != kept:
                raise ValueError(f"{name} must be left out or {kept!r} as in the conversation, got {given!r}")
        known = context.token_ids.tolist()
        if prompt[: len(known)] != known or len(prompt) == len(known):
            raise ValueError(
                f"the prompt of {len(prompt)} tokens does not continue the conversation: it must begin with its "
                f"{len(known)} tokens and add at least one"
            )
        self.model.cache.truncate(0, len(known) - 1)  # an interrupted step may have left more rows
        context.next_turn(prompt[len(known) :])
        return context


def token_list(input_ids: Sequence[int] | torch.Tensor) -> list[int]:
    """Return a prompt's token ids, given as ``[p]`` or ``[1, p]``; raises ``ValueError`` for other shapes or types."""
    try:
        given: Any = input_ids.tolist() if isinstance(input_ids, (torch.Tensor, np.ndarray)) else input_ids
        if given and isinstance(given[0], list | tuple):  # [1, p]
            [given] = given
        return _integers(given)
    except (TypeError, ValueError, KeyError) as error:
        raise ValueError(
            f"input_ids must be token ids [p] or [1, p] of one prompt, such as a tokenizer's input_ids, got "
            f"{shown(input_ids)}"
        ) from error


def eos_set(eos_token_id: int | Collection[int] | None, vocab_size: int) -> frozenset[int]:
    """Return the EOS tokens; raises ``ValueError`` if one is not in the vocabulary."""
    given = eos_token_id
    if isinstance(given, (torch.Tensor, np.ndarray)):
        given = given.flatten().tolist()
    try:
        found = _integers(() if given is None else given if isinstance(given, Collection) else [given])
    except TypeError as error:
        raise ValueError(f"eos_token_id must be a token id or several, got {eos_token_id!r}") from error
    if unknown := sorted(token for token in found if not 0 <= token < vocab_size):
        raise ValueError(f"eos_token_id must be in the target's vocabulary, 0 to {vocab_size - 1}, got {unknown[0]}")
    return frozenset(found)


def _integers(given: Iterable[Any]) -> list[int]:
    """Convert integers from any library to Python integers; raises ``TypeError`` for other values."""
    if any(isinstance(value, bool) for value in given):
        raise TypeError("a truth value is not a token")
    return list(map(index, given))
