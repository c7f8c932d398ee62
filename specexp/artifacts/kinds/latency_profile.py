"""The time of decoding steps on a device, measured by ``specexp.profile`` or written by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import ConfigDict, Field
from typing_extensions import override

from specexp.artifacts.artifact import Artifact
from specexp.artifacts.validation import ArtifactError, validated
from specexp.core.latency import LatencyProfile, Milliseconds

PROFILE = "profile.json"


@dataclass(frozen=True)
class MeasuredPass:
    """A measured pass over ``tokens`` with ``prefix`` cached tokens: median ``ms`` and its 95 % interval."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    tokens: Annotated[int, Field(ge=1)]
    prefix: Annotated[int, Field(ge=0)]
    ms: Milliseconds
    low: Milliseconds
    high: Milliseconds


@dataclass(frozen=True)
class MeasuredArm:
    """An arm that was decoded, with its measured time and the profile's prediction for the same steps.

    Attributes:
        composition: Label of the overheads in the profile that apply to the arm.
        nodes: Total number of drafted nodes, over all steps.
        measured_ms: Measured milliseconds per token.
        predicted_ms: Predicted milliseconds per token.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    arm: str
    composition: str
    tokens: Annotated[int, Field(ge=1)]
    steps: Annotated[int, Field(ge=1)]
    nodes: Annotated[int, Field(ge=0)]
    measured_ms: Milliseconds
    predicted_ms: Milliseconds


@dataclass(frozen=True)
class Measured:
    """The measurements from which a profile was made.

    Attributes:
        threads: Number of CPU threads of torch.
        draft_dtype: Dtype of the draft; None without a draft.
        arms: Decoded arms; the overheads were fitted to their steps.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    device: str
    threads: Annotated[int, Field(ge=1)]
    target_dtype: str
    draft_dtype: str | None
    target: list[MeasuredPass]
    draft: list[MeasuredPass]
    arms: list[MeasuredArm]


class LatencyProfileArtifact(Artifact):
    """``profile.json``: all arguments of :class:`~specexp.core.latency.LatencyProfile`; token counts are text keys.

    A measured profile also has ``measured``: the points with their intervals, device and dtypes. Its value is the
    profile, which an experiment uses as ``latency: {artifact: PATH}``. The kind has no decoder.

    Example:
        >>> load_artifact("artifacts/profile/best").profile.target_seconds(8)  # doctest: +SKIP
    """

    kind = "latency-profile"
    required: ClassVar[Mapping[str, Any]] = {PROFILE: Any}
    optional = ()
    purpose = "a latency profile is for experiments, as latency: {artifact: PATH}"

    @override
    def read(self, payloads: Mapping[str, Any]) -> None:
        where = self.where(PROFILE)
        content = validated(dict[str, Any], payloads[PROFILE], where)
        values = {name: value for name, value in content.items() if name != "measured"}
        for name in ("modelled", "artifact"):  # they belong to the run that uses a profile
            if name in values:
                raise ArtifactError(f"{where}: {name} is a key of an experiment, not of a profile")
        for name in ("name", "source", "target_ms", "draft_ms"):
            if name not in values:
                raise ArtifactError(f"{where}: {name} is missing")
        self.value = self.profile = validated(LatencyProfile, values, where)
        measured = content.get("measured")
        self.measured: Measured | None = validated(Measured | None, measured, where, "measured")
