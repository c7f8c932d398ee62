"""What runs a model: slots of committed tokens, and passes over them. The loop and the drafters know no more of it.

:class:`~specexp.core.language_model.LanguageModel` runs a Hugging Face model as it is; a compiled one, or one of
another library, is another :class:`Runtime`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from sys import maxsize
from threading import Lock, get_ident
from typing import TYPE_CHECKING, Any, ClassVar, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from specexp.core.context import Context
from specexp.core.messages import shown
from specexp.core.tree import TokenTree

if TYPE_CHECKING:
    import torch


P = ParamSpec("P")
R = TypeVar("R")


def inference(method: Callable[P, R]) -> Callable[P, R]:
    """Run it in ``torch.inference_mode``, which need not be entered again in the middle of decoding.

    Storage may have been made in a pass, and can then be written nowhere else.
    """

    @wraps(method)
    def within(*args: P.args, **kwargs: P.kwargs) -> R:
        import torch

        if torch.is_inference_mode_enabled():
            return method(*args, **kwargs)
        with torch.inference_mode():
            return method(*args, **kwargs)

    return within


class Slots(ABC):
    """The committed tokens of several sequences, a slot each, and the rows of passes behind them.

    Attributes:
        lengths: committed tokens of each slot.
    """

    lengths: list[int]

    @abstractmethod
    def reserve(self, capacity: int, slots: int = 1) -> None:
        """Make room for at least ``capacity`` rows in at least ``slots`` slots, keeping what is committed."""

    @abstractmethod
    def commit(self, slot: int, rows: Sequence[int]) -> None:
        """As :meth:`Target.commit`."""

    @abstractmethod
    def truncate(self, slot: int, length: int) -> None:
        """Forget everything of a slot beyond its first ``length`` tokens (at most what it holds)."""

    @abstractmethod
    def fork(self, source: int, target: int, length: int) -> None:
        """Copy a slot's first ``length`` committed tokens to another slot, so that samples of one prompt share one
        prefill.
        """

    @abstractmethod
    def nbytes(self) -> int:
        """Bytes of the storage."""


@dataclass(frozen=True, slots=True)
class Growth:
    """Further rows of a tree that grows pass by pass, behind ``u`` uncommitted rows of it.

    Attributes:
        tokens: ``[m]`` of the new rows.
        depths: ``[m]`` their distance from the last committed token, less one.
        visible: ``[m, u + m]`` true where a new row may attend to an uncommitted one, itself included.
    """

    tokens: NDArray[np.int64]
    depths: NDArray[np.int64]
    visible: NDArray[np.bool_]


class Target(ABC):
    """What the loop needs of a target: a model, or a recording of one.

    Attributes:
        context_limit: positions it takes at most.
        vocab_size: V; without bound where no model is run.
        keeps_hidden: whether hidden states are kept, because a drafter reads them.
        hidden: ``[rows, d]`` for every tree of the last pass, or of the last prefill alone, what the output layer read
            in every row; empty where they are not kept, or nothing was fed.
    """

    context_limit: int
    vocab_size: int = 2**64
    keeps_hidden: bool = False
    hidden: Sequence[torch.Tensor] = ()

    @abstractmethod
    def length(self, slot: int) -> int:
        """Committed tokens of a slot."""

    @abstractmethod
    def prefill(
        self, slot: int, token_ids: Sequence[int], *, all_logits: bool = False
    ) -> torch.Tensor | None:
        """Feed tokens behind what the slot holds and commit them.

        Args:
            token_ids: ``[p]`` token ids; may be empty.
            all_logits: return the logits of every fed position (the vocabulary projection of a long prompt is
                expensive, so ask only if a drafter learns from it).

        Returns:
            ``[p, V]`` logits, or None when not asked for or nothing was fed.
        """

    @abstractmethod
    def tree_pass(self, slots: Sequence[int], trees: Sequence[TokenTree]) -> list[torch.Tensor]:
        """Verify one tree a slot in a single pass; nothing is committed.

        Args:
            trees: a tree for each; sizes may differ.

        Returns:
            For each tree ``[n + 1, V]`` logits: row i is the target's answer after row i.
        """

    @abstractmethod
    def commit(self, slot: int, rows: Sequence[int]) -> None:
        """Keep these rows of a pass of the slot, in this order, and forget its others.

        Args:
            rows: increasing row numbers of the last pass, or of all passes of a growing tree, e.g. ``[0, 2, 5]`` for
                the root and two accepted nodes; at least one.
        """

    def keep_hidden(self, wanted: bool) -> None:
        """Keep the hidden states of every pass from now on, or do not.

        Raises:
            ValueError: it has none to give.
        """
        if wanted:
            raise ValueError(
                f"{type(self).__name__} gives no hidden states, which the drafter reads: run the target by its own "
                "code or compiled, or draft with another drafter"
            )

    @abstractmethod
    def synchronize(self) -> None:
        """Wait for the device, so that a clock read next is honest."""


class CannotRunError(ValueError):
    """A runtime cannot run this model, or not on this machine; one sentence."""


class Runtime(Target):
    """A model at work: target of a loop, or draft model.

    A class in :mod:`specexp.models` with a :attr:`mode_rank` is a mode of ``pair.mode``, named by its :attr:`kind`.

    Attributes:
        kind: name of the runtime in artifacts and of its mode, e.g. ``compiled``.
        mode_rank: the mode ``auto`` tries the modes of Hugging Face models from the highest rank down to 0; one below
            0 runs only by its name. None: this is no such mode.
        takes_device_map: whether a model spread over devices can be run.
        model: what it runs, as its library knows it.
        vocab_size: V.
        cache: the sequences it holds.
        device: where the logits are.
        dtype: type of the logits.
        max_leaves: leaves that the trees of a pass have at most, together.
        passes: forward passes run since construction, prefill included.
        independent_rows: whether the logits of a row hang on no other row of its pass, bit by bit, so that it does not
            matter who else is answered by it.
        conversation: whose tokens slot 0 holds, for decoders that share the model; None if nobody goes on with them.
    """

    kind: ClassVar[str]
    mode_rank: ClassVar[int | None] = None
    takes_device_map: ClassVar[bool] = False
    model: Any
    vocab_size: int
    cache: Slots
    device: torch.device
    dtype: torch.dtype
    max_leaves: int = maxsize
    independent_rows: bool = False

    def __init__(self) -> None:
        self.passes = 0
        self.conversation: Context | None = None
        self._lock = Lock()
        self._user: int | None = None  # the thread that decodes

    @classmethod
    def run(cls, model: Any) -> Runtime:
        """Run a Hugging Face model, with an empty cache of its own.

        Raises:
            CannotRunError: it cannot be run so here.
        """
        raise CannotRunError(f"{cls.__name__} is no mode of Hugging Face models")

    @classmethod
    def check_mode(cls, models: Iterable[Any], device: str) -> None:
        """Raise ``ValueError`` for models that cannot be run so on a device; their weights are not read."""

    @property
    def precision(self) -> str:
        """The type whose rounding its logits have, e.g. ``bfloat16``: of weights, keys and values."""
        return str(self.dtype).removeprefix("torch.")

    def provenance(self) -> dict[str, str]:
        """Return the ``runtime`` and ``dtype`` that an artifact records of a measurement."""
        return {"runtime": self.kind, "dtype": self.precision}

    @property
    def placement(self) -> str:
        """Where its weights lie, for records."""
        return str(self.device)

    def weight_bytes(self) -> dict[int, int]:
        """Bytes of its weights by where they lie, so that what several runtimes share is counted once."""
        found = {}
        for tensor in (*self.model.parameters(), *self.model.buffers()):
            storage = tensor.untyped_storage()
            found[storage.data_ptr()] = storage.nbytes()
        return found

    @abstractmethod
    def grow(self, slots: Sequence[int], growths: Sequence[Growth]) -> list[torch.Tensor]:
        """Feed more rows of trees that grow pass by pass; nothing is committed, all rows stay until then.

        Returns:
            For each ``[m, V]`` logits after its new rows.
        """

    @override
    def length(self, slot: int) -> int:
        return self.cache.lengths[slot]

    @override
    def commit(self, slot: int, rows: Sequence[int]) -> None:
        self.cache.commit(slot, rows)

    @contextmanager
    def exclusively(self) -> Iterator[None]:
        """Keep other threads off the cache while one decodes with it; they wait.

        Raises:
            ValueError: the thread is decoding with this model already.
        """
        if self._user == get_ident():
            raise ValueError(
                "the model is decoding already, and what it generates would be overwritten: give an observer that "
                "decodes a Decoder around another LanguageModel"
            )
        with self._lock:
            self._user = get_ident()
            try:
                yield
            finally:
                self._user = None

    def check_request(self, prompt: Sequence[int], max_new_tokens: int) -> None:
        """Refuse what cannot be decoded.

        Raises:
            ValueError: the prompt is empty, does not fit or holds an unknown token, or no token is asked for.
        """
        if not prompt:
            raise ValueError("the prompt is empty: at least one token (such as BOS) is needed")
        whole = isinstance(max_new_tokens, (int, np.integer)) and not isinstance(max_new_tokens, bool)
        if not whole or max_new_tokens < 1:
            raise ValueError(f"max_new_tokens was {max_new_tokens!r}; a whole number from 1 is needed")
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


def check_model(model: object) -> None:
    """Raise ``ValueError`` if an object is not a Hugging Face model, such as a name or a pair."""
    if not hasattr(getattr(model, "config", None), "get_text_config"):
        raise ValueError(
            f"a model was expected and {shown(model)} is a {type(model).__name__}: load one with specexp.load_pair "
            "or AutoModelForCausalLM.from_pretrained"
        )
