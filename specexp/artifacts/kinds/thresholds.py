"""Tuned thresholds: how far DySpec's trees grow, and how the draft model is sampled for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from typing_extensions import override

from specexp.artifacts.artifact import Artifact
from specexp.artifacts.error import ArtifactError
from specexp.artifacts.parts import PARTS, Spec, init_args_of
from specexp.core.messages import did_you_mean

THRESHOLDS = "thresholds.json"
_BUILDER = "specexp.builders.dyspec.DySpecThreshold"
_DRAFTER = "specexp.drafters.draft_model.DraftModel"
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
        thresholds: the content of the file.
    """

    kind = "thresholds"
    required = (THRESHOLDS,)
    holds_state = True
    made_from: ClassVar[Mapping[str, str]] = {"builder": THRESHOLDS, "drafter": THRESHOLDS}

    @classmethod
    @override
    def payloads_of(cls, parts: Mapping[str, Any], attributes: Mapping[str, Any]) -> dict[str, Any] | None:
        tree, draft = (
            init_args_of(parts.get("builder"), _BUILDER),
            init_args_of(parts.get("drafter"), _DRAFTER),
        )
        if tree is None or draft is None:
            return None
        thresholds = {name: tree[name] for name in _TREE} | {"draft": {name: draft[name] for name in _DRAFT}}
        return {THRESHOLDS: thresholds, PARTS: {name: parts[name] for name in ("verifier", "controller")}}

    @override
    def read(self, payloads: Mapping[str, Any]) -> None:
        content, where = payloads[THRESHOLDS], self.where(THRESHOLDS)
        _check_fields(content, (*_TREE, "draft"), "", where)
        _check_fields(content["draft"], _DRAFT, "draft.", where)
        self.thresholds: dict[str, Any] = content
        for family in self.made_from:
            if family in self.recorded:
                raise ArtifactError(
                    f"{self.where(PARTS)}: {family} is recorded twice; {THRESHOLDS} alone states what it is made of"
                )

    @override
    def specs(self) -> dict[str, Spec]:
        tree = {name: self.thresholds[name] for name in _TREE}
        builder = {"class_path": _BUILDER, "init_args": tree}
        drafter = {"class_path": _DRAFTER, "init_args": self.thresholds["draft"]}
        return {**self.recorded, "builder": builder, "drafter": drafter}


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
