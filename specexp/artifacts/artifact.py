"""Base classes for all kinds of artifacts, with provenance, metrics, a fingerprint, and payloads as plain values."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from typing_extensions import override

from specexp.artifacts.fingerprint import Fingerprint, fingerprint, first_difference, saved_sizes
from specexp.artifacts.manifest import Manifest
from specexp.artifacts.parts import (
    PARTS,
    STATE,
    STATE_FILES,
    Recorded,
    Spec,
    State,
    check_finite,
    init_args_of,
    state_in,
)
from specexp.artifacts.validation import ArtifactError, check_fields, validated

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


class Artifact:
    """The result of a study, read from its folder. To add a kind, add a class to ``specexp/artifacts/kinds``.

    A kind is defined by its class attributes. Only what is needed to read the artifact is checked here. Parts check
    their own arguments when :func:`specexp.load_artifact` constructs them. ``payloads`` holds the files' contents by
    file name: JSON values, or arrays by name for safetensors. Raises ArtifactError if one does not match the kind.
    """

    kind: ClassVar[str]  # e.g. ``static-tree``
    required: ClassVar[Mapping[str, Any]]  # payload files that must exist, and the annotations of their JSON values
    optional: ClassVar[tuple[str, ...]] = (PARTS,)  # payload files that may exist
    purpose: ClassVar[str] = ""  # of a kind that cannot be exported: a clause on its use, for error messages
    written: ClassVar[str] = "a sweep writes artifacts/NAME/best"  # on the command, for error messages
    # family of the part that learned the value; None if the value was not learned while decoding
    learned: ClassVar[Literal["drafter", "controller"] | None] = None
    made_by: ClassVar[str] = ""  # dotted path of the part class that takes the value; empty if no single class does
    of_studies: ClassVar[bool] = False  # whether a study can export the kind; by default, if it has payloads_of()
    holds_state: ClassVar[bool] = False  # whether ``state.json`` may record learned state of the parts
    plain: ClassVar[bool] = False  # whether the kind represents plain decoding, without a drafter or builder
    value: Any = None  # of an argument that refers to the artifact (see Reference); None if no argument takes this kind

    def __init_subclass__(cls) -> None:
        cls.of_studies = cls.payloads_of.__func__ is not Artifact.payloads_of.__func__  # type: ignore[attr-defined]

    def __init__(self, manifest: Manifest, payloads: Mapping[str, Any], folder: Path) -> None:
        self.folder = folder
        self.name = manifest.name
        self.provenance: dict[str, Any] = manifest.provenance.model_dump(exclude_unset=True)
        self.fingerprint: Fingerprint = {name: dict(one) for name, one in manifest.fingerprint.items()}
        parts = payloads.get(PARTS, {})
        # a kind may require more of parts.json than the common schema does
        validated(self.required.get(PARTS, Recorded), parts, self.where(PARTS))
        self.recorded: dict[str, Spec] = {family: spec for family, spec in parts.items() if spec is not None}
        self.state: dict[str, State] = state_in(payloads, self.where(STATE))  # by family; empty if none was learned
        sizes = {file: entry.bytes for file, entry in manifest.payloads.items()}
        self.state_bytes = sum(sizes.get(file, 0) for file in STATE_FILES)
        typed = {  # arrays, and content that the kind checks itself, have the annotation Any
            file: validated(annotation, payloads[file], self.where(file))
            for file, annotation in self.required.items()
            if annotation is not Any and file != PARTS
        }
        self.read({**payloads, **typed})

    @classmethod
    def files(cls) -> tuple[str, ...]:
        """Return the names of all payload files that an artifact of this kind may contain."""
        return (*cls.required, *cls.optional, *(STATE_FILES if cls.holds_state else ()))

    @classmethod
    def payloads_of(cls, parts: Mapping[str, Any], attributes: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the payloads that store a study's candidate, or None if it does not fit this kind.

        ``parts`` are the specifications of its four parts, with defaults filled in, and ``attributes`` those of the
        :class:`~specexp.sweep.trials.Candidate`.
        """
        return None

    def read(self, payloads: Mapping[str, Any]) -> None:
        """Read this kind's own payloads, already validated against :attr:`required`."""

    def specs(self) -> dict[str, Spec]:
        """Return the specifications of all parts, keyed by family, from ``parts.json`` and this kind's own payloads."""
        return self.recorded

    @property
    def metrics(self) -> dict[str, dict[str, Any]]:
        """Measured figures, keyed by name. Each has a ``value`` and, if known, an interval from ``low`` to ``high``."""
        metrics: dict[str, dict[str, Any]] = self.provenance["metrics"]
        return metrics

    def check(self, model: PreTrainedModel | None = None, tokenizer: PreTrainedTokenizerBase | None = None) -> None:
        """Raise an ArtifactError if the model or tokenizer differs from a recorded field; the error names the field."""
        self._compare(fingerprint(model, tokenizer))

    def check_saved(self, source: str) -> None:
        """Raise the error of :meth:`check` for a saved model of other sizes; only its ``config.json`` is read."""
        try:
            sizes = saved_sizes(json.loads(Path(source, "config.json").read_text(encoding="utf-8")))
        except (OSError, ValueError, AttributeError):
            return  # a check of the model itself names what is wrong
        self._compare(sizes)

    def _compare(self, given: Fingerprint) -> None:
        difference = first_difference(self.fingerprint, given)
        if difference is not None:
            section, key, known, value = difference
            raise ArtifactError(
                f"{self.folder}: fingerprint.{section}.{key} is {known}, but the given {section} has {value}: the "
                f"artifact belongs to another {section}"
            )

    def where(self, file: str) -> str:
        """Return the folder and file in the form used in error messages."""
        return f"{self.folder}: {file}"

    def recorded_init_args(self, family: str) -> dict[str, Any] | None:
        """Return the recorded arguments of the part in ``family`` if its class is :attr:`made_by`, otherwise None."""
        return init_args_of(self.recorded.get(family), self.made_by)

    def refuse_recorded(self, families: Iterable[str], why: str) -> None:
        """Raise an ArtifactError if ``parts.json`` contains any of these families."""
        for family in families:
            if family in self.recorded:
                raise ArtifactError(f"{self.where(PARTS)}: {family} must not be recorded, because {why}")


class LearnedArtifact(Artifact):
    """The learned state of one part: a mapping of fields, passed as one argument to the part's constructor."""

    # for each file, the names of its arrays (safetensors) or fields (JSON); None allows any names
    fields: ClassVar[Mapping[str, tuple[str, ...] | None]]
    family: ClassVar[str]  # of the part that takes the value
    argument: ClassVar[str]  # of that part's constructor
    start: ClassVar[Mapping[str, Any]] = {}  # arguments that override the part's recorded ones
    required: ClassVar[Mapping[str, Any]] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.required = {**dict.fromkeys(cls.fields, Any), **cls.required}
        cls.of_studies = cls.learned is not None

    @classmethod
    @override
    def payloads_of(cls, parts: Mapping[str, Any], attributes: Mapping[str, Any]) -> dict[str, Any] | None:
        state = (attributes.get("learned") or {}).get(cls.learned)
        if not state or init_args_of(parts.get(cls.family), cls.made_by) is None:
            return None
        return {
            file: {
                name: np.asarray(state[name]) if file.endswith(".safetensors") else state[name] for name in names or ()
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
            if isinstance(value, np.ndarray):
                check_finite(value, f"{self.folder}: array {name!r}")

    @override
    def specs(self) -> dict[str, Spec]:
        arguments = {**self.init_args(self.recorded_init_args(self.family)), **self.start}
        part = {"class_path": self.made_by, "init_args": {**arguments, self.argument: self.value}}
        return {**self.recorded, self.family: part}

    def init_args(self, recorded: dict[str, Any] | None) -> dict[str, Any]:
        """Return the part's other arguments. ``recorded`` is None if ``parts.json`` does not contain the part."""
        return recorded or {}
