"""A tuned composition: all parts of a decoder, of whatever kind they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
    optional = ()

    @classmethod
    def payloads_of(cls, parts: Mapping[str, Any], attributes: Mapping[str, Any]) -> dict[str, Any] | None:
        """Of any candidate that drafts; what a controller or drafter learned beforehand has kinds of its own."""
        if parts.get("drafter") is None or any((attributes.get("learned") or {}).values()):
            return None
        return {PARTS: {**parts, "builder": fixed_tree(attributes) or parts["builder"]}}

    def read(self, payloads: Mapping[str, Any]) -> None:
        """A drafter and a builder must be there, and all parts must be what their constructors allow."""
        for family in ("drafter", "builder"):
            if self.part_specs.get(family) is None:
                raise ArtifactError(f"{self._where(PARTS)}: {family} is missing")
        _ = self.drafter, self.builder, self.verifier, self.controller
