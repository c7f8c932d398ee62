"""Loads an artifact and constructs its recorded parts, ready to decode.

Artifacts are not trusted. A class outside specexp's own families is rejected before anything is imported, unless the
user trusts its package. Files outside the artifact's folder and the working directory are never read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typing_extensions import override

from specexp.artifacts import Artifact, ArtifactError, Fingerprint, read_artifact, write_artifact
from specexp.artifacts.parts import PARTS, STATE, Spec
from specexp.artifacts.trust import NO_PACKAGES, Trust, is_inside, trust_in
from specexp.base.checked import PartOf, Reference, refusal
from specexp.base.messages import first_line, restated, type_and_line
from specexp.config.check import FOLDERS, Checker
from specexp.config.layers import ConfigError
from specexp.config.named_artifacts import local
from specexp.core.parts import Parts, check_composition

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from specexp.core.contracts import Controller, Drafter, TreeBuilder, Verifier
    from specexp.core.loop import Decoder
    from specexp.core.runtime import Runtime
    from specexp.scheduling import Execution, Executor

# contracts of the parts that an artifact may contain, and the modules that define specexp's own parts
_FAMILIES = {
    "drafter": "specexp.core.contracts.Drafter",
    "builder": "specexp.core.contracts.TreeBuilder",
    "verifier": "specexp.core.contracts.Verifier",
    "controller": "specexp.core.contracts.Controller",
    "execution": "specexp.scheduling.Execution",
}
_OWN = tuple(f"{folder}." for folder in (*FOLDERS.values(), "specexp.scheduling"))


def _part(family: str, required: bool = True) -> Any:
    """Return a property for one part of an artifact. It raises an ArtifactError if a required part is not recorded."""

    def get(artifact: LoadedArtifact) -> Any:
        part = artifact._made.get(family)
        if part is None and required:
            hint = "" if family == "execution" else ": pass one of your own to Decoder"
            raise ArtifactError(f"{artifact.folder}: the artifact records no {family}{hint}")
        return part

    return property(get)


class LoadedArtifact:
    """An artifact and its parts. The parts are constructed once, so that all decoders share their learned state.

    It also exposes the attributes of its content: ``metrics``, ``provenance``, ``check(model, tokenizer)`` and those
    of its kind. Iterating over it yields the parts, as in ``Decoder(target, *artifact)``.

    Args:
        content: The artifact's content, as read from its folder.
        trust: The packages that its parts may import in addition to specexp.

    Raises:
        ArtifactError: A part is neither specexp's own nor trusted, or its constructor rejects its arguments.

    Attributes:
        recorded: The specifications (``class_path`` and ``init_args``) in ``parts.json``, by family.
        execution_spec: The specification of the strategy that decodes several sequences; None if there is none.
        drafter: The recorded drafter. Accessing a missing drafter, builder or execution raises an ArtifactError.
        verifier: The recorded verifier; None means greedy.
    """

    drafter: Drafter = _part("drafter")
    builder: TreeBuilder = _part("builder")
    verifier: Verifier | None = _part("verifier", required=False)
    controller: Controller | None = _part("controller", required=False)
    execution: Execution = _part("execution")

    def __init__(self, content: Artifact, trust: Trust = NO_PACKAGES) -> None:
        self.content = content
        self.kind: str = content.kind
        self.folder = content.folder
        self.recorded: Mapping[str, Spec] = content.recorded
        self._trust = trust
        try:
            specs = content.specs()
        except Exception as error:  # a value that the content's checks do not cover
            raise ArtifactError(f"{self.folder} is not a {self.kind} ({type_and_line(error)})") from error
        self.execution_spec: Spec | None = None
        self._draft: Runtime | None = None
        self._made = self._make(specs)

    def __getattr__(self, name: str) -> Any:
        # copying and unpickling look up attributes before content is set
        if name.startswith("_") or name == "content":
            raise AttributeError(name)
        return getattr(self.content, name)

    @cached_property
    def parts(self) -> Parts:
        """Drafter, builder, verifier and controller, with their learned state if one is recorded.

        In an artifact of plain decoding, drafter and builder are None.

        Raises:
            ArtifactError: No drafter or builder is recorded, or the parts are incompatible.
        """
        if self.content.plain:
            parts = Parts(verifier=self.verifier)
        else:
            parts = Parts(self.drafter, self.builder, self.verifier, self.controller)
        with restated(ValueError, lambda error: ArtifactError(f"{self.content.where(PARTS)}: {first_line(error)}")):
            check_composition(*parts)
        return parts

    def __iter__(self) -> Iterator[Any]:
        return iter(self.parts)

    def decoder(self, target: PreTrainedModel | Runtime, draft: PreTrainedModel | None = None) -> Decoder:
        """Return a decoder for the model that this artifact was made for.

        Raises:
            ArtifactError: The artifact belongs to another model, or its parts are incompatible with this one.
                ``Decoder(target, *artifact.parts)`` skips the comparison of models.
            ValueError: The drafter needs a draft model and none is given.
        """
        from specexp.core.loop import Decoder
        from specexp.core.runtime import check_model

        self._check_model(target)
        if draft is not None:
            check_model(draft)  # even if the drafter does not use it
        parts = self.parts
        if parts.drafter is not None:
            parts.drafter.use_draft_model(None if draft is None else self.draft_runtime(draft))
        with restated(ValueError, lambda error: ArtifactError(f"{self.folder}: {first_line(error)}")):
            return Decoder(self.runtime(target), *parts)

    def runtime(self, target: PreTrainedModel | Runtime) -> Runtime:
        """Return a runtime for the target in the study's mode, with an empty cache of its own.

        A model loaded in mode ``eager`` or ``compiled`` keeps that mode, and a runtime is returned unchanged. If the
        runtime or dtype differs from the recorded one, a warning is logged. If none is recorded, ``auto`` is used.

        Raises:
            ValueError: The target cannot be run in the mode in which it was loaded.
        """
        from specexp.models.runtime import runtime_of, tell_once

        recorded = {key: self.content.provenance.get(key) for key in ("runtime", "dtype")}
        why: list[str] = []  # why the runtime is not compiled; appended to the warning
        tell = why.append if recorded["runtime"] == "compiled" else tell_once
        runtime = runtime_of(target, self._mode(target), tell)
        running = runtime.provenance()
        if any(recorded[key] not in (None, running[key]) for key in recorded):
            tell_once(
                f"{self.folder} was measured with runtime {recorded['runtime']} and dtype {recorded['dtype']}, and the "
                f"target runs with {running['runtime']} and {running['dtype']}: its measured speed does not apply"
                + "".join(f" ({sentence})" for sentence in why)
            )
        return runtime

    def draft_runtime(self, draft: PreTrainedModel | Runtime) -> Runtime:
        """Return the draft model's runtime. All decoders use the same one, because they share the drafter."""
        from specexp.models.runtime import runtime_of

        if self._draft is None or self._draft.model is not draft:
            self._draft = runtime_of(draft, self._mode(draft))
        return self._draft

    def open(self, target: PreTrainedModel | Runtime, draft: PreTrainedModel | None = None) -> Executor:
        """Start the execution strategy on the target. Close the executor, or use it in a ``with`` statement.

        Each executor has its own parts and shares no learned state. Arguments and errors are those of
        :meth:`decoder`. An ArtifactError is also raised if the artifact has no strategy.
        """
        self._check_model(target)
        return self.execution.open(self.runtime(target), self.new_parts(draft))

    def new_parts(self, draft: PreTrainedModel | None = None) -> Parts:
        """Return new parts with the recorded learned state. Raises the same errors as :meth:`decoder`."""
        new = LoadedArtifact(self.content, self._trust).parts
        if new.drafter is not None:
            from specexp.models.runtime import runtime_of

            new.drafter.use_draft_model(None if draft is None else runtime_of(draft, self._mode(draft)))
        return new

    def _check_model(self, target: PreTrainedModel | Runtime) -> None:
        from specexp.core.runtime import Runtime

        self.content.check(target.model if isinstance(target, Runtime) else target)

    def _mode(self, model: PreTrainedModel | Runtime) -> str:
        """Return the mode in which a model was loaded; ``auto`` becomes ``eager`` if the study ran in ``eager``."""
        from specexp.core.language_model import mode_of

        mode = mode_of(model)
        return "eager" if (mode, self.content.provenance.get("runtime")) == ("auto", "eager") else mode

    def _make(self, specs: Mapping[str, Spec]) -> dict[str, Any]:
        """Return the parts, keyed by family. All of them are checked before any is constructed."""
        checkers: dict[str, _Checker] = {}
        values: dict[str, Any] = {}
        for family, spec in specs.items():
            file = PARTS if family in self.recorded else next(iter(self.content.required))
            checkers[family] = checker = _Checker(self.content.where(file), self.folder, self._trust)
            values[family] = checker.refusing(checker.value, family, spec)
        self.execution_spec = values.get("execution")
        made = {family: checker.refusing(checker.build, family, values[family]) for family, checker in checkers.items()}
        for family, state in self.content.state.items():
            where = f"{self.content.where(STATE)}: {family}"
            if family not in made:
                raise ArtifactError(f"{where} has state, but the part is not recorded")
            try:
                made[family].load_state_dict(deepcopy(state))  # a part may keep and change the state
            except Exception as error:  # the part itself checks its state
                raise ArtifactError(f"{where} does not fit this part ({type_and_line(error)})") from error
        return made


class _Checker(Checker):
    """Checks and builds an artifact's parts. Untrusted classes and paths are rejected before they are used."""

    def __init__(self, where: str, folder: Path, trust: Trust) -> None:
        super().__init__(lambda key: where)
        self._where = where
        self._folder = folder
        self._trust = trust

    def refusing(self, read: Callable[..., Any], family: str, value: Any) -> Any:
        """Check or build a part, and convert any error to an ArtifactError."""
        try:
            return read(value, Annotated[Any, PartOf(_FAMILIES[family])], (family,))
        except ConfigError as error:
            raise ArtifactError(str(error)) from error
        except (Exception, SystemExit) as error:  # raised by a trusted module, or a constructor
            raise ArtifactError(f"{self._where}: {family} cannot be made ({type_and_line(error)})") from error

    @override
    def find_class(self, name: str, base: type) -> type:
        own = "." not in name or name.startswith(_OWN)
        why = None if own else self._trust.refusal(name, self._folder)
        if why is not None:
            raise refusal(("class_path",), f": {name!r} is not a {base.__name__} of specexp; {why}")
        return super().find_class(name, base)

    @override
    def follow(self, reference: Reference, given: str) -> Any:
        if not is_inside(given, self._folder):
            why = f" must be a path in the artifact's folder or the working directory, got {given!r}"
            raise refusal((), why)
        return super().follow(reference, given)


def load_artifact(path_or_reference: str | Path, trust: Sequence[str] = ()) -> LoadedArtifact:
    """Load an artifact, check all of its contents, and construct its parts.

    No untrusted code runs: any class path outside specexp and ``trust`` is rejected before anything is imported.
    The hashes detect damage; they do not prove who wrote the artifact.

    Args:
        path_or_reference: Folder of a version (``artifacts/tree_shape/v2``), an alias for one
            (``artifacts/tree_shape/best``), the folder of all versions, or ``wandb:entity/project/name:alias``.
        trust: Installed packages that may also define its parts. Nothing is imported from the artifact's folder or
            the working directory.

    Raises:
        ArtifactError: The artifact cannot be loaded; the message names the folder and the field.

    Example:
        >>> artifact = load_artifact("artifacts/tree_shape/best")  # doctest: +SKIP
        >>> Decoder(pair.target, *artifact.parts)  # doctest: +SKIP
    """
    return LoadedArtifact(read_artifact(local(path_or_reference)), trust_in(trust))


def save_artifact(
    folder: str | Path,
    kind: str,
    payloads: Mapping[str, Any],
    provenance: Mapping[str, Any] | None = None,
    fingerprint: Fingerprint | None = None,
    *,
    name: str | None = None,
    aliases: Iterable[str] = ("best",),
) -> LoadedArtifact:
    """Write the next version of an artifact, provided that its parts can be constructed.

    Arguments are those of :func:`~specexp.artifacts.write_artifact`. Parts from any imported package can be saved, but
    loading them requires trust.

    Raises:
        ArtifactError: The content does not match the kind, a part cannot be constructed, or the artifact cannot be
            written. No files are left behind.

    Example:
        >>> save_artifact("artifacts/tree", "static-tree", {"tree.json": [[0], [0, 0]]})  # doctest: +SKIP
    """
    own = Trust(imported=True)

    def check(artifact: Artifact) -> LoadedArtifact:
        return LoadedArtifact(artifact, own)

    written = write_artifact(folder, kind, payloads, provenance, fingerprint, name=name, aliases=aliases, check=check)
    return LoadedArtifact(written, own)
