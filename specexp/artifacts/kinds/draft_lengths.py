"""How much to draft by the load: nodes of a draft by the number of sequences that are decoded together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from typing_extensions import override

from specexp.artifacts.artifact import Artifact
from specexp.artifacts.error import ArtifactError
from specexp.artifacts.parts import PARTS, Spec, init_args_of

LENGTHS = "draft_lengths.json"
DRAFT_LENGTHS = "specexp.controllers.draft_lengths.DraftLengths"
"""Its controller."""


class DraftLengthsArtifact(Artifact):
    """``draft_lengths.json``: ``nodes``, most nodes of a draft by the number of lanes from which on that holds, a text;
    ``parts.json``: drafter, builder and verifier.

    It drives our own server alone. Engines that take draft lengths by batch size take other numbers: what a batch costs
    there is measured there.

    Attributes:
        nodes: the content of the file by number of lanes.

    Example:
        >>> load_artifact("artifacts/load/best").nodes  # doctest: +SKIP
        {1: 8, 4: 3, 8: 0}
    """

    kind = "draft-lengths"
    required = (LENGTHS, PARTS)
    optional = ()
    holds_state = True
    purpose = "it drives python -m specexp.serve, and what other engines take must be measured on them"
    made_from: ClassVar[Mapping[str, str]] = {"controller": LENGTHS}

    @classmethod
    @override
    def payloads_of(cls, parts: Mapping[str, Any], attributes: Mapping[str, Any]) -> dict[str, Any] | None:
        controller = init_args_of(parts.get("controller"), DRAFT_LENGTHS)
        if controller is None or parts.get("drafter") is None:
            return None
        nodes = {str(lanes): most for lanes, most in controller["nodes"].items()}
        return {LENGTHS: {"nodes": nodes}, PARTS: {**parts, "controller": None}}

    @override
    def read(self, payloads: Mapping[str, Any]) -> None:
        content, where = payloads[LENGTHS], self.where(LENGTHS)
        if not isinstance(content, dict) or not isinstance(content.get("nodes"), dict) or len(content) > 1:
            raise ArtifactError(f"{where} is no object with nodes, such as {{'nodes': {{'1': 8, '8': 0}}}}")
        if not all(lanes.isdecimal() for lanes in content["nodes"]):
            raise ArtifactError(f"{where}: nodes has keys that are no numbers of lanes, such as '1'")
        self.nodes: dict[int, int | None] = {int(lanes): most for lanes, most in content["nodes"].items()}
        if "controller" in self.recorded:
            raise ArtifactError(
                f"{self.where(PARTS)}: controller is recorded twice; {LENGTHS} alone states what it is made of"
            )

    @override
    def specs(self) -> dict[str, Spec]:
        return {
            **self.recorded,
            "controller": {"class_path": DRAFT_LENGTHS, "init_args": {"nodes": self.nodes}},
        }
