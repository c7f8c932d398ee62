"""The contracts of the four families of parts, and of what they say to each other.

A drafter guesses, a builder decides which guesses become nodes of a tree, a verifier which of them become output, and a
controller how much to draft. The loop (:mod:`specexp.core.decode`) and everything above know parts by these contracts
alone; what a part is capable of it declares, and what it does not declare is taken to be the least favourable.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from copy import deepcopy
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Self

from typing_extensions import override

from specexp.core.checked import Checked
from specexp.core.context import Context
from specexp.core.dialogue import Build, Candidates, DraftState, Plan, Request, Verdict
from specexp.core.latency import PLAIN, LatencyProfile
from specexp.core.outcome import Outcome
from specexp.core.sampling import Processors, highest, highest_of
from specexp.core.tree import NodeKind, TokenTree

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from specexp.core.runtime import Runtime


class Part:
    """The life cycle of a part that learns or caches. The prefill is step 0."""

    @property
    def shares_state(self) -> bool:
        """Whether what it learns from one sequence serves the next ones: its ``state`` is ``carry``."""
        return getattr(self, "state", None) == "carry"

    def for_new_sequence(self) -> Self:
        """Another one for a sequence decoded at the same time, in one thread.

        It shares weights and what is carried from sequence to sequence, and has its own of what belongs to one. One
        that shares its state must keep what belongs to a sequence apart by itself, so it may return itself.
        """
        return self if self.shares_state else deepcopy(self)

    def begin(self, context: Context, prefill: Outcome | None) -> None:
        """A sequence starts or, with ``context.continued``, goes on.

        Args:
            context: the sequence.
            prefill: step 0 with the logits of every fed prompt position, where the drafter's
                :attr:`~Drafter.wants_prefill_logits`, and hidden states where it wants them; None where neither.
        """
        return None

    def observe(self, outcome: Outcome) -> None:
        """Learn from a step."""
        return None

    def reset(self) -> None:
        """Return to the stated initial state."""
        return None

    def state_dict(self) -> dict[str, Any]:
        """What was learned, as tensors and plain values."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore :meth:`state_dict`.

        Raises:
            ValueError: the state is not one of this part.
        """
        if state:
            raise ValueError(f"{type(self).__name__} keeps no state, but {sorted(state)} was given")

    def check_entries(self, state: Mapping[str, Any], entries: Sequence[str]) -> None:
        """Refuse a state with other entries than these.

        Raises:
            ValueError: one sentence with both.
        """
        if sorted(state) != sorted(entries):
            name = type(self).__name__
            raise ValueError(
                f"the state of {name} has the entries {sorted(entries)}, but {sorted(state)} was given"
            )


class Drafter(Part, metaclass=Checked):
    """Guesses the next tokens. Subclasses state what they keep, and learn only in :meth:`observe`.

    Attributes:
        draft_passes: forward passes of a draft model since construction; 0 for drafters without a model.
        fed_tokens: tokens fed in those passes.
        coupled: whether it adds the target's noise to its own scores, so that both agree more often.
        gives_log_probs: whether its candidates come with log-probabilities.
        draws: whether it can draw candidates from a distribution it states.
        phrase_length: tokens of the longest candidate it can answer with; 1 where it has no phrases.
        learns_from: what of an outcome, beside the committed tokens themselves, its later answers depend on: nothing,
            the target's answers after accepted nodes, those after all nodes, or unknown, so that nothing is promised of
            it where less than all is recorded. Of a wrapper, what it adds to those inside it.
        runs_model: whether it runs a draft model.
        learned_candidates: how many of the target's best tokens after a node it learns; 0 where none, or unknown.
        inner: the drafters it asks.
    """

    draft_passes: int = 0
    fed_tokens: int = 0
    coupled: bool = False
    gives_log_probs: bool = False
    draws: bool = False
    phrase_length: int = 1
    learns_from: Literal["nothing", "accepted", "all-nodes", "unknown"] = "unknown"
    runs_model: bool = False
    learned_candidates: int = 0

    @property
    def inner(self) -> tuple[Drafter, ...]:
        """The drafters it asks; none unless it wraps some."""
        return ()

    @property
    def most_learned(self) -> int:
        """Its :attr:`learned_candidates`, or those of a drafter it asks."""
        return max((self.learned_candidates, *(one.most_learned for one in self.inner)))

    @property
    @abstractmethod
    def max_candidates(self) -> int:
        """Most candidates a node can be given; a tree that asks for a higher rank is refused when composed."""

    @property
    def models(self) -> tuple[Runtime, ...]:
        """The draft models it runs."""
        return ()

    @property
    def wants_prefill_logits(self) -> bool:
        """Whether :meth:`begin` needs the target's logits of every prompt position."""
        return False

    @property
    def wants_hidden(self) -> bool:
        """Whether outcomes must come with the target's hidden states."""
        return False

    def costs_pass(self, request: Request) -> bool:
        """Whether answering takes a forward pass of a draft model (the controller is asked before)."""
        return False

    @abstractmethod
    def propose(self, context: Context, request: Request) -> Candidates:
        """Answer a builder's question; must not change what later answers depend on."""

    @property
    def team(self) -> Hashable:
        """Drafters of several sequences whose team is the same are asked together; None where one is asked alone."""
        return None

    def propose_together(self, asked: Sequence[tuple[Any, Context, Request]]) -> list[Candidates]:
        """What each of some drafters of a team says of a sequence; the same as it says when asked alone.

        Args:
            asked: the drafters, each with its sequence and a builder's question.
        """
        return [drafter.propose(context, request) for drafter, context, request in asked]

    def alone(self) -> Drafter | None:
        """A new drafter that says what this one says by itself, asking none; None where it only asks others."""
        return None

    def use_draft_model(self, model: PreTrainedModel | Any | None) -> None:
        """Take the pair's draft model, if the drafter needs one and has none of its own.

        Args:
            model: a Hugging Face causal LM, or what a drafter takes in the place of one, such as a recording of it.

        Raises:
            ValueError: it needs one and there is none.
        """
        return None

    def use_target(self, target: Runtime) -> None:
        """Take what it needs of the target's own weights.

        Args:
            target: which is drafted for; asked for nothing but its ``model``.

        Raises:
            ValueError: the drafter was made for another one, or cannot draft for it.
        """
        return None

    def check_vocabulary(self, vocab_size: int) -> None:
        """Refuse a target with another vocabulary than the drafter's.

        Raises:
            ValueError: the vocabularies differ.
        """
        return None


class TreeBuilder(metaclass=Checked):
    """Decides the form of a draft tree. It never calls a drafter: whoever drives it answers its requests, from a
    drafter, from a recording, or from one batched pass for several sequences. It keeps nothing between two trees.

    Attributes:
        kind: how it has its candidates chosen; a drafter that cannot draw is refused when composed with one that
            draws.
        fixed_shape: whether its trees have one shape, cut only by a plan's limits, whatever the candidates are: so its
            masks come again, and its steps cost the same.
        needs_log_probs: whether it decides by the candidates' log-probabilities; a drafter without is refused.
        accepts_fewer_candidates: whether fewer candidates than it asks for will do; if not, a drafter that ranks fewer
            is refused.
        takes_threshold: whether it follows :attr:`Plan.threshold`; a controller that plans one needs it.
        num_choices: how many builders :attr:`Plan.choice` chooses from; 1 where there is no choice.
        phrase_length: tokens of the longest candidate it asks for; a drafter without phrases that long is refused.
    """

    kind: NodeKind = NodeKind.POINT_MASS
    fixed_shape: bool = False
    needs_log_probs: bool = False
    accepts_fewer_candidates: bool = False
    takes_threshold: bool = False
    num_choices: int = 1
    phrase_length: int = 1

    @property
    def rank_paths(self) -> list[list[int]] | None:
        """Rank path of every node of its trees, sorted by length, then rank, where :attr:`fixed_shape`; else None."""
        return None

    @property
    def inner(self) -> tuple[TreeBuilder, ...]:
        """The builders it builds with; none unless it wraps some."""
        return ()

    @property
    def narrower(self) -> tuple[TreeBuilder, ...]:
        """Smaller builders whose questions differ from this one's: a recording that must answer them too asks by each.

        Empty where every smaller tree is a part of the large one.
        """
        return ()

    @property
    @abstractmethod
    def max_nodes(self) -> int:
        """Most nodes a tree can have: the room a cache must keep beside the committed tokens."""

    @property
    def max_leaves(self) -> int:
        """Most leaves a tree can have, as far as that is known."""
        paths = self.rank_paths if self.fixed_shape else None
        if paths is None:
            return self.max_nodes
        above = {tuple(path[:-1]) for path in paths}
        return sum(tuple(path) not in above for path in paths)

    @property
    @abstractmethod
    def max_candidates(self) -> int:
        """Most candidates it asks for a node."""

    def extend(self, tree: TokenTree, plan: Plan) -> Build:
        """Add to a tree that an inner builder made; a builder without one adds nothing, and asks nothing."""
        return tree
        yield  # what makes it a generator

    @abstractmethod
    def build(self, root: int, plan: Plan) -> Build:
        """Build one tree.

        Args:
            root: last committed token.
            plan: limits of this step; deeper or more nodes than it allows must not be returned.
        """


class Verifier(metaclass=Checked):
    """Accepts a root-to-node path of a tree; draws from the target what comes after.

    Attributes:
        lossless: whether the output has exactly the target's distribution; a lossy verifier says so in every table.
        sampling: how the output comes about: ``deterministic``, whatever was drafted (:class:`DeterministicVerifier`);
            by ``rejection`` of drafts, so that only its law does not depend on them; or otherwise.
    """

    lossless: ClassVar[bool] = True
    sampling: ClassVar[Literal["deterministic", "rejection", "other"]] = "other"

    @property
    def sampling_settings(self) -> Mapping[str, float | int | None] | None:
        """Temperature, top-k and top-p after which the target's distribution is the output's, whatever is drafted; None
        where this is not known.
        """
        return None

    @property
    def noise_temperature(self) -> float | None:
        """Temperature at which the target's tokens are keyed by :meth:`Context.target_noise`.

        A coupled drafter adds the same noise to its own scores. 0 where the tokens take no noise; None where their
        noise is not the context's, so that a coupled drafter is refused.
        """
        return None

    @abstractmethod
    def verify(self, context: Context, tree: TokenTree, logits: torch.Tensor) -> Verdict:
        """Decide one step.

        Args:
            context: the sequence; its last token is the tree's root.
            tree: what was fed, ``n + 1`` rows.
            logits: ``[n + 1, V]`` the target's answer after every row.
        """


class DeterministicVerifier(Verifier):
    """A verifier whose output does not depend on what was drafted: a walk down the tree along the target's tokens."""

    sampling = "deterministic"

    @abstractmethod
    def target_token(self, context: Context, logits: torch.Tensor, position: int) -> int:
        """The token the target puts at an absolute position.

        Args:
            context: the sequence.
            logits: ``[V]`` the target's answer at the position before.
            position: absolute position of the token to be chosen.
        """

    @property
    def law(self) -> Hashable:
        """Verifiers of one law choose alike, and one of them is asked for the sequences of all; None if it is asked for
        its own alone.
        """
        return None

    def target_tokens(
        self, contexts: Sequence[Context], logits: torch.Tensor, positions: Sequence[int]
    ) -> list[int]:
        """Of several sequences decided by one law what :meth:`target_token` gives for each.

        Args:
            contexts: ``m`` sequences.
            logits: ``[m, V]`` on the host, a row for each.
            positions: of the token to be chosen in each.
        """
        questions = zip(contexts, logits, positions, strict=True)
        return [self.target_token(context, row, position) for context, row, position in questions]

    def scores(self, context: Context, tree: TokenTree, logits: torch.Tensor) -> torch.Tensor | None:
        """``[n + 1, V]`` whose highest one is the target's token after every row, made where the logits are.

        So a device is waited for once a step. None, unless a class says otherwise: it is asked token by token.
        """
        return None

    @override
    def verify(self, context: Context, tree: TokenTree, logits: torch.Tensor) -> Verdict:
        start, depths = len(context), tree.shape.depths
        return walk(tree, lambda row: self.target_token(context, logits[row], start + int(depths[row])))


def walk(tree: TokenTree, token_after: Callable[[int], int]) -> Verdict:
    """The way down a tree along the target's tokens.

    Args:
        tree: what was fed.
        token_after: the target's token after a row.
    """
    accepted: list[int] = []
    row = 0
    while True:
        token = token_after(row)
        child = tree.child_with_token(row, token)
        if child is None:
            return Verdict(tuple(accepted), token)
        accepted.append(child)
        row = child


class ArgmaxVerifier(DeterministicVerifier):
    """Takes the tokens the target itself finds most probable, among equals the lowest id: who verifies where nobody is
    named.
    """

    @property
    @override
    def sampling_settings(self) -> Mapping[str, float | int | None]:
        return Processors(temperature=0.0).settings

    @property
    @override
    def noise_temperature(self) -> float:
        return 0.0

    @override
    def scores(self, context: Context, tree: TokenTree, logits: torch.Tensor) -> torch.Tensor:
        return logits

    @override
    def target_token(self, context: Context, logits: torch.Tensor, position: int) -> int:
        return highest(logits)

    @property
    @override
    def law(self) -> Hashable:
        own = type(self).target_token is ArgmaxVerifier.target_token  # and not what a subclass puts there
        return ArgmaxVerifier if own else None

    @override
    def target_tokens(
        self, contexts: Sequence[Context], logits: torch.Tensor, positions: Sequence[int]
    ) -> list[int]:
        return highest_of(logits)


class Controller(Part, metaclass=Checked):
    """Plans a step, decides between draft passes, and learns when the step is over.

    Attributes:
        plans_threshold: whether its plans hold a threshold; a builder that takes none is then refused.
        needs_log_probs: whether it decides by draft probabilities; a drafter without is refused.
        num_choices: how many builders its plans choose from; a builder with fewer is refused. 1 where it chooses none.
        uses_seconds: whether the seconds of steps decide what it does, so that it does otherwise on another device.
        learns: whether it does otherwise after what it observed.
        reads_answers: whether it learns from the target's answers themselves, beside what was accepted and committed;
            where nobody reads them they are not copied to who drafts elsewhere.
        same_plan: whether every step has the same plan, and no draft is ended before.
        changes_nothing: whether that plan is the builder's own limits.
        needs_foresight: whether it must know a prompt's output beforehand, as only an evaluation can.
        mean_nodes: nodes that it keeps the mean of its trees at; None where it aims at none.
        sees_load: whether it plans by how many sequences are decoded together.
    """

    plans_threshold: bool = False
    needs_log_probs: bool = False
    num_choices: int = 1
    uses_seconds: bool = True
    learns: bool = True
    reads_answers: bool = True
    same_plan: bool = False
    changes_nothing: bool = False
    needs_foresight: bool = False
    mean_nodes: int | None = None
    sees_load: bool = False

    @property
    def inner(self) -> tuple[Controller, ...]:
        """The controllers it asks; none unless it wraps some."""
        return ()

    def check_parts(
        self, drafter: Drafter | None, builder: TreeBuilder | None, verifier: Verifier | None
    ) -> None:
        """Refuse parts it cannot steer, when composed; None stands for plain decoding, or greedy verification.

        Raises:
            ValueError: one sentence that says what to change.
        """
        return None

    @abstractmethod
    def plan(self, context: Context) -> Plan:
        """Limits of the step about to start."""

    def keep_drafting(self, context: Context, state: DraftState) -> bool:
        """Whether the next draft pass should be spent.

        Args:
            context: the sequence; random choices are keyed by its place.
            state: the tree so far.
        """
        return True

    def watched(self) -> dict[str, float]:
        """Figures to watch while it learns, by name."""
        return {}

    def learned(self) -> str:
        """What it knows, in a clause; empty where there is nothing to tell."""
        return ""

    def use_latency(self, profile: LatencyProfile | None) -> None:
        """Take the latencies a run is modelled with, if the controller weighs costs and was given none of its own.

        Args:
            profile: what steps cost on the device; None where seconds are measured.

        Raises:
            ValueError: it needs latencies, has none of its own, and the profile does not hold them.
        """
        return None


class BuilderLimits(Controller):
    """Leaves every step to the builder's own limits: who controls where nobody is named."""

    uses_seconds = False
    learns = False
    same_plan = True
    changes_nothing = True

    @override
    def plan(self, context: Context) -> Plan:
        return Plan()


class _FourParts(NamedTuple):
    drafter: Drafter | None
    builder: TreeBuilder | None
    verifier: Verifier
    controller: Controller


class Parts(_FourParts):
    """What :class:`specexp.Decoder` takes after the target: ``Decoder(target, *parts)``.

    Args:
        drafter: who guesses; None, with ``builder`` None, for plain decoding.
        builder: which guesses become nodes.
        verifier: what is accepted; greedy decoding (:class:`ArgmaxVerifier`) if None.
        controller: how much to draft; :class:`BuilderLimits` if None.
    """

    __slots__ = ()

    @override
    def __new__(
        cls,
        drafter: Drafter | None = None,
        builder: TreeBuilder | None = None,
        verifier: Verifier | None = None,
        controller: Controller | None = None,
    ) -> Self:
        return super().__new__(
            cls, drafter, builder, verifier or ArgmaxVerifier(), controller or BuilderLimits()
        )

    @property
    def max_rows(self) -> int:
        """Rows of the largest tree, its root included: the room a cache must keep beside the committed tokens."""
        return 1 + (0 if self.builder is None else self.builder.max_nodes)

    @property
    def wants_prefill_logits(self) -> bool:
        """Whether the drafter needs the target's logits of every prompt position."""
        return self.drafter is not None and self.drafter.wants_prefill_logits

    @property
    def reads_answers(self) -> bool:
        """Whether drafter or controller learn from the target's answers, so that who drafts elsewhere needs them."""
        drafters = [self.drafter] if self.drafter is not None else []
        for drafter in drafters:
            drafters += drafter.inner
        if any(drafter.learns_from != "nothing" for drafter in drafters):
            return True
        return self.controller.learns and self.controller.reads_answers

    @property
    def keeps_learning(self) -> bool:
        """Whether drafter or controller know more after a prompt than before it, and start the next one from that; one
        that states no policy of its state keeps it.
        """
        learning = [part for part in (self.drafter, self.controller) if part is not None]
        return any(
            part.shares_state or (not hasattr(part, "state") and part.state_dict()) for part in learning
        )

    @property
    def wants_hidden(self) -> bool:
        """Whether the drafter needs the target's hidden states."""
        return self.drafter is not None and self.drafter.wants_hidden

    def context(self, token_ids: Sequence[int], seed: int, sequence: int | str) -> Context:
        """A sequence that begins, its noise at the verifier's temperature."""
        noise_temperature = self.verifier.noise_temperature or 0.0
        return Context(token_ids, seed=seed, sequence=sequence, noise_temperature=noise_temperature)

    @property
    def label(self) -> str:
        """What a latency profile calls the composition: ``DraftModel + DySpecGreedy``, ``coupled TokenRecycling +
        StaticTree`` (for all trees of a fixed shape cost the same beside their passes), ``Union(PromptLookup,
        TokenRecycling) + StaticTree``, or ``plain``.
        """
        if self.drafter is None or self.builder is None:
            return PLAIN
        coupled = "coupled " if self.drafter.coupled else ""
        return f"{coupled}{_drafter_label(self.drafter)} + {_builder_label(self.builder)}"


def _drafter_label(drafter: Drafter) -> str:
    name, inner = type(drafter).__name__, map(_drafter_label, drafter.inner)
    return f"{name}({', '.join(inner)})" if drafter.inner else name


def _builder_label(builder: TreeBuilder) -> str:
    if builder.fixed_shape:
        return "StaticTree"
    name, inner = type(builder).__name__, dict.fromkeys(map(_builder_label, builder.inner))
    return f"{name}({', '.join(inner)})" if inner else name
