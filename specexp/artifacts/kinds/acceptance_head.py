"""What SpecDecPlusPlus learned: how probably a draft is accepted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from specexp.artifacts.artifact import Artifact
from specexp.artifacts.error import ArtifactError
from specexp.artifacts.parts import PARTS, Spec, init_args_of

HEAD = "head.safetensors"
_ARRAYS = ("recent", "squares", "weights")


class AcceptanceHeadArtifact(Artifact):
    """``head.safetensors``: the float64 arrays ``weights``, ``squares`` and ``recent`` of
    ``SpecDecPlusPlus.state_dict()``.

    Its value is these arrays by name. Its controller is the recorded one, or one with defaults, which learns no more.
    """

    kind = "acceptance-head"
    required = (HEAD,)
    learned = "controller"
    made_by = "specexp.controllers.spec_dec_plus_plus.SpecDecPlusPlus"
    made_from: ClassVar[Mapping[str, str]] = {"controller": HEAD}

    @classmethod
    @override
    def payloads_of(cls, parts: Mapping[str, Any], attributes: Mapping[str, Any]) -> dict[str, Any] | None:
        learned = cls.learned_in(parts, attributes)
        if learned is None:
            return None
        return {HEAD: {name: np.asarray(learned[name]) for name in _ARRAYS}, PARTS: dict(parts)}

    @override
    def read(self, payloads: Mapping[str, Any]) -> None:
        self.value: dict[str, NDArray[np.float64]] = dict(payloads[HEAD])
        for name, array in self.value.items():
            if not np.isfinite(array).all():
                raise ArtifactError(f"{self.where(HEAD)}: {name!r} holds numbers that are not finite")

    @override
    def specs(self) -> dict[str, Spec]:
        known = init_args_of(self.recorded.get("controller"), self.made_by) or {}
        arguments = {**known, "learn": False, "head": self.value}
        return {**self.recorded, "controller": {"class_path": self.made_by, "init_args": arguments}}
