"""What Token Recycling learned: the candidates after every token."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from specexp.artifacts.artifact import Artifact
from specexp.artifacts.error import ArtifactError
from specexp.artifacts.parts import PARTS, Spec, init_args_of

MATRIX = "matrix.safetensors"


class AdjacencyMatrixArtifact(Artifact):
    """``matrix.safetensors``: the int32 tensor ``matrix`` of ``TokenRecycling.state_dict()``.

    Its value is the matrix, ``[V, k]`` candidate token ids, best first; -1 where there is none. Its drafter starts
    every prompt from it.
    """

    kind = "adjacency-matrix"
    required = (MATRIX,)
    learned = "drafter"
    made_by = "specexp.drafters.token_recycling.TokenRecycling"
    made_from: ClassVar[Mapping[str, str]] = {"drafter": MATRIX}

    @classmethod
    @override
    def payloads_of(cls, parts: Mapping[str, Any], attributes: Mapping[str, Any]) -> dict[str, Any] | None:
        learned = cls.learned_in(parts, attributes)
        if learned is None:
            return None
        return {MATRIX: {"matrix": np.asarray(learned["matrix"])}, PARTS: dict(parts)}

    @override
    def read(self, payloads: Mapping[str, Any]) -> None:
        arrays = payloads[MATRIX]
        if set(arrays) != {"matrix"}:
            raise ArtifactError(
                f"{self.where(MATRIX)} holds {sorted(arrays)}; one tensor named 'matrix' is expected"
            )
        self.value: NDArray[np.int32] = arrays["matrix"]
        recorded = init_args_of(self.recorded.get("drafter"), self.made_by) or {}
        if self.value.ndim == 2 and recorded.get("k", self.value.shape[1]) != self.value.shape[1]:
            raise ArtifactError(
                f"{self.where(PARTS)}: drafter.init_args.k is {recorded['k']!r}, and the matrix of {MATRIX} has "
                f"{self.value.shape[1]} columns; both files must hold the same number"
            )

    @override
    def specs(self) -> dict[str, Spec]:
        recorded = init_args_of(self.recorded.get("drafter"), self.made_by) or {}
        k = self.value.shape[1] if self.value.ndim == 2 else 1
        start = {"k": k, "state": "preloaded", "matrix": self.value}
        return {**self.recorded, "drafter": {"class_path": self.made_by, "init_args": {**recorded, **start}}}
