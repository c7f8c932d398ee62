"""What Token Recycling learned: the candidates after every token."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from specexp.artifacts.artifact import Artifact
from specexp.artifacts.error import ArtifactError
from specexp.artifacts.parts import PARTS, instantiate

if TYPE_CHECKING:
    from specexp.core.parts import Drafter

MATRIX = "matrix.safetensors"


class AdjacencyMatrixArtifact(Artifact):
    """``matrix.safetensors``: the int32 tensor ``matrix`` of ``TokenRecycling.state_dict()``.

    Attributes:
        matrix: ``[V, k]`` candidate token ids, best first; -1 where there is none.
    """

    kind = "adjacency-matrix"
    required = (MATRIX,)
    learned = "drafter"
    made_by = (
        "TokenRecycling",
        "specexp.drafters.TokenRecycling",
        "specexp.drafters.token_recycling.TokenRecycling",
    )

    @classmethod
    def payloads_of(cls, parts: Mapping[str, Any], attributes: Mapping[str, Any]) -> dict[str, Any] | None:
        """Of a candidate whose matrix other prompts filled before it was measured."""
        learned = (attributes.get("learned") or {}).get("drafter")
        if not learned or (parts.get("drafter") or {}).get("class_path") not in cls.made_by:
            return None
        return {MATRIX: {"matrix": learned["matrix"]}, PARTS: dict(parts)}

    def read(self, payloads: Mapping[str, Any]) -> None:
        """One int32 matrix of token ids of its own vocabulary."""
        where = self._where(MATRIX)
        arrays = payloads[MATRIX]
        if set(arrays) != {"matrix"}:
            raise ArtifactError(f"{where} holds {sorted(arrays)}; one tensor named 'matrix' is expected")
        matrix: NDArray[np.int32] = arrays["matrix"]
        if matrix.dtype != np.int32 or matrix.ndim != 2 or 0 in matrix.shape:
            raise ArtifactError(
                f"{where}: matrix is {matrix.dtype} {list(matrix.shape)}; int32 [V, k] is expected"
            )
        if matrix.min() < -1 or matrix.max() >= matrix.shape[0]:
            raise ArtifactError(
                f"{where}: matrix holds ids from {matrix.min()} to {matrix.max()}; "
                f"-1 to {matrix.shape[0] - 1} are expected"
            )
        self.matrix = matrix

    @property
    def value(self) -> NDArray[np.int32]:
        """The matrix."""
        return self.matrix

    @cached_property
    def drafter(self) -> Drafter:
        """Token Recycling that starts every prompt from this matrix."""
        recorded = self.part_specs.get("drafter") or {}
        start = {"k": int(self.matrix.shape[1]), "state": "preloaded", "matrix": str(self.folder)}
        arguments = {**recorded.get("init_args", {}), **start}
        spec = {"class_path": "specexp.drafters.TokenRecycling", "init_args": arguments}
        drafter: Drafter = instantiate("drafter", spec, self._where(PARTS))
        return drafter
