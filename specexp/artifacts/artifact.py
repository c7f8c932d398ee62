"""What every kind of artifact has: provenance, metrics, fingerprint, and payloads as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from specexp.artifacts.error import ArtifactError
from specexp.artifacts.fingerprint import Fingerprint, fingerprint, first_difference
from specexp.artifacts.learned_state import STATE, STATE_FILES, State, state_in
from specexp.artifacts.manifest import Manifest
from specexp.artifacts.parts import PARTS, Spec, checked_specs, init_args_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


class Artifact:
    """A result of a study, as it lies in its folder. A further kind is one file in ``specexp/artifacts/kinds``.

    Subclasses name their payloads and :meth:`read` them into plain values. They check no more than what a file must
    hold to be read at all: what a part refuses is refused when it is made, and :func:`specexp.load_artifact` makes all.

    Args:
        manifest: the checked ``artifact.json``.
        payloads: content by file name: JSON values, or arrays by name for safetensors.
        folder: where it lies.

    Raises:
        ArtifactError: a payload holds something else than the kind promises.

    Attributes:
        kind: e.g. ``static-tree``; the module's name with dashes.
        required: payload files that must be there.
        optional: payload files that may be.
        made_from: payload file that a part is made from, by family; ``parts.json`` where none is named.
        purpose: what it is for, where no format can express it; empty otherwise.
        learned: family of the part whose learned state it holds; None for kinds that hold no such state.
        made_by: class of that part, by the module that defines it; empty where there is none.
        holds_state: whether whatever its parts had learned may lie beside them, see :mod:`.learned_state`.
        plain: whether it means to decode plainly, without drafter and builder.
        value: what an argument gets that refers to it, see :class:`~specexp.core.references.Reference`; None where no
            argument takes this kind.
        recorded: the parts of ``parts.json`` by family.
        state: what drafter and controller had learned, by family; empty where they start from nothing.
        state_bytes: what that takes.
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
        """What a study writes for a candidate; None where it is of another kind, as of kinds no study leaves.

        Args:
            parts: ``class_path`` and ``init_args`` of its drafter, builder, verifier and controller, defaults
                filled in.
            attributes: see :class:`~specexp.sweep.candidates.Candidate`.
        """
        return None

    @classmethod
    def learned_in(cls, parts: Mapping[str, Any], attributes: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """The state that a candidate's part of class :attr:`made_by` has learned; None if it has none, or is another.

        Args:
            parts: as :meth:`payloads_of` takes them.
            attributes: likewise.
        """
        assert cls.learned is not None, f"{cls.kind} holds no learned state"
        state: Mapping[str, Any] | None = (attributes.get("learned") or {}).get(cls.learned)
        return state if state and init_args_of(parts.get(cls.learned), cls.made_by) is not None else None

    def read(self, payloads: Mapping[str, Any]) -> None:
        """Take the kind's own payloads.

        Raises:
            ArtifactError: they hold something else.
        """
        raise NotImplementedError

    def specs(self) -> dict[str, Spec]:
        """What it makes by family: the recorded parts, and in their place those that its own payloads state."""
        return self.recorded

    @property
    def metrics(self) -> dict[str, dict[str, Any]]:
        """Measured figures by name, each with ``value`` and, where known, an interval ``low``, ``high``."""
        metrics: dict[str, dict[str, Any]] = self.provenance["metrics"]
        return metrics

    def check(
        self, model: PreTrainedModel | None = None, tokenizer: PreTrainedTokenizerBase | None = None
    ) -> None:
        """Refuse a model or tokenizer other than the recorded one; what was not recorded is not compared.

        Raises:
            ArtifactError: the first field that differs, with both values.
        """
        difference = first_difference(self.fingerprint, fingerprint(model, tokenizer))
        if difference is not None:
            raise ArtifactError(f"{self.folder}: {difference}")

    def where(self, file: str) -> str:
        """Folder and file, for messages."""
        return f"{self.folder}: {file}"
