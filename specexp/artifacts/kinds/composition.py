"""A tuned composition: all parts of a decoder, of whatever kind they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from typing_extensions import override

from specexp.artifacts.artifact import Artifact
from specexp.artifacts.error import ArtifactError
from specexp.artifacts.kinds.static_tree import fixed_tree
from specexp.artifacts.parts import PARTS


class CompositionArtifact(Artifact):
    """``parts.json`` alone: ``class_path`` and ``init_args`` of drafter, builder, verifier and controller.

    The kind for a study over methods, whose winner may be a tree, a threshold or a chain. A fixed tree stands there by
    its rank paths, whichever builder found it. The draft model itself is the deployment's:
    ``artifact.decoder(target, draft)``.

    Example:
        >>> decoder = load_artifact("artifacts/fastest").decoder(pair.target, pair.draft)  # doctest: +SKIP
    """

    kind = "composition"
    required = (PARTS,)
    holds_state = True
    optional = ()

    @classmethod
    @override
    def payloads_of(cls, parts: Mapping[str, Any], attributes: Mapping[str, Any]) -> dict[str, Any] | None:
        if parts.get("drafter") is None:
            return None
        return {PARTS: {**parts, "builder": fixed_tree(attributes) or parts["builder"]}}

    @override
    def read(self, payloads: Mapping[str, Any]) -> None:
        for family in ("drafter", "builder"):
            if family not in self.recorded:
                raise ArtifactError(f"{self.where(PARTS)}: {family} is missing")
