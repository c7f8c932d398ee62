"""What steps cost on a device, as ``specexp.profile`` measured it or somebody wrote it down."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import ConfigDict, Field
from typing_extensions import override

from specexp.artifacts.artifact import Artifact
from specexp.artifacts.error import ArtifactError
from specexp.artifacts.validated import validated
from specexp.core.latency import LatencyProfile, Milliseconds

PROFILE = "profile.json"
_NEEDED = ("name", "source", "target_ms", "draft_ms")
_NOT_KEPT = ("modelled", "artifact")  # how a run uses a profile, not what it says


@dataclass(frozen=True)
class MeasuredPass:
    """A pass as it was measured.

    Attributes:
        tokens: tokens fed.
        prefix: tokens in the cache before it.
        ms: median milliseconds.
        low: lower end of the median's 95 % interval.
        high: upper end of that interval.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    tokens: Annotated[int, Field(ge=1)]
    prefix: Annotated[int, Field(ge=0)]
    ms: Milliseconds
    low: Milliseconds
    high: Milliseconds


@dataclass(frozen=True)
class MeasuredArm:
    """An arm that was decoded, and what the profile says of the same steps.

    Attributes:
        arm: the arm's name.
        composition: label of the overheads it is charged.
        tokens: tokens decoded.
        steps: steps it took.
        nodes: nodes drafted in them.
        measured_ms: measured milliseconds a token.
        predicted_ms: milliseconds a token that the profile gives the steps it took.
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
    """What a measured profile was made of.

    Attributes:
        device: where it was measured.
        threads: torch's on the CPU.
        target_dtype: dtype of the target's weights.
        draft_dtype: dtype of the draft's weights; None without a draft.
        target: passes of the target.
        draft: passes of the draft.
        arms: what was decoded; their steps are those the overheads were fitted to.
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
    """``profile.json``: the arguments of :class:`~specexp.core.latency.LatencyProfile`, all of them, tokens as text,
    and, where it was measured, ``measured``: the points with their intervals, device and dtypes.

    Its value is the profile, which an experiment takes as ``latency: {artifact: PATH}``. It composes no decoder.

    Attributes:
        profile: the milliseconds of this device.
        measured: what they were made of; None where they were written by hand.

    Example:
        >>> load_artifact("artifacts/profile/best").profile.target_seconds(8)  # doctest: +SKIP
    """

    kind = "latency-profile"
    required = (PROFILE,)
    optional = ()
    purpose = "a latency profile is for experiments, as latency: {artifact: PATH}"

    @override
    def read(self, payloads: Mapping[str, Any]) -> None:
        content, where = payloads[PROFILE], self.where(PROFILE)
        if not isinstance(content, dict):
            raise ArtifactError(f"{where} is no object; one with the arguments of LatencyProfile is expected")
        values = {name: value for name, value in content.items() if name != "measured"}
        for name in _NOT_KEPT:
            if name in values:
                raise ArtifactError(f"{where} has the field {name!r}, which belongs into an experiment")
        for name in _NEEDED:
            if name not in values:
                raise ArtifactError(f"{where}: {name} is missing")
        self.value = self.profile = validated(LatencyProfile, values, where)
        self.measured: Measured | None = None
        if content.get("measured") is not None:
            self.measured = validated(Measured, content["measured"], where, "measured")
