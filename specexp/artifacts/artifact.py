"""What every kind of artifact has: provenance, metrics, fingerprint, payloads, and parts ready to compose."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from specexp.artifacts.error import ArtifactError
from specexp.artifacts.fingerprint import Fingerprint, fingerprint, first_difference
from specexp.artifacts.manifest import Manifest
from specexp.artifacts.parts import PARTS, check_parts, instantiate
from specexp.core.parts import Parts

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from specexp.core.decoder import Decoder
    from specexp.core.language_model import LanguageModel
    from specexp.core.parts import Controller, Drafter, TreeBuilder, Verifier


class Artifact:
    """A result of a study that a deployment loads. A further kind is one file in ``specexp/artifacts/kinds``.

    Subclasses name their payloads, check their content in :meth:`read`, and override the parts they hold.
    Iterating gives the parts, so ``Decoder(target, *artifact)`` decodes with it.

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
        purpose: what it is for, where no format can express it; empty otherwise.
        learned: family of the part whose learned state it holds; None for kinds that hold no such state.
        made_by: class paths of the parts whose ``state_dict()`` it holds.
    """

    kind: ClassVar[str]
    required: ClassVar[tuple[str, ...]]
    optional: ClassVar[tuple[str, ...]] = (PARTS,)
    purpose: ClassVar[str] = ""
    learned: ClassVar[Literal["drafter", "controller"] | None] = None
    made_by: ClassVar[tuple[str, ...]] = ()

    def __init__(self, manifest: Manifest, payloads: Mapping[str, Any], folder: Path) -> None:
        self.folder = folder
        self.name = manifest.name
        self.provenance = manifest.provenance
        self.fingerprint: Fingerprint = manifest.fingerprint
        self.part_specs: dict[str, Any] = {}
        if PARTS in payloads:
            self.part_specs = check_parts(payloads[PARTS], self._where(PARTS))
        self.read(payloads)

    @classmethod
    def payloads_of(cls, parts: Mapping[str, Any], attributes: Mapping[str, Any]) -> dict[str, Any] | None:
        """What a study writes for a candidate; None where it is of another kind, as of kinds no study leaves.

        Args:
            parts: ``class_path`` and ``init_args`` of its drafter, builder, verifier and controller, defaults
                filled in.
            attributes: see :class:`~specexp.sweep.candidates.Candidate`.
        """
        return None

    def read(self, payloads: Mapping[str, Any]) -> None:
        """Check the kind's own payloads and keep what they hold."""
        raise NotImplementedError

    @property
    def value(self) -> Any:
        """What an argument gets that refers to this artifact, see :class:`~specexp.core.references.Reference`.

        Raises:
            ArtifactError: no argument takes this kind.
        """
        raise ArtifactError(f"{self.folder}: kind is {self.kind!r}, which is no value of an argument")

    @property
    def metrics(self) -> dict[str, dict[str, Any]]:
        """Measured figures by name, each with ``value`` and, where known, an interval ``low``, ``high``."""
        metrics: dict[str, dict[str, Any]] = self.provenance["metrics"]
        return metrics

    @property
    def parts(self) -> Parts:
        """Drafter, builder, verifier and controller for ``Decoder(target, *artifact.parts)``.

        They are made once for each loaded artifact, so decoders made from it share what they learn.

        Raises:
            ArtifactError: the artifact records no drafter or builder, or a recorded part cannot be made.
        """
        return Parts(self.drafter, self.builder, self.verifier, self.controller)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.parts)

    @cached_property
    def drafter(self) -> Drafter:
        """The drafter it was tuned with."""
        drafter: Drafter = self._needed("drafter")
        return drafter

    @cached_property
    def builder(self) -> TreeBuilder:
        """The builder it was tuned with."""
        builder: TreeBuilder = self._needed("builder")
        return builder

    @cached_property
    def verifier(self) -> Verifier | None:
        """The verifier it was tuned with; None where none is recorded, which decodes greedily."""
        verifier: Verifier | None = self._made("verifier")
        return verifier

    @cached_property
    def controller(self) -> Controller | None:
        """The controller it was tuned with; None where none is recorded."""
        controller: Controller | None = self._made("controller")
        return controller

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

    def decoder(
        self, target: PreTrainedModel | LanguageModel, draft: PreTrainedModel | None = None
    ) -> Decoder:
        """A decoder for the model this artifact belongs to.

        Args:
            target: the model.
            draft: the draft model, for a drafter that needs one.

        Raises:
            ArtifactError: it belongs to another model. ``Decoder(target, *artifact.parts)`` does not ask.
            ValueError: the drafter needs a draft model and none is given.
        """
        from specexp.core.decoder import Decoder
        from specexp.core.language_model import LanguageModel

        self.check(target.model if isinstance(target, LanguageModel) else target)
        self.drafter.use_draft_model(draft)
        return Decoder(target, *self.parts)

    def _needed(self, family: str) -> Any:
        part = self._made(family)
        if part is None:
            raise ArtifactError(
                f"{self.folder}: the artifact records no {family}: give Decoder one of your own"
            )
        return part

    def _made(self, family: str) -> Any:
        spec = self.part_specs.get(family)
        return None if spec is None else instantiate(family, spec, self._where(PARTS))

    def _where(self, file: str) -> str:
        return f"{self.folder}: {file}"
