"""Artifacts with the parts that they record, ready to decode with: what a deployment loads.

An artifact is a stranger's until somebody says otherwise: a class outside specexp's own families is refused before
anything is imported, and a path outside the artifact's folder and the working directory before it is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typing_extensions import override

from specexp.artifacts import Artifact, ArtifactError, Fingerprint, read_artifact, write_artifact
from specexp.artifacts.learned_state import STATE
from specexp.artifacts.parts import PARTS, Spec
from specexp.artifacts.trust import NOBODY, Trust, is_inside, trust_in
from specexp.config.check import FOLDERS, Checker
from specexp.config.layers import ConfigError
from specexp.config.named_artifacts import local
from specexp.core.checked import PartOf, Reference
from specexp.core.messages import first_line, type_and_line
from specexp.core.parts import Parts, check_composition

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from specexp.core.contracts import Controller, Drafter, TreeBuilder, Verifier
    from specexp.core.loop import Decoder
    from specexp.core.runtime import Runtime
    from specexp.scheduling import Execution, Executor

_FAMILIES = {
    "drafter": "specexp.core.contracts.Drafter",
    "builder": "specexp.core.contracts.TreeBuilder",
    "verifier": "specexp.core.contracts.Verifier",
    "controller": "specexp.core.contracts.Controller",
    "execution": "specexp.scheduling.Execution",
}
"""Contracts of what an artifact may make."""

_OWN = tuple(f"{folder}." for folder in (*FOLDERS.values(), "specexp.scheduling"))


class LoadedArtifact:
    """An artifact and its parts, made once, so that decoders made from it share what they learn.

    What the artifact itself holds is asked of it directly: :attr:`kind`, :attr:`folder`, ``metrics``, ``provenance``,
    ``check(model, tokenizer)`` and the content of its kind. Iterating gives the parts: ``Decoder(target, *artifact)``
    decodes with it.

    Args:
        content: the artifact as it was read.
        trust: what its parts may import beside specexp's own.

    Raises:
        ArtifactError: a part is none of specexp's own and not trusted, or its constructor refuses its arguments.

    Attributes:
        kind: e.g. ``static-tree``.
        folder: where it lies.
        recorded: ``class_path`` and ``init_args`` in ``parts.json`` by family.
        execution_spec: the same of the strategy by which several sequences are decoded; None where there is none.
    """

    def __init__(self, content: Artifact, trust: Trust = NOBODY) -> None:
        self.content = content
        self.kind: str = content.kind
        self.folder = content.folder
        self.recorded: Mapping[str, Spec] = content.recorded
        self._trust = trust
        try:
            self._specs = content.specs()
        except Exception as error:  # a value that only a constructor would have refused
            raise ArtifactError(f"{self.folder} is no {self.kind} ({type_and_line(error)})") from error
        self.execution_spec: Spec | None = None
        self._draft: Runtime | None = None
        self._made = self._make()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "content":  # while it is copied or unpickled
            raise AttributeError(name)
        return getattr(self.content, name)

    @cached_property
    def parts(self) -> Parts:
        """Drafter, builder, verifier and controller for ``Decoder(target, *artifact.parts)``, knowing what they had
        learned where the artifact holds it; without drafter and builder where it says not to speculate.

        Raises:
            ArtifactError: the artifact records no drafter or builder, or its parts do not go together.
        """
        if self.content.plain:
            parts = Parts(verifier=self.verifier)
        else:
            parts = Parts(self.drafter, self.builder, self.verifier, self.controller)
        try:
            check_composition(*parts)
        except ValueError as error:
            raise ArtifactError(f"{self.content.where(PARTS)}: {first_line(error)}") from error
        return parts

    def __iter__(self) -> Iterator[Any]:
        return iter(self.parts)

    @property
    def drafter(self) -> Drafter:
        """The drafter it was tuned with."""
        drafter: Drafter = self._needed("drafter")
        return drafter

    @property
    def builder(self) -> TreeBuilder:
        """The builder it was tuned with."""
        builder: TreeBuilder = self._needed("builder")
        return builder

    @property
    def verifier(self) -> Verifier | None:
        """The verifier it was tuned with; None where none is recorded, which decodes greedily."""
        verifier: Verifier | None = self._made.get("verifier")
        return verifier

    @property
    def controller(self) -> Controller | None:
        """The controller it was tuned with; None where none is recorded."""
        controller: Controller | None = self._made.get("controller")
        return controller

    @property
    def execution(self) -> Execution:
        """The strategy by which several sequences are decoded."""
        execution: Execution = self._needed("execution")
        return execution

    def decoder(self, target: PreTrainedModel | Runtime, draft: PreTrainedModel | None = None) -> Decoder:
        """A decoder for the model this artifact belongs to.

        Args:
            target: the model, or one already wrapped.
            draft: the draft model, for a drafter that needs one.

        Raises:
            ArtifactError: it belongs to another model, or its parts do not go with this one.
                ``Decoder(target, *artifact.parts)`` does not ask whose they are.
            ValueError: the drafter needs a draft model and none is given.
        """
        from specexp.core.loop import Decoder
        from specexp.core.runtime import Runtime, check_model

        self.content.check(target.model if isinstance(target, Runtime) else target)
        if draft is not None:
            check_model(draft)  # also where the drafter asks none
        parts = self.parts
        if parts.drafter is not None:
            parts.drafter.use_draft_model(None if draft is None else self.draft_runtime(draft))
        try:
            return Decoder(self.runtime(target), *parts)
        except ValueError as error:
            raise ArtifactError(f"{self.folder}: {first_line(error)}") from error

    def runtime(self, target: PreTrainedModel | Runtime) -> Runtime:
        """A runtime of the target as the study ran it, with an empty cache of its own.

        A pair loaded in mode ``eager`` or ``compiled`` keeps that mode, and a runtime stays as it is. One warning is
        logged where runtime or dtype differ from the recorded ones. Artifacts that record none run as ``auto``.

        Raises:
            ValueError: the target cannot be run in the mode that it was loaded in.
        """
        from specexp.models.runtime import runtime_of, tell_once

        recorded = {key: self.content.provenance.get(key) for key in ("runtime", "dtype")}
        why: list[str] = []
        tell = why.append if recorded["runtime"] == "compiled" else tell_once
        runtime = runtime_of(target, self._mode(target), tell)
        running = runtime.provenance()
        if any(recorded[key] not in (None, running[key]) for key in running):
            tell_once(
                f"{self.folder} was measured with runtime {recorded['runtime']} and dtype {recorded['dtype']}, and the "
                f"target runs with {running['runtime']} and {running['dtype']}: its measured speed does not apply"
                + "".join(f" ({sentence})" for sentence in why)
            )
        return runtime

    def draft_runtime(self, draft: PreTrainedModel | Runtime) -> Runtime:
        """The draft's runtime, the same one for all decoders, which share the drafter."""
        from specexp.models.runtime import runtime_of

        if self._draft is None or self._draft.model is not draft:
            self._draft = runtime_of(draft, self._mode(draft))
        return self._draft

    def open(self, target: PreTrainedModel | Runtime, draft: PreTrainedModel | None = None) -> Executor:
        """The strategy at work on the model this artifact belongs to. Close it, or use it in a ``with`` statement.

        Every executor has parts of its own, in their initial state; what one learns no other one knows.

        Args:
            target: the model, or one already wrapped.
            draft: the draft model, for a drafter that needs one.

        Raises:
            ArtifactError: it belongs to another model, or records no strategy, drafter or builder.
            ValueError: the drafter needs a draft model and none is given, or the parts cannot work so.
        """
        from specexp.core.runtime import Runtime

        self.content.check(target.model if isinstance(target, Runtime) else target)
        return self.execution.open(self.runtime(target), self.new_parts(draft))

    def new_parts(self, draft: PreTrainedModel | None = None) -> Parts:
        """Parts in the state that the artifact holds, or else in their initial one, made anew at every call.

        Args:
            draft: the draft model, for a drafter that needs one.

        Raises:
            ArtifactError: the artifact records no drafter or builder.
            ValueError: the drafter needs a draft model and none is given.
        """
        new = LoadedArtifact(self.content, self._trust).parts
        if new.drafter is not None:
            from specexp.models.runtime import runtime_of

            new.drafter.use_draft_model(None if draft is None else runtime_of(draft, self._mode(draft)))
        return new

    def _mode(self, model: PreTrainedModel | Runtime) -> str:
        """The mode that a model was loaded in; for ``auto``, ``eager`` where the study ran that."""
        from specexp.core.runtime import Runtime
        from specexp.models.runtime import mode_of

        mode = "auto" if isinstance(model, Runtime) else mode_of(model)
        return "eager" if (mode, self.content.provenance.get("runtime")) == ("auto", "eager") else mode

    def _needed(self, family: str) -> Any:
        part = self._made.get(family)
        if part is None:
            hint = "" if family == "execution" else ": give Decoder one of your own"
            raise ArtifactError(f"{self.folder}: the artifact records no {family}{hint}")
        return part

    def _make(self) -> dict[str, Any]:
        """Every part that it states, by family."""
        checkers = {
            family: _Checker(
                self.content.where(self.content.made_from.get(family, PARTS)), self.folder, self._trust
            )
            for family in self._specs
        }
        # all of them are checked before any is made
        values = {family: checkers[family].checked(family, spec) for family, spec in self._specs.items()}
        self.execution_spec = values.get("execution")
        made = {family: checkers[family].made(family, value) for family, value in values.items()}
        for family, state in self.content.state.items():
            where = f"{self.content.where(STATE)}: {family}"
            if family not in made:
                raise ArtifactError(f"{where} is recorded nowhere, so nothing has this state")
            try:
                made[family].load_state_dict(deepcopy(state))
            except Exception as error:  # what a state holds is the part's own to check
                raise ArtifactError(f"{where} is no state of this part ({type_and_line(error)})") from error
        return made


class _Checker(Checker):
    """Reads what an artifact states; what is foreign is refused before anything is imported or read.

    Args:
        where: folder and file, for messages.
        folder: folder of the artifact.
        trust: what may be imported beside specexp's own families.
    """

    def __init__(self, where: str, folder: Path, trust: Trust) -> None:
        super().__init__(lambda key: where)
        self._where = where
        self._folder = folder
        self._trust = trust

    def checked(self, family: str, spec: Spec) -> Spec:
        """The specification of a part, defaults filled in.

        Raises:
            ArtifactError: the class is of another family or foreign, or does not take these arguments.
        """
        with self._refusing(family):
            value: Spec = self.value(spec, _annotation(family), (family,))
            return value

    def made(self, family: str, value: Spec) -> Any:
        """The part that a checked specification describes.

        Raises:
            ArtifactError: its constructor refuses the arguments.
        """
        with self._refusing(family):
            return self.build(value, _annotation(family), (family,))

    @contextmanager
    def _refusing(self, family: str) -> Iterator[None]:
        try:
            yield
        except ConfigError as error:
            raise ArtifactError(str(error)) from error
        except (Exception, SystemExit) as error:  # of a trusted module, or a constructor
            raise ArtifactError(f"{self._where}: {family} cannot be made ({type_and_line(error)})") from error

    @override
    def find_class(self, name: str, base: type) -> type:
        own = "." not in name or name.startswith(_OWN)
        why = None if own else self._trust.refusal(name, self._folder)
        if why is not None:
            raise ValueError(f": {name!r} is not a {base.__name__} of specexp; {why}")
        return super().find_class(name, base)

    @override
    def follow(self, reference: Reference, given: str) -> Any:
        if not is_inside(given, self._folder):
            raise ValueError(
                f" must be a path in the artifact's folder or the working directory, got {given!r}"
            )
        return super().follow(reference, given)


def _annotation(family: str) -> Any:
    return Annotated[Any, PartOf(_FAMILIES[family])]


def load_artifact(path_or_reference: str | Path, trust: Sequence[str] = ()) -> LoadedArtifact:
    """Load an artifact, check all of it, and make its parts.

    Nothing foreign runs: parts are classes of specexp's own families, and any other class path is refused before
    anything is imported. The hashes show damage, not authorship: whoever changes an artifact can write them anew.

    Args:
        path_or_reference: folder of a version (``artifacts/tree_shape/v2``), an alias of one
            (``artifacts/tree_shape/best``), the folder of versions, or ``wandb:entity/project/name:alias``.
        trust: packages whose classes its parts may be, too. They must be installed; the artifact's folder and the
            working directory are never imported from.

    Raises:
        ArtifactError: one sentence that names the folder and the field.

    Example:
        >>> artifact = load_artifact("artifacts/tree_shape/best")  # doctest: +SKIP
        >>> Decoder(pair.target, *artifact.parts)  # doctest: +SKIP
    """
    trusted = trust_in(trust)
    return LoadedArtifact(read_artifact(local(path_or_reference)), trusted)


def save_artifact(
    folder: str | Path,
    kind: str,
    payloads: Mapping[str, Any],
    provenance: Mapping[str, Any] | None = None,
    fingerprint: Fingerprint | None = None,
    *,
    name: str | None = None,
    aliases: Iterable[str] = ("latest", "best"),
) -> LoadedArtifact:
    """Write the next version of an artifact, whose parts can be made: see :func:`~specexp.artifacts.write_artifact`.

    A study may write down the parts it runs, wherever they come from; whoever loads them has to trust them.

    Args:
        folder: e.g. ``artifacts/tree_shape``; the version becomes ``artifacts/tree_shape/v1``, ``v2``, ...
        kind: e.g. ``static-tree``.
        payloads: content by file name.
        provenance: where it comes from.
        fingerprint: what :func:`specexp.artifacts.fingerprint` says of target and tokenizer.
        name: what it is called; the folder's name if None.
        aliases: names that mean this version from now on.

    Raises:
        ArtifactError: the content is not what the kind promises, a part cannot be made, or it cannot be written;
            nothing is left behind.

    Example:
        >>> save_artifact("artifacts/tree", "static-tree", {"tree.json": [[0], [0, 0]]})  # doctest: +SKIP
    """
    own = Trust(imported=True)
    written = write_artifact(
        folder,
        kind,
        payloads,
        provenance,
        fingerprint,
        name=name,
        aliases=aliases,
        check=lambda artifact: LoadedArtifact(artifact, own),
    )
    return LoadedArtifact(written, own)
