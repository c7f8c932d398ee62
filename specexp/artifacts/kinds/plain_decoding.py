"""The answer that speculating does not pay here, with the figures that say so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import ConfigDict
from typing_extensions import override

from specexp.artifacts.artifact import Artifact
from specexp.artifacts.error import ArtifactError
from specexp.artifacts.parts import PARTS, Spec
from specexp.artifacts.validated import validated

VERDICT = "verdict.json"


@dataclass(frozen=True)
class PlainVerdict:
    """Why nothing is drafted.

    Attributes:
        reason: one sentence, with the figures and their interval.
        best_found: version of the fastest composition that was found all the same, e.g. ``v1``.
        several_sequences: whether several sequences were decoded for every prompt.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    reason: str
    best_found: str
    several_sequences: bool = False


class PlainDecodingArtifact(Artifact):
    """``verdict.json``: do not speculate here, and why. A study leaves it as ``best`` where the confirmation's interval
    does not put what it found above plain decoding; that lies beside it as ``best-tree``.

    Its decoder decodes plainly, with the recorded verifier; so does its ``custom_generate``, for several rows too where
    the study was one of several sequences.

    Attributes:
        verdict: the content of the file.

    Example:
        >>> load_artifact("artifacts/tree_shape").verdict.reason  # doctest: +SKIP
        'chain of 2 is not told apart from plain decoding on these prompts: 0.89x [0.78, 1.02].'
    """

    kind = "plain-decoding"
    required = (VERDICT, PARTS)
    optional = ()
    plain = True
    purpose = "it says that speculating does not pay here, and best-tree beside it is what was found"
    made_from: ClassVar[Mapping[str, str]] = {"execution": VERDICT}

    @override
    def read(self, payloads: Mapping[str, Any]) -> None:
        self.verdict: PlainVerdict = validated(PlainVerdict, payloads[VERDICT], self.where(VERDICT))
        for family in self.recorded:
            if family != "verifier":
                raise ArtifactError(
                    f"{self.where(PARTS)}: {family} is recorded; plain decoding has a verifier alone"
                )

    @override
    def specs(self) -> dict[str, Spec]:
        if not self.verdict.several_sequences:
            return self.recorded
        return {
            **self.recorded,
            "execution": {"class_path": "specexp.scheduling.serial.Serial", "init_args": {}},
        }
