"""The contracts of the four families of parts: drafters, tree builders, verifiers and controllers.

Drafters guess tokens, builders choose the guesses that become nodes of a tree, verifiers decide which nodes become
output, and controllers decide how much to draft.

A part declares its capabilities as attributes. The defaults are conservative, so a part that declares nothing still
works correctly. Parts that contain other parts of their family build on :mod:`specexp.core.wrappers`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from copy import deepcopy
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from typing_extensions import override

from specexp.base.checked import Checked
from specexp.core.context import Context
from specexp.core.dialogue import Build, Candidates, DraftState, Filled, Plan, Request, Verdict
from specexp.core.outcome import Outcome
from specexp.core.sampling import Processors, highest
from specexp.core.tree import NodeKind, TokenTree, TreeShape

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

    from specexp.core.latency import LatencyProfile
    from specexp.core.runtime import Runtime


LearnsFrom = Literal["nothing", "accepted", "all-nodes", "unknown"]


class Part(metaclass=Checked):
    """The life cycle of drafters and controllers. The prefill is step 0."""

    # ``cold`` starts every sequence from scratch, ``carry`` keeps what was learned for the next sequence, and
    # ``preloaded`` starts every sequence from given values; None: no policy
    state: str | None = None

    @property
    def shares_state(self) -> bool:
        """True if later sequences use the state learned from earlier ones."""
        return self.state == "carry"

    def for_new_sequence(self) -> Self:
        """Return a part for another sequence that is decoded concurrently in the same thread.

        Both parts share weights and carried state. A part that shares its state may return itself, because it stores
        the data of each sequence separately (:class:`~specexp.core.context.PerSequence`).
        """
        return self if self.shares_state else deepcopy(self)

    def begin(self, context: Context, prefill: Outcome | None) -> None:
        """Start a sequence or, if ``context.continued``, a later turn. ``prefill`` is the outcome of step 0 if the
        drafter wants hidden states or logits for every prompt position, else None.
        """
        if self.state == "cold" and not context.continued:  # a later turn keeps the state of its conversation
            self.reset()

    def observe(self, outcome: Outcome) -> None:
        """Learn from a step."""

    def reset(self) -> None:
        """Return to the initial state."""

    def state_dict(self) -> dict[str, Any]:
        """Return the learned state, as tensors and plain values."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state from :meth:`state_dict`; raises ``ValueError`` if it belongs to another part."""
        self.check_entries(state, ())

    def check_entries(self, state: Mapping[str, Any], entries: Sequence[str]) -> None:
        """Raise ``ValueError`` unless the state has exactly these entries."""
        if sorted(state) != sorted(entries):
            raise ValueError(
                f"the state of {type(self).__name__} must have the entries {sorted(entries)}, got {sorted(state)}"
            )


class Drafter(Part):
    """Guesses the next tokens. A subclass implements :meth:`propose` and :attr:`max_candidates`, sets the
    attributes that apply, and learns only in :meth:`observe`.
    """

    wants_prefill_logits: bool = False  # begin() needs the target's logits at every prompt position
    # outcomes must have the target's hidden states: the final ones or those of some layers, as for Target.keep_hidden
    wants_hidden: bool | tuple[int, ...] = False
    coupled: bool = False  # the target's noise is added to the draft's scores, so that they agree more often
    gives_log_probs: bool = False  # candidates have log-probabilities
    draws: bool = False  # candidates can be drawn from a distribution that the drafter returns
    phrase_length: int = 1  # number of tokens in the longest candidate; 1 if there are no phrases
    # the target's answers that later candidates depend on, besides the committed tokens: none, those after accepted
    # nodes, or those after all nodes. A wrapper does not declare what its inner drafters learn from
    learns_from: LearnsFrom = "unknown"
    learned_candidates: int = 0  # number of the target's top tokens learned per node; 0 if none, or unknown
    runs_model: bool = False  # the drafter runs a draft model
    # rule for ranking candidates by a draft model's answers (specexp.drafters.ranking.Scoring), if a recording of the
    # answers can replace the model
    scoring: Any | None = None
    inner: tuple[Drafter, ...] = ()  # the wrapped drafters

    @property
    @abstractmethod
    def max_candidates(self) -> int:
        """The maximum number of candidates per node. A composition is rejected if its tree needs more."""

    @abstractmethod
    def propose(self, context: Context, request: Request) -> Candidates:
        """Answer a builder's request, without changing any state that later answers depend on."""

    def fill(self, context: Context, shape: TreeShape) -> Filled | None:
        """Fill a whole tree (rows ordered by depth) as level-by-level requests would, or return None to get requests.

        If the drafter runs a model, this is called only if its sequence drafts alone and no controller ends drafts.
        """
        return None

    def source_of(self, context: Context, path: tuple[int, ...]) -> str:
        """Return the name of the drafter class that proposed the last token of a path in the latest tree."""
        return type(self).__name__

    def check_vocabulary(self, vocab_size: int) -> None:
        """Raise ``ValueError`` if the target's vocabulary differs from the drafter's."""

    def use_target(self, target: Runtime) -> None:
        """Take the required modules from the target's ``model``; raises ``ValueError`` if one is missing."""

    # Drafters with a draft model:

    def use_draft_model(self, model: Any | None) -> None:
        """Use the pair's draft model (a Hugging Face model, a runtime or a recording), unless the drafter has its own.
        Raises ``ValueError`` if a model is needed but there is none.
        """

    @property
    def models(self) -> tuple[Runtime, ...]:
        """The draft models that this drafter runs."""
        return ()

    def path_states(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Return the draft model's ``[m, d]`` hidden states after the first ``m`` tokens of a path from depth 1 down.
        They are the inputs of its output layer, up to the first token that the model has not processed.
        """
        raise NotImplementedError

    def costs_pass(self, request: Request) -> bool:
        """Return whether answering this request requires a forward pass of a draft model."""
        return False

    def drop_answers(self, request: Request) -> None:
        """Forget the answers at the frontier rows, so that a later request for them costs a pass."""

    @property
    def team(self) -> Hashable:
        """A key: drafters with equal keys answer for several sequences in one pass. None: this one answers alone."""
        return None

    def propose_together(self, requested: Sequence[tuple[Any, Context, Request]]) -> list[Candidates]:
        """Answer requests from several sequences, each as :meth:`propose` would. All drafters belong to one team."""
        return [drafter.propose(context, request) for drafter, context, request in requested]


class TreeBuilder(metaclass=Checked):
    """Chooses the shape of a draft tree, and keeps no state between trees. It never calls a drafter: its requests are
    answered by a drafter, by a recording, or by one batched pass for several sequences.
    """

    kind: NodeKind = NodeKind.POINT_MASS  # whether candidates are top-ranked or drawn
    # the shape of every tree, cut only by a plan's limits; None if it depends on the candidates
    shape: TreeShape | None = None
    needs_log_probs: bool = False  # candidates must have log-probabilities
    accepts_fewer_candidates: bool = False  # a drafter may rank fewer candidates than requested
    takes_threshold: bool = False  # Plan.threshold is applied
    num_choices: int = 1  # number of builders that Plan.choice chooses from
    phrase_length: int = 1  # number of tokens in the longest candidate requested
    size_arguments: ClassVar[tuple[str, ...]] = ()  # constructor arguments that set how much is drafted
    inner: tuple[TreeBuilder, ...] = ()  # the wrapped builders

    @property
    @abstractmethod
    def max_nodes(self) -> int:
        """The maximum number of nodes in a tree. A cache needs room for them after the committed tokens."""

    @property
    @abstractmethod
    def max_candidates(self) -> int:
        """The maximum number of candidates requested per node."""

    @abstractmethod
    def build(self, root: int, plan: Plan) -> Build:
        """Build one tree within this step's limits."""

    def shape_of(self, plan: Plan) -> TreeShape | None:
        """Return this step's shape if :meth:`build` only fills it with the best candidates, else None."""
        return None

    def extend(self, tree: TokenTree, plan: Plan) -> Build:
        """Add nodes to a tree that an inner builder has built. By default, add none."""
        return tree
        yield  # makes it a generator

    @property
    def rank_paths(self) -> list[list[int]] | None:
        """The rank path of every node of :attr:`shape`, sorted by length, then rank."""
        return None if self.shape is None else [list(path) for path in self.shape.rank_paths[1:]]

    @property
    def max_leaves(self) -> int:
        """An upper bound on the number of leaves of a tree."""
        return self.max_nodes if self.shape is None else max(1, self.shape.children[1:].count(()))


class Verifier(metaclass=Checked):
    """Accepts a path of a tree, from the root down, and chooses the target's token after it."""

    lossless: ClassVar[bool] = True  # the output has exactly the target's distribution
    # ``deterministic``: the output is independent of the draft; ``rejection``: only its distribution is
    sampling: ClassVar[Literal["deterministic", "rejection", "other"]] = "other"
    needs_draws: ClassVar[bool] = False  # it gains nothing from candidates that are not drawn
    takes_trees: ClassVar[bool] = True  # False: it tries only the first of several children
    # temperature, top-k and top-p of the target's distribution; None if unknown
    processors: Processors | None = None
    # temperature at which tokens are sampled with Context.target_noise, the noise that a coupled drafter adds too;
    # 0 if tokens are chosen without noise, None if with other noise
    noise_temperature: float | None = None
    # each token is the argmax of DeterministicVerifier.scores with that noise
    keyed_scores: ClassVar[bool] = False

    @property
    def sampling_settings(self) -> Mapping[str, float | int | None] | None:
        """Temperature, top-k and top-p of the output's distribution; None if unknown or dependent on the draft."""
        return self.processors.settings if self.processors is not None and self.lossless else None

    @abstractmethod
    def verify(self, context: Context, tree: TokenTree, logits: torch.Tensor) -> Verdict:
        """Return the verdict on a tree, given the target's logits for it.

        Args:
            context: the sequence; its last token is the tree's root.
            logits: ``[n + 1, V]`` target logits after each row.
        """


class DeterministicVerifier(Verifier):
    """A verifier that gives the same output for every draft, by following the target's tokens down the tree."""

    sampling = "deterministic"

    @property
    def law(self) -> Hashable:
        """A key: verifiers with equal keys have equal :meth:`scores`, so one pass can serve several sequences. None if
        no other verifier has equal scores.
        """
        return None

    @abstractmethod
    def target_token(self, context: Context, logits: torch.Tensor, position: int) -> int:
        """Return the target's token at an absolute position, given the ``[V]`` logits at the previous position."""

    def scores(self, logits: torch.Tensor, noise: torch.Tensor | None) -> torch.Tensor | None:
        """Return ``[m, V]`` scores that have the target's tokens as argmax, or None to use :meth:`target_token`.
        Use only tensor operations, so that a step waits for the device once.

        Args:
            logits: ``[m, V]`` target logits.
            noise: ``[m, V]`` :meth:`Context.target_noise` at the tokens' positions; None at ``noise_temperature`` 0.
        """
        return None

    @override
    def verify(self, context: Context, tree: TokenTree, logits: torch.Tensor) -> Verdict:
        def token_after(row: int) -> int:
            return self.target_token(context, logits[row], len(context) + int(tree.shape.depths[row]))

        return follow(tree, token_after)


def follow(tree: TokenTree, token_after: Callable[[int], int]) -> Verdict:
    """Accept nodes from the root down as long as they have the target's tokens. ``token_after`` maps a row to the
    target's token after it.
    """
    accepted: list[int] = []
    row, token = 0, token_after(0)
    # a draft token is accepted here: the node has the target's own token
    while (child := tree.child_with_token(row, token)) is not None:
        accepted.append(child)
        row, token = child, token_after(child)
    return Verdict(tuple(accepted), token)


class ArgmaxVerifier(DeterministicVerifier):
    """Greedy verification, the default: accepts the target's argmax (ties go to the lowest id)."""

    processors = Processors(temperature=0.0)
    noise_temperature = 0.0

    @property
    @override
    def law(self) -> Hashable:
        own = type(self).target_token is ArgmaxVerifier.target_token  # a subclass may have another rule
        return ArgmaxVerifier if own else None

    @override
    def target_token(self, context: Context, logits: torch.Tensor, position: int) -> int:
        return highest(logits)

    @override
    def scores(self, logits: torch.Tensor, noise: torch.Tensor | None) -> torch.Tensor:
        return logits


class Controller(Part):
    """Plans each step, decides before each draft pass whether to run it, and learns from finished steps."""

    plans_threshold: bool = False  # plans set a threshold
    needs_log_probs: bool = False  # decisions need the candidates' log-probabilities
    reads_states: bool = False  # decisions need the draft model's hidden states
    num_choices: int = 1  # number of builders that plans choose from
    uses_seconds: bool = True  # decisions depend on how long steps take, and thus on the device
    learns: bool = True  # decisions depend on observed steps
    # it learns from the target's answers, not only from accepted and committed tokens
    reads_answers: bool = True
    same_plan: bool = False  # every step has the same plan and no draft is ended early
    changes_nothing: bool = False  # every plan leaves the builder's own limits in place
    sees_load: bool = False  # plans depend on how many sequences are decoded together
    exploring: float = 0.0  # share of the decisions that are random at present
    # numbers of decisions and of random ones since the controller was made, which no reset changes
    decisions: tuple[int, int] = (0, 0)
    inner: tuple[Controller, ...] = ()  # the wrapped controllers

    @abstractmethod
    def plan(self, context: Context) -> Plan:
        """Return the limits for the next step."""

    def keep_drafting(self, context: Context, state: DraftState) -> bool:
        """Return whether to run the next draft pass. Random choices must be keyed by position in the text."""
        return True

    def check_parts(self, drafter: Drafter | None, builder: TreeBuilder | None, verifier: Verifier | None) -> None:
        """Raise ``ValueError`` if these parts cannot be controlled. None: plain decoding or greedy verification."""

    def use_latency(self, profile: LatencyProfile | None) -> None:
        """Use the latency profile that models step times, or None if they are measured; raises ``ValueError`` if a
        required profile is missing.
        """

    def watched(self) -> dict[str, float]:
        """Return values to plot during learning, keyed by name."""
        return {}

    def learned(self) -> str:
        """Return a clause that describes the learned state, or an empty string."""
        return ""


class BuilderLimits(Controller):
    """The default controller, which leaves every step to the builder's own limits."""

    uses_seconds = False
    learns = False
    same_plan = True
    changes_nothing = True

    @override
    def plan(self, context: Context) -> Plan:
        return Plan()
