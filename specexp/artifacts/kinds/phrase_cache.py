"""What a phrase cache learned: short continuations by the token they follow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from specexp.artifacts.artifact import Artifact
from specexp.artifacts.parts import PARTS, Spec, init_args_of

PHRASES = "phrases.safetensors"
ENTRIES = ("counts", "keys", "phrases", "uses")


class PhraseCacheArtifact(Artifact):
    """``phrases.safetensors``: the tensors ``counts``, ``keys``, ``phrases`` and ``uses`` of
    ``PhraseCache.store.state_dict()``.

    Its value is these tensors by name. Its drafter, the recorded phrase cache, or one without a drafter, starts every
    prompt from them.
    """

    kind = "phrase-cache"
    required = (PHRASES,)
    learned = "drafter"
    made_by = "specexp.drafters.phrase_cache.PhraseCache"
    made_from: ClassVar[Mapping[str, str]] = {"drafter": PHRASES}

    @classmethod
    @override
    def payloads_of(cls, parts: Mapping[str, Any], attributes: Mapping[str, Any]) -> dict[str, Any] | None:
        learned = cls.learned_in(parts, attributes)
        if learned is None:
            return None
        return {PHRASES: {name: np.asarray(learned[name]) for name in ENTRIES}, PARTS: dict(parts)}

    @override
    def read(self, payloads: Mapping[str, Any]) -> None:
        self.value: dict[str, NDArray[np.int64]] = dict(payloads[PHRASES])

    @override
    def specs(self) -> dict[str, Spec]:
        known = init_args_of(self.recorded.get("drafter"), self.made_by)
        if known is None:  # as much room as they take
            known = {
                "phrase_length": max(2, self._size("phrases", 1)),
                "max_keys": max(1, self._size("keys", 0)),
                "max_phrases": max(1, int(np.max(self.value.get("counts", 0), initial=0))),
            }
        start = {"state": "preloaded", "phrases": self.value}
        return {**self.recorded, "drafter": {"class_path": self.made_by, "init_args": {**known, **start}}}

    def _size(self, name: str, dimension: int) -> int:
        array = self.value.get(name)
        return array.shape[dimension] if array is not None and array.ndim > dimension else 0
