"""The base class of all kinds of artifacts: provenance, metrics, fingerprint, and payloads as plain values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from typing_extensions import override

from specexp.artifacts.fingerprint import Fingerprint, fingerprint, first_difference
from specexp.artifacts.learned_state import STATE, STATE_FILES, State, state_in
from specexp.artifacts.manifest import Manifest
from specexp.artifacts.parts import PARTS, Spec, checked_specs, init_args_of
from specexp.artifacts.validation import ArtifactError, check_fields, validated

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


class Artifact:
    """The result of a study, read from its folder. A new kind is one class in a file of ``specexp/artifacts/kinds``.

    Subclasses name their payloads and :meth:`read` them into plain values. They check only what reading needs: parts
    check their arguments when they are made, and :func:`specexp.load_artifact` makes all of them.

    Args:
        manifest: the checked ``artifact.json``.
        payloads: content by file name: JSON values, or arrays by name for safetensors.
        folder: where it lies.

    Raises:
        ArtifactError: a payload is not what the kind promises.

    Attributes:
        kind: e.g. ``static-tree``.
        required: payload files that must be there.
        optional: payload files that may be there.
        made_from: payload file that a part is made from, by family; ``parts.json`` where none is named.
        purpose: what the kind is for if no export format can express it; else empty.
        learned: family of the part whose learned state it holds; None for kinds without such a state.
        made_by: dotted path of that part's class; empty if there is none.
        holds_state: whether ``state.json`` may record what any part has learned, see :mod:`.learned_state`.
        plain: whether it means plain decoding, without drafter and builder.
        value: the value of an argument that refers to it, see :class:`~specexp.core.checked.Reference`; None if no
            argument takes this kind.
        recorded: the parts of ``parts.json`` by family.
        state: learned state of drafter and controller by family; empty if they start from nothing.
        state_bytes: size of that state in bytes.
    """

    kind: ClassVar[str]
    required: ClassVar[tuple[str, ...]]
    optional: ClassVar[tuple[str, ...]] = (PARTS,)
    made_from: ClassVar[Mapping[str, str]] = {}
    purpose: ClassVar[str] = ""
    learned: ClassVar[Literal["drafter", "controller"] | None] = None
    made_by: ClassVar[str] = ""
    holds_state: ClassVar[bool] = False
    plain: ClassVar[bool] = False
    value: Any = None

    def __init__(self, manifest: Manifest, payloads: Mapping[str, Any], folder: Path) -> None:
        self.folder = folder
        self.name = manifest.name
        self.provenance = manifest.provenance
        self.fingerprint: Fingerprint = manifest.fingerprint
        self.recorded: dict[str, Spec] = {}
        if PARTS in payloads:
            self.recorded = checked_specs(payloads[PARTS], self.where(PARTS))
        self.state: dict[str, State] = state_in(payloads, self.where(STATE))
        self.state_bytes: int = sum(
            manifest.payloads[file]["bytes"] for file in STATE_FILES if file in manifest.payloads
        )
        self.read(payloads)

    @classmethod
    def files(cls) -> tuple[str, ...]:
        """Names of all payloads that it may have."""
        return (*cls.required, *cls.optional, *(STATE_FILES if cls.holds_state else ()))

    @classmethod
    def payloads_of(cls, parts: Mapping[str, Any], attributes: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return what a study writes for a candidate, or None if the candidate is of another kind.

        Args:
            parts: ``class_path`` and ``init_args`` of its drafter, builder, verifier and controller, defaults
                filled in.
            attributes: see :class:`~specexp.sweep.trials.Candidate`.
        """
        return None

    @classmethod
    def left_by_studies(cls) -> bool:
        """Whether the kind overrides :meth:`payloads_of`."""
        return cls.payloads_of.__func__ is not Artifact.payloads_of.__func__  # type: ignore[attr-defined]

    def read(self, payloads: Mapping[str, Any]) -> None:
        """Take the kind's own payloads.

        Raises:
            ArtifactError: they hold something else.
        """
        raise NotImplementedError

    def specs(self) -> dict[str, Spec]:
        """The parts it makes by family: those of its own payloads in place of the recorded ones."""
        return self.recorded

    @property
    def metrics(self) -> dict[str, dict[str, Any]]:
        """Measured figures by name, each with ``value`` and, where known, an interval ``low``, ``high``."""
        metrics: dict[str, dict[str, Any]] = self.provenance["metrics"]
        return metrics

    def check(
        self, model: PreTrainedModel | None = None, tokenizer: PreTrainedTokenizerBase | None = None
    ) -> None:
        """Raise if model or tokenizer differ from the recorded ones; a field that was not recorded is not compared.

        Raises:
            ArtifactError: the first field that differs, with both values.
        """
        difference = first_difference(self.fingerprint, fingerprint(model, tokenizer))
        if difference is not None:
            raise ArtifactError(f"{self.folder}: {difference}")

    def where(self, file: str) -> str:
        """Folder and file, for messages."""
        return f"{self.folder}: {file}"

    def _validated(self, annotation: Any, payloads: Mapping[str, Any], file: str) -> Any:
        """A JSON payload against an annotation."""
        return validated(annotation, payloads[file], self.where(file))

    def _recorded_init_args(self, family: str) -> dict[str, Any] | None:
        """Arguments of the recorded part of a family if it is of the class :attr:`made_by`."""
        return init_args_of(self.recorded.get(family), self.made_by)

    def _refuse_recorded(self, families: Iterable[str], why: str) -> None:
        """Raise if ``parts.json`` records one of these families."""
        for family in families:
            if family in self.recorded:
                raise ArtifactError(f"{self.where(PARTS)}: {family} is recorded; {why}")


Fields = Mapping[str, tuple[str, ...] | None]


class LearnedArtifact(Artifact):
    """The learned state of one part: fields that one argument of its constructor takes.

    A kind is a row of class attributes, see :mod:`specexp.artifacts.kinds.learned`. Its value is all fields by name.

    Attributes:
        fields: names by file: arrays of safetensors, or fields of a JSON object; None allows any.
        family: family of the part that takes the value.
        argument: argument of that part's constructor that takes it.
        start: arguments of that part beside it, which replace the recorded ones.
    """

    fields: ClassVar[Fields]
    family: ClassVar[str]
    argument: ClassVar[str]
    start: ClassVar[Mapping[str, Any]] = {}
    required: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        cls.required = (*cls.fields, *cls.required)
        cls.made_from = {cls.family: cls.required[0]}

    @classmethod
    @override
    def left_by_studies(cls) -> bool:
        return cls.learned is not None

    @classmethod
    @override
    def payloads_of(cls, parts: Mapping[str, Any], attributes: Mapping[str, Any]) -> dict[str, Any] | None:
        state = (attributes.get("learned") or {}).get(cls.learned)
        if not state or init_args_of(parts.get(cls.family), cls.made_by) is None:
            return None
        return {
            file: {
                name: np.asarray(state[name]) if file.endswith(".safetensors") else state[name]
                for name in names or ()
            }
            for file, names in cls.fields.items()
        } | {PARTS: dict(parts)}

    @override
    def read(self, payloads: Mapping[str, Any]) -> None:
        self.value: Any = {}
        for file, names in self.fields.items():
            check_fields(payloads[file], names or payloads[file], self.where(file))
            self.value |= payloads[file]
        for name, value in self.value.items():
            if isinstance(value, np.ndarray) and value.dtype.kind == "f" and not np.isfinite(value).all():
                raise ArtifactError(f"{self.folder}: array {name!r} holds numbers that are not finite")

    @override
    def specs(self) -> dict[str, Spec]:
        arguments = {**self.init_args(self._recorded_init_args(self.family)), **self.start}
        part = {"class_path": self.made_by, "init_args": {**arguments, self.argument: self.value}}
        return {**self.recorded, self.family: part}

    def init_args(self, recorded: dict[str, Any] | None) -> dict[str, Any]:
        """Return the part's further arguments, given the recorded ones, None if it was not recorded."""
        return recorded or {}
