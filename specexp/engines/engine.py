"""Base classes for engines: other projects' decoding loops, which specexp starts, configures and measures."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Hashable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from specexp.base.checked import Checked

if TYPE_CHECKING:
    from specexp.models.pair import ModelPair


NOT_INSTALLED = "not installed"
"""The version of an engine that this machine lacks."""


class EngineError(ValueError):
    """An engine failed to start or to answer. The message is one sentence."""


@dataclass(frozen=True)
class EngineAnswer:
    """A greedy answer with its times and counts, defined as in :class:`~specexp.bench.record.PromptRecord`.

    Attributes:
        token_ids: the new tokens.
        finish_reason: ``eos``, ``length`` or ``context``.
        prefill_seconds: time until the first tokens arrive.
        decode_seconds: time from the first token to the last one.
        decode_tokens: number of tokens decoded in ``decode_seconds``, by the engine's own count if it has one.
        steps: number of target passes, or of received pieces if the engine does not count passes.
        drafted_nodes: number of drafted tokens; 0 if the engine does not report it.
        memory_bytes: memory used, after the answer, by the processes started for the engine; None if there are none.
        start_seconds: time from the start of these processes until they were healthy; None if there are none.
    """

    token_ids: list[int]
    finish_reason: str
    prefill_seconds: float
    decode_seconds: float
    decode_tokens: int
    steps: int
    accepted_drafts: int = 0
    drafted_nodes: int = 0
    memory_bytes: int | None = None
    start_seconds: float | None = None

    @property
    def bonus_tokens(self) -> int:
        """Number of new tokens that are not accepted drafts."""
        return len(self.token_ids) - self.accepted_drafts

    @property
    def draft_passes(self) -> int:
        """Always 0, because engines do not report draft passes."""
        return 0


class RunningEngine(ABC):
    """An engine that has been started."""

    @abstractmethod
    def answer(
        self, engine: ForeignEngine, token_ids: Sequence[int], max_new_tokens: int, eos: frozenset[int]
    ) -> EngineAnswer:
        """Continue a prompt greedily with the settings of ``engine``, which must have this engine's restart key.

        Raises:
            EngineError: the engine does not answer, or its answer is not valid.
        """

    def memory_bytes(self) -> int | None:
        """Return the memory of the processes started for the engine; None if there are none."""
        return None

    def close(self) -> None:  # noqa: B027 - most engines have no process to stop
        """Stop the engine's processes."""


class ForeignEngine(metaclass=Checked):
    """An engine and its speculation settings. To add an engine, define a subclass in a file in this folder.

    Attributes:
        exported_as: the export format of its settings, a value of ``specexp.export --to``.
        loads: numbers of concurrent requests, the measured one included, at which every prompt is answered.
        load: the current one of them.
        varied: attributes that may differ between a candidate of a study and its plain decoding.
        settings: its speculation settings; None without any.
    """

    exported_as: ClassVar[str]
    loads: Sequence[int] = (1,)
    load: int = 1
    varied: ClassVar[tuple[str, ...]] = ("drafts", "settings", "load", "start_seconds", "answer_seconds")
    settings: Any = None

    def under(self, load: int) -> Self:
        """Return the same engine, measured while it serves ``load`` concurrent requests."""
        other = copy(self)
        other.load = load
        return other

    @abstractmethod
    def plain(self) -> ForeignEngine:
        """Return the same engine without speculation."""

    def deployed_settings(self) -> dict[str, Any]:
        """Return the settings for a deployment, under the engine's own names."""
        return {} if self.settings is None else dict(self.settings.given())

    @property
    @abstractmethod
    def version(self) -> str:
        """The engine's version, which is available before the engine starts."""

    @property
    def files(self) -> Sequence[str]:
        """Files that the engine reads itself, in addition to the models of the pair."""
        return ()

    def lacks(self) -> str:
        """Return what is missing, such as ``needs FILE, which does not exist``; empty if nothing is known to be."""
        if self.version == NOT_INSTALLED:
            return 'is not installed here (pip install -e ".[engines]")'
        absent = next((file for file in self.files if not Path(file).exists()), None)
        return "" if absent is None else f"needs {absent}, which does not exist"

    def check(self, pair: ModelPair, longest: int) -> None:
        """Raise an EngineError if the engine cannot decode with this pair. Its weights need not be loaded.

        Args:
            longest: number of tokens of the longest prompt and its answer.
        """

    @property
    @abstractmethod
    def restart_key(self) -> Hashable:
        """The settings that only a restart can change. Objects with the same key share one running engine."""

    @abstractmethod
    def start(self, pair: ModelPair) -> RunningEngine:
        """Start the engine with these models.

        Raises:
            EngineError: the engine is not installed, does not start, or cannot run the models.
        """


def check_drafter(
    engine: ForeignEngine,
    drafts: str | None,
    given: Collection[str],
    allowed: Mapping[Any, Sequence[set[str]]],
) -> None:
    """Raise an EngineError unless the names in ``given`` are exactly one of the sets allowed for the drafter."""
    ways, found = allowed[drafts], ", ".join(given) or "no settings"
    if set(given) not in ways:
        takes = " or ".join(" and ".join(sorted(way)) or "no settings" for way in ways)
        name = type(engine).__name__
        raise EngineError(f"{name}: the settings for drafts={drafts} must be exactly {takes}, got {found}")
