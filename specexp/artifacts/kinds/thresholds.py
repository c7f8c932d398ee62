"""Tuned thresholds: how far DySpec's trees grow, and how the draft model is sampled for them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from specexp.artifacts.artifact import Artifact
from specexp.artifacts.error import ArtifactError
from specexp.artifacts.parts import PARTS
from specexp.builders import DySpecThreshold
from specexp.config import ConfigError
from specexp.config.check import Checker
from specexp.core.messages import did_you_mean
from specexp.drafters import DraftModel

if TYPE_CHECKING:
    from specexp.core.parts import Drafter, TreeBuilder

THRESHOLDS = "thresholds.json"
_TREE = ("threshold", "max_nodes", "max_depth", "candidates", "acceptance_power")
_DRAFT = ("temperature", "top_k", "top_p", "coupled")


class ThresholdsArtifact(Artifact):
    """``thresholds.json``: arguments of :class:`~specexp.builders.DySpecThreshold` (``threshold``, ``max_nodes``,
    ``max_depth``, ``candidates``, ``acceptance_power``) and, under ``draft``, of
    :class:`~specexp.drafters.DraftModel` (``temperature``, ``top_k``, ``top_p``, ``coupled``), every one of them
    written down.

    The draft model itself is the deployment's: ``artifact.decoder(target, draft)``. A controller that moves the
    threshold at run time is kept in ``parts.json``, as the verifier is.

    Attributes:
        thresholds: the checked content of the file.
    """

    kind = "thresholds"
    required = (THRESHOLDS,)

    @classmethod
    def payloads_of(cls, parts: Mapping[str, Any], attributes: Mapping[str, Any]) -> dict[str, Any] | None:
        """Of a draft model under a threshold; anything else is of another kind."""
        tree, draft = (
            _arguments(parts, *part) for part in (("builder", DySpecThreshold), ("drafter", DraftModel))
        )
        if tree is None or draft is None:
            return None
        thresholds = {name: tree[name] for name in _TREE} | {"draft": {name: draft[name] for name in _DRAFT}}
        return {THRESHOLDS: thresholds, PARTS: {name: parts[name] for name in ("verifier", "controller")}}

    def read(self, payloads: Mapping[str, Any]) -> None:
        """Every field must be there, and be what the constructor it goes to allows."""
        content, where = payloads[THRESHOLDS], self._where(THRESHOLDS)
        _check_fields(content, (*_TREE, "draft"), "", where)
        _check_fields(content["draft"], _DRAFT, "draft.", where)
        self.thresholds: dict[str, Any] = content
        _ = self.builder, self.drafter

    @cached_property
    def builder(self) -> TreeBuilder:
        """The tree's rule."""
        arguments = {name: self.thresholds[name] for name in _TREE}
        builder: TreeBuilder = self._call(DySpecThreshold, arguments, ())
        return builder

    @cached_property
    def drafter(self) -> Drafter:
        """The draft model's settings; :meth:`~specexp.drafters.DraftModel.use_draft_model` gives it its model."""
        drafter: Drafter = self._call(DraftModel, self.thresholds["draft"], ("draft",))
        return drafter

    def _call(self, part: type, arguments: Mapping[str, Any], key: tuple[str, ...]) -> Any:
        checker = Checker(lambda key: self._where(THRESHOLDS))
        try:
            return checker.call(part, checker.arguments(part, arguments, key), key)
        except ConfigError as error:
            raise ArtifactError(str(error)) from error


def _arguments(parts: Mapping[str, Any], family: str, part: type) -> Mapping[str, Any] | None:
    """The arguments of a part of a resolved composition; None where it is of another class."""
    spec = parts.get(family) or {}
    names = (part.__name__, f"{part.__module__.rpartition('.')[0]}.{part.__name__}")
    return spec["init_args"] if spec.get("class_path") in names else None


def _check_fields(content: Any, names: tuple[str, ...], prefix: str, where: str) -> None:
    """Refuse a value that is not an object with exactly these fields."""
    if not isinstance(content, dict):
        what = f"{prefix[:-1]} is {content!r}; an object" if prefix else "is no object; one"
        raise ArtifactError(f"{where}: {what} with {', '.join(names)} is expected")
    for name in names:
        if name not in content:
            raise ArtifactError(f"{where}: {prefix}{name} is missing")
    for name in content:
        if name not in names:
            raise ArtifactError(f"{where} has the unknown field {prefix + name!r}{did_you_mean(name, names)}")
