"""What a phrase cache learned: short continuations by the token they follow."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from specexp.artifacts.artifact import Artifact
from specexp.artifacts.error import ArtifactError
from specexp.artifacts.parts import PARTS, instantiate
from specexp.drafters.phrases import PhraseStore

if TYPE_CHECKING:
    from specexp.core.parts import Drafter

PHRASES = "phrases.safetensors"


class PhraseCacheArtifact(Artifact):
    """``phrases.safetensors``: the tensors ``counts``, ``keys``, ``phrases`` and ``uses`` of
    ``PhraseCache.store.state_dict()``.

    Attributes:
        phrases: the tensors by name.
    """

    kind = "phrase-cache"
    required = (PHRASES,)
    learned = "drafter"
    made_by = ("PhraseCache", "specexp.drafters.PhraseCache", "specexp.drafters.phrase_cache.PhraseCache")

    @classmethod
    def payloads_of(cls, parts: Mapping[str, Any], attributes: Mapping[str, Any]) -> dict[str, Any] | None:
        """Of a candidate whose phrase cache learned before it was measured."""
        learned = (attributes.get("learned") or {}).get("drafter")
        if not learned or (parts.get("drafter") or {}).get("class_path") not in cls.made_by:
            return None
        store = {name: np.asarray(learned[name]) for name in ("counts", "keys", "phrases", "uses")}
        return {PHRASES: store, PARTS: dict(parts)}

    def read(self, payloads: Mapping[str, Any]) -> None:
        """Four tensors that a store of their own size takes."""
        tensors: dict[str, NDArray[np.int64]] = dict(payloads[PHRASES])
        try:
            self._room = {
                "phrase_length": max(2, _size(tensors.get("phrases"), 1)),
                "max_keys": max(1, _size(tensors.get("keys"), 0)),
                "max_phrases": max(1, int(np.max(tensors.get("counts", 0), initial=0))),
            }
            PhraseStore(**self._room).load_state_dict(tensors)
        except ValueError as error:
            raise ArtifactError(f"{self._where(PHRASES)}: {error}") from error
        self.phrases = tensors

    @property
    def value(self) -> dict[str, NDArray[np.int64]]:
        """The tensors."""
        return self.phrases

    @cached_property
    def drafter(self) -> Drafter:
        """The recorded phrase cache, or one without a drafter, that starts every prompt from these phrases."""
        recorded = self.part_specs.get("drafter") or {}
        known = recorded.get("init_args", {}) if recorded.get("class_path") in self.made_by else self._room
        arguments = {**known, "state": "preloaded", "phrases": str(self.folder)}
        spec = {"class_path": "specexp.drafters.PhraseCache", "init_args": arguments}
        drafter: Drafter = instantiate("drafter", spec, self._where(PARTS))
        return drafter


def _size(array: NDArray[np.int64] | None, dimension: int) -> int:
    return array.shape[dimension] if array is not None and array.ndim > dimension else 0
