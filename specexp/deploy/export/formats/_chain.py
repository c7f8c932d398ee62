"""Engines that draft chains: what they can be told of an artifact, which may hold a tree."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from typing_extensions import override

from specexp.artifacts import ArtifactError
from specexp.artifacts.validated import validated
from specexp.deploy.export.export_format import ExportedFile, ExportFormat, Tuned
from specexp.engines.settings.settings import Settings

CHAINS = ("static-tree", "composition", "schedule")
"""Kinds of artifacts with a chain in them."""


@dataclass(frozen=True)
class ChainDraft:
    """The chain of best candidates in an artifact's tree.

    Attributes:
        length: drafted tokens, at least one.
        drafter: class name of the recorded drafter; empty where none is.
        arguments: the drafter's.
        kept: what is kept, in words.
        lost: what no chain says, in words.
    """

    length: int
    drafter: str
    arguments: Mapping[str, Any]
    kept: str
    lost: list[str]

    def told(self, name: str, *more: str) -> str:
        """One sentence on what a format keeps and drops; empty where nothing is dropped.

        Args:
            name: the format.
            more: what it drops beside.
        """
        lost = [*self.lost, *more]
        return f"{name}: kept {self.kept}; dropped {' and '.join(lost)}" if lost else ""


def chain_of(artifact: Tuned, name: str) -> ChainDraft:
    """The chain of an artifact of one of :data:`CHAINS`.

    Args:
        artifact: what is exported.
        name: the format, for the sentence.

    Raises:
        ArtifactError: its trees differ from step to step.
    """
    paths = artifact.builder.rank_paths
    if paths is None:
        raise ArtifactError(
            f"{artifact.folder}: the trees of {type(artifact.builder).__name__} differ from step to step, so that "
            f"there is no fixed one for {name}"
        )
    length = max((len(path) for path in paths if not any(path)), default=0)
    controller = artifact.controller
    plain = controller is None or controller.same_plan
    lost = [] if plain else [f"the {type(controller).__name__} controller"]
    if artifact.execution_spec is not None:
        lost.append(f"the strategy {_described(artifact.execution_spec)}")
    if rest := len(paths) - length:
        lost.append(f"{rest} of {len(paths)} nodes")
    kept = f"the tree's best chain of {length}" if length else "one drafted token, for the tree has no chain"
    drafter = artifact.recorded.get("drafter", {})
    name_of_drafter = drafter.get("class_path", "").rpartition(".")[2]
    return ChainDraft(max(length, 1), name_of_drafter, drafter.get("init_args", {}), kept, lost)


class ChainFormat(ExportFormat):
    """An engine's own settings: of a chain by a draft model or prompt lookup, or of a study of that very engine."""

    kinds = (*CHAINS, "engine-settings")
    options: ClassVar[tuple[str, ...]] = ("draft",)
    settings: ClassVar[type[Settings]]
    names_draft: ClassVar[bool] = True
    """Whether the file names the draft model."""

    def drafted(self, chain: ChainDraft, draft: str) -> Settings:
        """Settings of a draft model's chain."""
        raise NotImplementedError

    def looked_up(self, chain: ChainDraft, shortest: int, longest: int) -> tuple[Settings, tuple[str, ...]]:
        """Settings of prompt lookup, and what differs from ours, in words."""
        raise NotImplementedError

    def suffixed(self, chain: ChainDraft) -> tuple[Settings, tuple[str, ...]] | None:
        """Settings of suffix decoding, and what differs from ours, in words; None if the engine has none."""
        return None

    @override
    def export(self, artifact: Tuned, **options: str) -> ExportedFile:
        name, draft = self.settings.engine, options.get("draft")
        if artifact.kind == "engine-settings":
            return ExportedFile(measured_settings(artifact, self.settings).deployed())
        chain = chain_of(artifact, name)
        lost: tuple[str, ...]
        if chain.drafter in ("PromptLookup", "SuffixAutomaton") and draft is not None:
            raise ArtifactError(f"--draft is {draft!r}, and {artifact.folder} looks up prompts: leave it out")
        if chain.drafter == "PromptLookup":
            shortest, longest = chain.arguments.get("min_ngram", 1), chain.arguments.get("max_ngram", 3)
            made, lost = self.looked_up(chain, shortest, longest)
        elif chain.drafter == "SuffixAutomaton" and (suffixed := self.suffixed(chain)) is not None:
            made, lost = suffixed
        elif chain.drafter in ("DraftModel", ""):
            if draft is None and self.names_draft:
                raise ArtifactError(
                    f"{artifact.folder}: {name} is told which draft model it loads: give --draft, its name or "
                    "path there"
                )
            made = self.drafted(chain, draft or "")
            lost = _sampling_lost(chain)
        else:
            raise ArtifactError(
                f"{artifact.folder}: {name} has nothing like the {chain.drafter} drafter; it drafts with a draft "
                "model or looks up prompts, so tune DraftModel or PromptLookup, or deploy with specexp.serve"
            )
        return ExportedFile(made.deployed(), chain.told(name, *lost))


def measured_settings(artifact: Any, settings: type[Settings]) -> Settings:
    """Settings that a study of the engine itself left, held against its rules.

    Raises:
        ArtifactError: they are another engine's, or break a rule.
    """
    if artifact.engine != settings.engine:
        raise ArtifactError(
            f"{artifact.folder}: the settings are {artifact.engine}'s, and --to is {settings.engine}: what one engine "
            "measured says nothing of another; export to the one that was measured"
        )
    found: Settings = validated(settings, artifact.settings, str(artifact.folder))
    return found


def suffixes_lost(chain: ChainDraft, *names: str) -> tuple[str, ...]:
    """Those of a suffix drafter's arguments that were set and that an engine cannot be given."""
    given = chain.arguments
    return tuple(
        "the corpus" if name == "corpus" else f"{name}={given[name]}"
        for name in names
        if given.get(name) not in (None, 1)
    )


def _sampling_lost(chain: ChainDraft) -> tuple[str, ...]:
    """Settings of the draft's distribution, which engines take from the request."""
    given = [
        f"{name}={value}"
        for name in ("temperature", "top_k", "top_p", "coupled")
        if (value := chain.arguments.get(name)) not in (None, False)
    ]
    return (f"the draft's {', '.join(given)}",) if given else ()


def _described(schedule: Mapping[str, Any]) -> str:
    """A strategy with its arguments, e.g. ``Scheduled(n=3, verify_batch=1)``; what is null is left out."""
    given = {name: value for name, value in schedule["init_args"].items() if value is not None}
    shown = (
        f"{name}={value['class_path'] if isinstance(value, Mapping) else value}"
        for name, value in given.items()
    )
    return f"{schedule['class_path']}({', '.join(shown)})"
