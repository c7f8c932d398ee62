"""Runtimes run models: they keep committed tokens in slots and run passes over draft trees.

:class:`~specexp.core.language_model.LanguageModel` runs a Hugging Face model with its own code. Other subclasses of
:class:`Runtime` use compiled passes or other libraries.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial, wraps
from math import inf, isnan, nan
from os import environ
from sys import maxsize
from threading import Lock, get_ident
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, ParamSpec, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from specexp.base.kernels import CannotRunError
from specexp.base.messages import shown, type_and_line
from specexp.core.context import Context
from specexp.core.tree import TokenTree, TreeShape

if TYPE_CHECKING:
    import torch


RowOrder = Literal["built", "depth-first", "heavy-path"]
P = ParamSpec("P")
R = TypeVar("R")


def inference(method: Callable[P, R]) -> Callable[P, R]:
    """Run a method in ``torch.inference_mode``, the only mode in which tensors created by a pass can be modified."""

    @wraps(method)
    def within(*args: P.args, **kwargs: P.kwargs) -> R:
        import torch

        if torch.is_inference_mode_enabled():  # entering it again would cost more than the method
            return method(*args, **kwargs)
        with torch.inference_mode():
            return method(*args, **kwargs)

    return within


class Slots(ABC):
    """Storage for several sequences, one slot each. A slot holds committed tokens, then rows not yet committed."""

    lengths: list[int]  # number of committed tokens in each slot

    @abstractmethod
    def reserve(self, capacity: int, slots: int = 1) -> None:
        """Make room for at least ``capacity`` rows in at least ``slots`` slots, keeping all committed tokens."""

    @abstractmethod
    def commit(self, slot: int, rows: Sequence[int]) -> None:
        """See :meth:`Target.commit`."""

    @abstractmethod
    def truncate(self, slot: int, length: int) -> None:
        """Keep only the first ``length`` tokens of a slot."""

    @abstractmethod
    def fork(self, source: int, target: int, length: int) -> None:
        """Copy a slot's first ``length`` tokens to another slot, so that a prompt's samples share its prefill."""

    @abstractmethod
    def nbytes(self) -> int:
        """Return the size of the storage in bytes."""


@dataclass(frozen=True, slots=True)
class Growth:
    """New rows of a tree that grows pass by pass, to be fed after its ``u`` uncommitted rows."""

    tokens: NDArray[np.int64]  # [m]
    depths: NDArray[np.int64]  # [m] distance from the last committed token, minus one
    # [m, u + m] true where a new row may attend to an uncommitted row, which may be itself
    visible: NDArray[np.bool_]
    # [m] the pass row that holds each row of the tree; None if rows are fed in the tree's own order
    pass_rows: NDArray[np.int64] | None = None


class TokenRule(Protocol):
    """The part of a :class:`~specexp.core.contracts.DeterministicVerifier` that a pass needs to compute tokens."""

    noise_temperature: float | None

    @property
    def law(self) -> Hashable: ...  # noqa: D102

    def scores(self, logits: torch.Tensor, noise: torch.Tensor | None) -> torch.Tensor | None: ...  # noqa: D102


class TokenRequest(NamedTuple):
    """A slot's sequence, the verifier's rule for its tokens, and the number of top tokens to learn per row."""

    context: Context
    verifier: TokenRule
    learned: int


class TargetTokens(NamedTuple):
    """The target's token after every row of a tree, computed by the tree pass itself.

    A deterministic verifier needs nothing else from the ``[n + 1, V]`` logits. Choosing the tokens afterwards would
    read all logits again and, on a GPU, wait for the device a second time. A lane therefore requests the tokens
    (:meth:`Target.request_tokens`), and a pass that can choose them returns them. They are valid from
    :meth:`Target.synchronize` until the next pass. A runtime may ignore a request; the lane then chooses the tokens
    from the logits.
    """

    tokens: NDArray[np.int64]  # [n + 1]
    scores: NDArray[np.float32]  # [n + 1] their scores: logits, or logits / temperature + noise
    # [n + 1, k] each: the top tokens that a drafter learns, and their logits; None if it learns none
    top: tuple[NDArray[np.int64], NDArray[np.float32]] | None


@dataclass(frozen=True, slots=True)
class PassResult:
    """The result of a pass, with one entry per tree. A prefill has at most one entry, for all tokens fed."""

    logits: Sequence[torch.Tensor] = ()  # [m, V] each; a prefill has them only on request
    hidden: Sequence[torch.Tensor] = ()  # [m, d] each; empty if no hidden states are kept
    # None for a slot without a request; empty if there are no requests
    tokens: Sequence[TargetTokens | None] = ()

    def by_tree(self) -> Iterator[tuple[torch.Tensor, torch.Tensor | None, TargetTokens | None]]:
        """Iterate over the trees' logits, hidden states and tokens."""
        none = [None] * len(self.logits)
        return zip(self.logits, self.hidden or none, self.tokens or none, strict=True)


class Target(ABC):
    """The interface through which the loop uses a model, or a recording of one."""

    context_limit: int  # maximum number of positions
    vocab_size: int = 2**64  # V; unbounded if no model is run
    keeps_hidden: bool | tuple[int, ...] = False  # which hidden states are kept for a drafter

    @abstractmethod
    def length(self, slot: int) -> int:
        """Return the number of committed tokens in a slot."""

    @abstractmethod
    def prefill(self, slot: int, token_ids: Sequence[int], *, all_logits: bool = False) -> PassResult:
        """Feed and commit tokens, if any. The result has ``[p, V]`` logits only if ``all_logits``, because they are
        expensive and only some drafters learn from them.
        """

    @abstractmethod
    def tree_pass(self, slots: Sequence[int], trees: Sequence[TokenTree]) -> PassResult:
        """Feed one tree per slot in one pass, without committing anything; the logits are ``[n + 1, V]`` per tree."""

    @abstractmethod
    def commit(self, slot: int, rows: Sequence[int]) -> None:
        """Keep these rows of a slot's last pass, or of all passes of a growing tree, and drop the rest. ``rows`` is
        in ascending order and not empty, e.g. ``[0, 2, 5]`` for the root and two accepted nodes.
        """

    def request_tokens(self, slot: int, request: TokenRequest | None) -> None:  # noqa: B027 - a recording has none
        """Have later tree passes compute the target's tokens for a slot, if they can; None cancels the request."""

    def keep_hidden(self, wanted: bool | tuple[int, ...]) -> None:
        """Keep the hidden states of later passes, or stop keeping them; raises ``ValueError`` if the target has none.

        ``True`` keeps the inputs of the output layer. A tuple keeps the states after these numbers of layers,
        concatenated along the last dimension (0: the embeddings; the last layer's are not normalized).
        """
        if wanted:
            raise ValueError(
                f"{type(self).__name__} has no such hidden states, but the drafter reads them: set pair.mode to eager "
                "or compiled, or use another drafter"
            )

    @abstractmethod
    def synchronize(self) -> None:
        """Wait for the device to finish, so that a clock can be read."""


class Runtime(Target):
    """A model that can be run, as a target or as a draft model.

    :data:`specexp.models.modes.MODES` lists those that are a ``pair.mode``, named by their :attr:`kind`.
    """

    kind: ClassVar[str]  # name of the runtime in artifacts, and of its mode, e.g. compiled
    refusal: ClassVar[type[ValueError]] = CannotRunError  # raised if the self-check of a model fails
    prefill_chunk: ClassVar[int] = 512  # maximum number of tokens in a prefill pass
    pads_rows: ClassVar[bool] = False  # passes cost as if their rows were rounded up to a power of two
    draft_source: ClassVar[Any] = None  # class of a draft model's DraftSource; None: separate passes
    model: Any  # model object of the library that runs it
    vocab_size: int
    cache: Slots
    device: torch.device  # device and dtype of the logits
    dtype: torch.dtype
    max_leaves: int = maxsize  # maximum number of leaves, over all trees of a pass
    # order of a tree's rows in its pass. In depth-first order, the mask is block-sparse (DySpec, appendix C)
    row_order: RowOrder = "built"
    # a row's logits are bit-identical, no matter which other rows its pass feeds
    independent_rows: bool = False
    packs: bool = False  # a pass reads packed copies of the weights

    def __init__(self) -> None:
        self.passes = 0  # passes since construction, including prefill
        # the sequence in slot 0; decoders that share the model check that it is still theirs
        self.conversation: Context | None = None
        self.requests: dict[int, TokenRequest] = {}  # the requests that passes answer, keyed by slot
        self._pass_rows: dict[int, NDArray[np.int64]] = {}  # by slot, until a reordered pass is committed
        self._lock = Lock()
        self._user: int | None = None  # the thread that decodes

    @classmethod
    def for_model(cls, model: Any) -> Runtime:
        """Return a runtime for a Hugging Face model, with an empty cache; raises :class:`CannotRunError` on failure."""
        raise CannotRunError(f"{cls.__name__} is not a mode of Hugging Face models")

    @classmethod
    def check_mode(cls, models: Iterable[Any], device: str) -> None:
        """Raise ``ValueError`` if a model cannot run in this mode on a device. No weights are read."""

    @property
    def precision(self) -> str:
        """Name of the dtype of the weights, keys and values, e.g. ``bfloat16``."""
        return str(self.dtype).removeprefix("torch.")

    def provenance(self) -> dict[str, str]:
        """Return ``runtime``, ``dtype`` and, for weights from a quantized file, the file's type as ``weights_from``."""
        source = getattr(getattr(self.model, "config", None), "weights_from", None)
        return {"runtime": self.kind, "dtype": self.precision, **({"weights_from": source} if source else {})}

    @property
    def placement(self) -> str:
        """The devices that hold the weights, for records."""
        return str(self.device)

    def weight_bytes(self) -> dict[int, int]:
        """Return the size of the weights in bytes, keyed by address, so that shared weights are counted once."""
        found = {}
        for tensor in (*self.model.parameters(), *self.model.buffers()):
            storage = tensor.untyped_storage()
            found[storage.data_ptr()] = storage.nbytes()
        return found

    @override
    @inference
    def prefill(self, slot: int, token_ids: Sequence[int], *, all_logits: bool = False) -> PassResult:
        import torch

        logits: list[torch.Tensor] = []
        hidden: list[torch.Tensor] = []
        self.begin_prefill(slot, len(token_ids))
        for start in range(0, len(token_ids), self.prefill_chunk):
            tokens = np.asarray(token_ids[start : start + self.prefill_chunk], dtype=np.int64)
            fed = self.feed(slot, tokens, all_logits)
            logits += fed.logits
            hidden += fed.hidden
        return PassResult([torch.cat(logits)] if logits else (), [torch.cat(hidden)] if hidden else ())

    def begin_prefill(self, slot: int, tokens: int) -> None:
        """Make room for a number of tokens, which :meth:`feed` then feeds to the slot in chunks."""
        self.cache.reserve(0, slot + 1)
        self.cache.reserve(self.cache.lengths[slot] + tokens)

    @abstractmethod
    def feed(self, slot: int, tokens: NDArray[np.int64], all_logits: bool) -> PassResult:
        """Feed and commit ``[m]`` tokens of a prompt in one pass; the result has logits only if ``all_logits``."""

    @abstractmethod
    def grow(self, slots: Sequence[int], growths: Sequence[Growth]) -> PassResult:
        """Feed new rows of growing trees without committing anything; the logits are ``[m, V]`` per tree."""

    def draft_tree(
        self,
        slot: int,
        pending: NDArray[np.int64],
        shape: TreeShape,
        temperature: float,
        noise: torch.Tensor | None,
        kept: torch.Tensor | None = None,
    ) -> NDArray[np.int64] | None:
        """Draft a whole tree without returning to Python between its levels.

        Feed the pending tokens (the root last), then the shape's ``fed_nodes``, without committing anything. A node
        gets the candidate at its rank; candidates are ranked by logit or, with noise, by logit / temperature + noise.

        Args:
            shape: the tree's shape, with rows ordered by depth.
            noise: float32 ``[depth, V]`` for the positions after the root.
            kept: int64 ``[V]`` token id for each logit; None if it equals the logit's index.

        Returns:
            The ``[n + 1]`` tokens of the tree, or None if this runtime drafts pass by pass.
        """
        return None

    def plain_logits(self, token_ids: Sequence[int]) -> torch.Tensor:
        """Return the ``[V]`` logits after these tokens, computed without a tree. Slot 0 may hold them afterwards."""
        self.cache.truncate(0, 0)
        (logits,) = self.prefill(0, token_ids, all_logits=True).logits
        return logits[-1]

    def check_tree(self, name: str, allowed: float, remedy: str) -> None:
        """Compare a small tree pass with plain passes. Raises :attr:`refusal`, suggesting ``remedy``, if a pass fails
        or the logits differ by more than ``allowed`` times their spread.
        """
        try:
            error = tree_error(self)
        except Exception as failure:  # modelling code and captures raise many kinds of errors
            why = type_and_line(failure)
            raise self.refusal(f"{name} cannot run {self.kind} passes ({why}): {remedy}") from failure
        self.passes = 0
        if isnan(error):  # the tree is not the cause, so another mode would not help
            dynamic = environ.get("OMP_DYNAMIC", "").lower() in ("true", "1")
            cause = "unset OMP_DYNAMIC" if dynamic else "check its weights, or set another dtype"
            raise self.refusal(f"{name} gives NaN logits in a pass without a tree: {cause}")
        if not error <= allowed:
            raise self.refusal(
                f"{name} failed the self-check of its {self.kind} pass (the logits of a tree differ from plain ones by "
                f"{error:.2g} of their spread): {remedy}"
            )

    def __reduce__(self) -> tuple[Any, ...]:
        """Support copying: a copy shares the weights and has an empty cache."""
        make: Callable[..., Runtime] = type(self)
        return partial(make, self_check=False), (self.model,)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        make, arguments = self.__reduce__()
        return make(*arguments)

    @override
    def synchronize(self) -> None:
        if self.device.type == "cuda":
            import torch

            torch.cuda.synchronize(self.device)

    @override
    def request_tokens(self, slot: int, request: TokenRequest | None) -> None:
        self.requests.pop(slot, None)
        if request is not None and self.computes_tokens(request.verifier):
            self.requests[slot] = request

    def computes_tokens(self, verifier: TokenRule) -> bool:
        """Return whether passes can compute a verifier's tokens."""
        return False

    @override
    def length(self, slot: int) -> int:
        return self.cache.lengths[slot]

    @override
    def commit(self, slot: int, rows: Sequence[int]) -> None:
        pass_rows = self._pass_rows.pop(slot, None)
        # in every order a node comes after its ancestors, so these rows are ascending too
        self.cache.commit(slot, rows if pass_rows is None else pass_rows[list(rows)].tolist())

    def whole_growth(self, slot: int, tree: TokenTree) -> Growth:
        """Return the rows of a tree pass in :attr:`row_order`. The next commit still takes rows of the tree."""
        shape = tree.shape
        if self.row_order == "built":
            return Growth(tree.tokens, shape.depths, shape.ancestor_mask)
        order = np.array(shape.depth_first if self.row_order == "depth-first" else shape.heavy_path)
        pass_rows = self._pass_rows[slot] = np.argsort(order)
        mask = shape.ancestor_mask[order][:, order]
        return Growth(tree.tokens[order], shape.depths[order], mask, pass_rows)

    @contextmanager
    def exclusively(self) -> Iterator[None]:
        """Lock the model for this thread; raises ``ValueError`` if the thread is already decoding with it."""
        if self._user == get_ident():
            raise ValueError(
                "the model is decoding already: in an observer, decode with a Decoder of another LanguageModel"
            )
        with self._lock:
            self._user = get_ident()
            try:
                yield
            finally:
                self._user = None

    def check_request(self, prompt: Sequence[int], max_new_tokens: int) -> None:
        """Raise ``ValueError`` if a prompt is empty, too long or has unknown tokens, or if ``max_new_tokens < 1``."""
        if not prompt:
            raise ValueError("the prompt is empty: at least one token (such as BOS) is needed")
        if max_new_tokens < 1:
            raise ValueError(f"max_new_tokens must be an integer >= 1, got {max_new_tokens}")
        limit = self.context_limit
        if len(prompt) >= limit:
            raise ValueError(
                f"the prompt has {len(prompt)} tokens and the model's context holds {limit}: "
                "shorten it to leave room for at least one new token"
            )
        if not 0 <= min(prompt) <= max(prompt) < self.vocab_size:
            raise ValueError(
                f"the prompt holds token id {max(prompt) if min(prompt) >= 0 else min(prompt)}; "
                f"the target's vocabulary has ids 0 to {self.vocab_size - 1}"
            )


@inference
def tree_error(runtime: Runtime) -> float:
    """Return the median of ``|tree logits - plain logits| / |plain logits - mean|`` over three rows of a small tree.

    It is NaN if the plain logits have a NaN.
    """
    import torch

    siblings = 14  # a wide tree, in which positions wrongly derived from cache rows are far off
    shape = TreeShape([-1, *[0] * siblings, 1], [-1, *range(siblings), 0])
    prefix = [token % runtime.vocab_size for token in (5, 6, 7)]
    tree = TokenTree(shape, np.arange(1, siblings + 3, dtype=np.int64) % runtime.vocab_size)
    runtime.prefill(0, prefix)
    answers = runtime.tree_pass([0], [tree]).logits[0].double()
    errors = []
    for row in (1, siblings, siblings + 1):
        branch = [int(tree.tokens[index]) for index in (0, *shape.path(row))]
        expected = runtime.plain_logits(prefix + branch).double()
        if expected.isnan().any():
            return nan
        possible = expected > torch.finfo(runtime.dtype).min / 2
        expected, answer = expected[possible], answers[row, possible]
        error = (answer - expected).norm()
        spread = (expected - expected.mean()).norm()
        same = bool(error <= 1e-6 * (1 + expected.norm()))  # constant logits have no spread to divide by
        errors.append(0.0 if same else float(error / spread) if error.isfinite() else inf)
    return sorted(errors)[1]  # in a mixture of experts, rounding may send one row's token to other experts


def check_model(model: object) -> None:
    """Raise ``ValueError`` if an object is not a Hugging Face model but, for example, a name or a pair."""
    if not hasattr(getattr(model, "config", None), "get_text_config"):
        advice = "load one with specexp.load_pair or AutoModelForCausalLM.from_pretrained"
        if hasattr(model, "target"):
            advice = "pass its attribute target"
        raise ValueError(f"a model was expected, got a {type(model).__name__}, {shown(model)}: {advice}")
