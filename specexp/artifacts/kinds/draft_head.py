"""A small network that drafts from a target's hidden states, trained for that target alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from specexp.artifacts.artifact import Artifact
from specexp.artifacts.error import ArtifactError
from specexp.artifacts.parts import PARTS, Spec

HEAD = "head.safetensors"


class DraftHeadArtifact(Artifact):
    """``head.safetensors``: the arrays of a head; ``parts.json`` names the drafter that reads them.

    Its value is these arrays by name.
    """

    kind = "draft-head"
    required = (HEAD, PARTS)
    optional = ()
    made_from: ClassVar[Mapping[str, str]] = {"drafter": HEAD}

    @override
    def read(self, payloads: Mapping[str, Any]) -> None:
        self.value: dict[str, NDArray[np.float32]] = dict(payloads[HEAD])
        for name, array in self.value.items():
            if not np.isfinite(array).all():
                raise ArtifactError(f"{self.where(HEAD)}: {name!r} holds numbers that are not finite")
        if "drafter" not in self.recorded:
            raise ArtifactError(
                f"{self.where(PARTS)} names no drafter: the one that reads the head is expected"
            )

    @override
    def specs(self) -> dict[str, Spec]:
        drafter = self.recorded["drafter"]
        arguments = {**drafter.get("init_args", {}), "head": self.value}
        return {**self.recorded, "drafter": {**drafter, "init_args": arguments}}
