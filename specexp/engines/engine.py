"""The contract of an engine: another project's loop, started and configured by us, which answers prompts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from specexp.core.checked import Checked

if TYPE_CHECKING:
    from specexp.models.pair import ModelPair


class EngineError(ValueError):
    """An engine does not start or does not answer properly; one sentence."""


@dataclass(frozen=True)
class EngineAnswer:
    """A greedy answer with its times and counts, defined as in :class:`~specexp.bench.record.PromptRecord`.

    Attributes:
        token_ids: The new tokens.
        finish_reason: ``eos``, ``length`` or ``context``.
        prefill_seconds: Until the first of them came.
        decode_seconds: From there to the last.
        first_tokens: How many came first, which the decode seconds did not pay for.
        steps: Times that tokens came, where the engine counts no passes.
        accepted_drafts: Drafted tokens that became output.
        drafted_nodes: Drafted tokens; 0 where the engine does not tell.
        memory_bytes: What the engine's own processes held behind it; None where it has none of its own.
    """

    token_ids: list[int]
    finish_reason: str
    prefill_seconds: float
    decode_seconds: float
    first_tokens: int
    steps: int
    accepted_drafts: int = 0
    drafted_nodes: int = 0
    memory_bytes: int | None = None

    @property
    def bonus_tokens(self) -> int:
        """Number of tokens that were not drafted."""
        return len(self.token_ids) - self.accepted_drafts

    @property
    def draft_passes(self) -> int:
        """Number of draft passes, which engines do not report."""
        return 0


class RunningEngine(ABC):
    """An engine at work."""

    @abstractmethod
    def answer(
        self, engine: ForeignEngine, token_ids: Sequence[int], max_new_tokens: int, eos: frozenset[int]
    ) -> EngineAnswer:
        """Continue a prompt greedily, speculating as an engine with the :attr:`ForeignEngine.restart_key` of this one.

        Raises:
            EngineError: It does not answer, or not as it should.
        """

    def close(self) -> None:
        """Stop what was started."""
        return None


class ForeignEngine(metaclass=Checked):
    """An engine and how it speculates. A further one is one class in a file of this folder.

    Attributes:
        exported_as: What ``specexp.export --to`` calls the form of its settings.
    """

    exported_as: ClassVar[str]

    @abstractmethod
    def plain(self) -> ForeignEngine:
        """Return the same engine without speculation."""

    @abstractmethod
    def deployed_settings(self) -> dict[str, Any]:
        """Return the settings of its deployment, by the engine's own names."""

    @property
    @abstractmethod
    def version(self) -> str:
        """Its version, known before it is started."""

    @property
    @abstractmethod
    def restart_key(self) -> Hashable:
        """The settings that need a restart: two engines of the same key share a running one."""

    @abstractmethod
    def start(self, pair: ModelPair) -> RunningEngine:
        """Start it on these models.

        Raises:
            EngineError: It is not installed, does not start, or cannot run the models.
        """
