"""A corpus whose runs of tokens are looked up: what REST calls a data store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from specexp.artifacts.artifact import Artifact
from specexp.artifacts.parts import Spec, init_args_of

CORPUS = "corpus.safetensors"
_DRAFTER = "specexp.drafters.suffix_automaton.SuffixAutomaton"


class SuffixCorpusArtifact(Artifact):
    """``corpus.safetensors``: the int32 arrays ``tokens`` and ``suffixes`` of a
    :class:`~specexp.drafters.suffix_index.SuffixArray`.

    Its value is these arrays by name. Its drafter, the recorded suffix automaton or one with defaults, looks into them.
    """

    kind = "suffix-corpus"
    required = (CORPUS,)
    made_from: ClassVar[Mapping[str, str]] = {"drafter": CORPUS}

    @override
    def read(self, payloads: Mapping[str, Any]) -> None:
        self.value: dict[str, NDArray[np.int32]] = dict(payloads[CORPUS])

    @override
    def specs(self) -> dict[str, Spec]:
        known = init_args_of(self.recorded.get("drafter"), _DRAFTER) or {}
        drafter = {"class_path": _DRAFTER, "init_args": {**known, "corpus": self.value}}
        return {**self.recorded, "drafter": drafter}
