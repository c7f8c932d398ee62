"""The contract of an engine: another project's loop, started and configured by us, which answers prompts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from specexp.core.checked import Checked

if TYPE_CHECKING:
    from specexp.models.pair import ModelPair


class EngineError(ValueError):
    """An engine does not start or does not answer; the message is one sentence."""


@dataclass(frozen=True)
class EngineAnswer:
    """A greedy answer with its times and counts, defined as in :class:`~specexp.bench.record.PromptRecord`.

    Attributes:
        token_ids: the new tokens.
        finish_reason: ``eos``, ``length`` or ``context``.
        prefill_seconds: time until the first tokens.
        decode_seconds: time from the first tokens to the last.
        first_tokens: number of tokens that came first, which are not part of the decode seconds.
        steps: target passes, or arrivals of tokens if the engine counts no passes.
        drafted_nodes: drafted tokens; 0 if the engine does not report them.
        memory_bytes: memory of the engine's own processes after the answer; None if it has none.
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
        """Continue a prompt greedily with the settings of ``engine``, which has the restart key of this one.

        Raises:
            EngineError: there is no answer, or an unexpected one.
        """

    def close(self) -> None:  # noqa: B027 - most have nothing to stop
        """Stop what was started."""


class ForeignEngine(metaclass=Checked):
    """An engine and how it speculates. A further one is one class in a file of this folder.

    Attributes:
        exported_as: the format of its settings, a value of ``specexp.export --to``.
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
        """The version, known before it is started."""

    @property
    @abstractmethod
    def restart_key(self) -> Hashable:
        """The settings that need a restart: two engines of the same key share a running one."""

    @abstractmethod
    def start(self, pair: ModelPair) -> RunningEngine:
        """Start it on these models.

        Raises:
            EngineError: it is not installed, does not start, or cannot run the models.
        """


def check_drafter(
    engine: ForeignEngine,
    drafts: str | None,
    given: Collection[str],
    allowed: Mapping[Any, Sequence[set[str]]],
) -> None:
    """Raise an EngineError unless the given settings are one of the allowed sets for a drafter."""
    ways, found = allowed[drafts], ", ".join(given) or "no settings"
    if set(given) not in ways:
        takes = " or ".join(" and ".join(sorted(way)) or "no settings" for way in ways)
        name = type(engine).__name__
        raise EngineError(f"{name} drafts by {drafts}, with {found}; it takes exactly {takes}")
