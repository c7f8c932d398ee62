"""Kinds that describe how to decode: parts, a tree, thresholds, a strategy, plain decoding, or an engine's settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, get_args

from pydantic import with_config
from typing_extensions import override

from specexp.artifacts.artifact import Artifact
from specexp.artifacts.files import rank_paths
from specexp.artifacts.parts import PARTS, PartSpec, Recorded, Spec, WithDrafter, init_args_of
from specexp.artifacts.validation import ArtifactError, check_fields
from specexp.base.checked import Section
from specexp.core.dialogue import Selection

TREE, THRESHOLDS, SCHEDULE = "tree.json", "thresholds.json", "schedule.json"
VERDICT, SETTINGS = "verdict.json", "settings.json"
CONFIRMED = "confirmed.json"
"""File in a study's folder with its :class:`ConfirmedSetting` objects, fastest first."""
_SERIAL = "specexp.scheduling.strategies.Serial"
_ONE_SOURCE = "the kind's own payload defines it"


@dataclass(frozen=True)
class ConfirmedSetting:
    """A setting that a study confirmed: its parts, as in ``parts.json``, and a sentence on its speed."""

    label: str
    parts: dict[str, Any]
    sentence: str


def fixed_tree(attributes: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a ``StaticTree`` specification for a study's candidate, or None if its shape is not fixed."""
    paths = attributes.get("rank_paths")
    candidates = attributes.get("candidates")
    if paths is None or candidates not in get_args(Selection):
        return None
    return {"class_path": "StaticTree", "init_args": {"rank_paths": paths, "candidates": candidates}}


@with_config(extra="forbid")
class _Composed(WithDrafter):
    builder: PartSpec  # type: ignore[misc]


class CompositionArtifact(Artifact):
    """Only ``parts.json``: ``class_path`` and ``init_args`` of the drafter, builder, verifier and controller.

    Used by studies that compare methods, where the winner may be a tree, a threshold or a chain. A fixed tree is
    recorded as rank paths, whichever builder produced it. ``artifact.decoder(target, draft)`` sets the draft model.

    Example:
        >>> decoder = load_artifact("artifacts/fastest").decoder(pair.target, pair.draft)  # doctest: +SKIP
    """

    kind = "composition"
    required: ClassVar[Mapping[str, Any]] = {PARTS: _Composed}
    holds_state = True

    @classmethod
    @override
    def payloads_of(cls, parts: Mapping[str, Any], attributes: Mapping[str, Any]) -> dict[str, Any] | None:
        if parts.get("drafter") is None:
            return None
        return {PARTS: {**parts, "builder": fixed_tree(attributes) or parts["builder"]}}


class StaticTreeArtifact(Artifact):
    """``tree.json``: rank paths as Medusa and EAGLE list them, e.g. ``[[0], [1], [0, 0]]``, without the root.

    The value is the list of rank paths, sorted by length, then rank. The builder is a ``StaticTree`` with these paths.
    """

    kind = "static-tree"
    required: ClassVar[Mapping[str, Any]] = {TREE: Any}
    holds_state = True
    made_by = "specexp.builders.static_tree.StaticTree"

    @classmethod
    @override
    def payloads_of(cls, parts: Mapping[str, Any], attributes: Mapping[str, Any]) -> dict[str, Any] | None:
        # any builder with a fixed shape that does not draw with replacement, where a path would not identify a node
        tree = fixed_tree(attributes)
        if tree is None:
            return None
        return {TREE: tree["init_args"]["rank_paths"], PARTS: {**parts, "builder": tree}}

    @override
    def read(self, payloads: Mapping[str, Any]) -> None:
        self.value = self.rank_paths = rank_paths(payloads[TREE], self.where(TREE))
        recorded = self.recorded_init_args("builder") or {}
        if "builder" in self.recorded and recorded.get("rank_paths") not in (payloads[TREE], self.rank_paths):
            raise ArtifactError(  # readers of either file must get the same tree
                f"{self.where(PARTS)}: builder is not the tree of {TREE}; both files must hold the same one"
            )

    @override
    def specs(self) -> dict[str, Spec]:
        # both files have the paths; only the recorded builder has the value of `candidates`
        recorded = (self.recorded.get("builder") or {}).get("init_args") or {}
        chosen = {"candidates": recorded["candidates"]} if "candidates" in recorded else {}
        tree = {"class_path": self.made_by, "init_args": {"rank_paths": self.rank_paths, **chosen}}
        return {**self.recorded, "builder": tree}


class ThresholdsArtifact(Artifact):
    """``thresholds.json``: arguments of :class:`~specexp.builders.DySpecThreshold` (``threshold``, ``max_nodes``,
    ``max_depth``, ``candidates``, ``acceptance_power``) and, under ``draft``, of
    :class:`~specexp.drafters.DraftModel` (``temperature``, ``top_k``, ``top_p``, ``coupled``). All are required.

    The draft model is chosen at deployment: ``artifact.decoder(target, draft)``. ``parts.json`` records the
    verifier and, if the threshold changes at run time, the controller.
    """

    kind = "thresholds"
    required: ClassVar[Mapping[str, Any]] = {THRESHOLDS: Any}
    holds_state = True
    _BUILDER = "specexp.builders.dyspec.DySpecThreshold"
    _DRAFTER = "specexp.drafters.draft_model.DraftModel"
    _TREE = ("threshold", "max_nodes", "max_depth", "candidates", "acceptance_power")
    _DRAFT = ("temperature", "top_k", "top_p", "coupled")

    @classmethod
    @override
    def payloads_of(cls, parts: Mapping[str, Any], attributes: Mapping[str, Any]) -> dict[str, Any] | None:
        tree = init_args_of(parts.get("builder"), cls._BUILDER)
        draft = init_args_of(parts.get("drafter"), cls._DRAFTER)
        if tree is None or draft is None:
            return None
        thresholds = {name: tree[name] for name in cls._TREE}
        thresholds["draft"] = {name: draft[name] for name in cls._DRAFT}
        return {THRESHOLDS: thresholds, PARTS: {name: parts[name] for name in ("verifier", "controller")}}

    @override
    def read(self, payloads: Mapping[str, Any]) -> None:
        self.thresholds: dict[str, Any] = payloads[THRESHOLDS]
        check_fields(self.thresholds, (*self._TREE, "draft"), self.where(THRESHOLDS))
        check_fields(self.thresholds["draft"], self._DRAFT, self.where(THRESHOLDS), "draft")
        self.refuse_recorded(("builder", "drafter"), _ONE_SOURCE)

    @override
    def specs(self) -> dict[str, Spec]:
        builder = {"class_path": self._BUILDER, "init_args": {name: self.thresholds[name] for name in self._TREE}}
        drafter = {"class_path": self._DRAFTER, "init_args": self.thresholds["draft"]}
        return {**self.recorded, "builder": builder, "drafter": drafter}


class ScheduleArtifact(Artifact):
    """``schedule.json``: an execution strategy as ``class_path`` and ``init_args``, e.g. ``{"class_path": "Scheduled",
    "init_args": {"n": 3}}``.

    ``parts.json`` holds the parts that decode each sequence; the draft model is chosen at deployment. A schedule runs
    in specexp's own loop, including inside Hugging Face's ``generate``. Engines that batch requests themselves accept
    no external strategy, so only the drafting settings of a schedule can be exported to them.

    Example:
        >>> schedule = load_artifact("artifacts/schedule/best")  # doctest: +SKIP
        >>> with schedule.open(pair.target, pair.draft) as executor:  # doctest: +SKIP
        ...     run = executor.run([Job(prompt, sequence=number) for number in range(6)])
    """

    kind = "schedule"
    required: ClassVar[Mapping[str, Any]] = {SCHEDULE: PartSpec}
    holds_state = True

    @classmethod
    @override
    def payloads_of(cls, parts: Mapping[str, Any], attributes: Mapping[str, Any]) -> dict[str, Any] | None:
        execution = attributes.get("execution")
        if execution is None or init_args_of(execution, _SERIAL) is not None or parts.get("drafter") is None:
            return None
        return {SCHEDULE: dict(execution), PARTS: dict(parts)}

    @override
    def read(self, payloads: Mapping[str, Any]) -> None:
        self.schedule: dict[str, Any] = payloads[SCHEDULE]
        if init_args_of(self.schedule, _SERIAL) is not None:
            given = self.schedule["class_path"]
            raise ArtifactError(
                f"{self.where(SCHEDULE)}: class_path must be a strategy that drafts, such as Scheduled, got {given!r}"
            )

    @override
    def specs(self) -> dict[str, Spec]:
        return {**self.recorded, "execution": self.schedule}


class PlainVerdict(Section):
    """The reason for using plain decoding."""

    reason: str  # a sentence that gives the figures and their interval
    best_found: str  # version of the fastest composition found, e.g. ``v1``
    several_sequences: bool = False  # whether several sequences were decoded for each prompt


class PlainDecodingArtifact(Artifact):
    """``verdict.json``: the reason to use plain decoding. Studies exported it as ``best`` if nothing was faster, before
    ``best`` came to exist only for a faster setting.

    The decoder and ``custom_generate`` use plain decoding with the recorded verifier. If the study decoded several
    sequences, ``custom_generate`` accepts a batch of several rows.

    Example:
        >>> load_artifact("artifacts/tree_shape").verdict.reason  # doctest: +SKIP
        'chain of 2 is not told apart from plain decoding on these prompts: 0.89x [0.78, 1.02].'
    """

    kind = "plain-decoding"
    required: ClassVar[Mapping[str, Any]] = {VERDICT: PlainVerdict, PARTS: Recorded}
    plain = True
    purpose = "it means that speculation is not faster here, and best-tree next to it is the best candidate"

    @override
    def read(self, payloads: Mapping[str, Any]) -> None:
        self.verdict: PlainVerdict = payloads[VERDICT]
        self.refuse_recorded(self.recorded.keys() - {"verifier"}, "plain decoding has only a verifier")

    @override
    def specs(self) -> dict[str, Spec]:
        if not self.verdict.several_sequences:  # one row at a time, by the Decoder
            return self.recorded
        return {**self.recorded, "execution": {"class_path": _SERIAL, "init_args": {}}}


class _Settings(Section):
    engine: str
    version: str
    settings: dict[str, Any]


class EngineSettingsArtifact(Artifact):
    """``settings.json``: the ``engine``, the ``version`` measured, and its ``settings``, under the engine's own names.

    ``python -m specexp.export ARTIFACT --to ENGINE`` checks the settings against the engine's rules and writes the file
    that the engine's deployment loads. This kind has no decoder.
    """

    kind = "engine-settings"
    required: ClassVar[Mapping[str, Any]] = {SETTINGS: _Settings}
    optional = ()
    purpose = "settings of an engine are exported to that engine alone"

    @classmethod
    @override
    def payloads_of(cls, parts: Mapping[str, Any], attributes: Mapping[str, Any]) -> dict[str, Any] | None:
        found = attributes.get("engine")
        return None if found is None else {SETTINGS: dict(found)}

    @override
    def read(self, payloads: Mapping[str, Any]) -> None:
        content: _Settings = payloads[SETTINGS]
        self.engine = content.engine
        self.version = content.version
        self.settings = content.settings
