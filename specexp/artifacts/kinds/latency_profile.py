"""Latency profiles: the duration of decoding steps on a device, measured by ``specexp.profile`` or written by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import Field, with_config
from typing_extensions import override

from specexp.artifacts.artifact import Artifact
from specexp.artifacts.validation import ArtifactError, validated
from specexp.core.latency import NEARLY_FREE, LatencyProfile, Milliseconds

PROFILE = "profile.json"


@with_config(extra="forbid")
@dataclass(frozen=True)
class MeasuredPass:
    """A measured pass over ``tokens`` tokens after ``prefix`` cached ones: the median ``ms`` and its 95% interval."""

    tokens: Annotated[int, Field(ge=1)]
    prefix: Annotated[int, Field(ge=0)]
    ms: Milliseconds
    low: Milliseconds
    high: Milliseconds


@with_config(extra="forbid")
@dataclass(frozen=True)
class Roofline:
    """A device's limits for target passes (Williams, Waterman and Patterson, 2009), measured with the profile."""

    parameters: Annotated[int, Field(ge=1)]  # number of weights that each row is multiplied by
    weight_bytes: Annotated[int, Field(ge=1)]  # size of these weights in bytes; each pass reads all of them
    bandwidth: Annotated[float, Field(gt=0)]  # bytes per second when that many bytes are read repeatedly
    memory_bandwidth: Annotated[float, Field(gt=0)]  # the same when more bytes are read than the caches hold
    flops: Annotated[float, Field(gt=0)]  # floating-point operations per second in torch's matrix product
    # 10th and 90th percentiles of ``bandwidth`` over the run; None if not measured
    bandwidths: tuple[float, float] | None = None

    def least_ms(self, rows: int) -> float:
        """Return the minimum time of a pass: reading the weights or computing the products, whichever takes longer."""
        return 1e3 * max(self.weight_bytes / self.bandwidth, 2 * self.parameters * rows / self.flops)

    @property
    def free_nodes(self) -> int:
        """The largest number of nodes that would be nearly free within these limits."""
        return max(int(NEARLY_FREE * self.least_ms(1) * self.flops / (2e3 * self.parameters)) - 1, 0)


@with_config(extra="ignore")  # older profiles have `arms`
@dataclass(frozen=True)
class Measured:
    """The measurements on which a profile is based."""

    device: str
    threads: Annotated[int, Field(ge=1)]  # number of CPU threads that torch used
    target_dtype: str
    draft_dtype: str | None  # dtype of the draft model; None if there is none
    target: list[MeasuredPass]
    draft: list[MeasuredPass]
    roofline: Roofline | None = None  # limits of the device; None if an engine holds the weights


class LatencyProfileArtifact(Artifact):
    """``profile.json``: all arguments of :class:`~specexp.core.latency.LatencyProfile`, with token counts as strings.

    A measured profile also has ``measured``: the points with their intervals, the device and the dtypes. The value is
    the profile, which an experiment uses as ``latency: {artifact: PATH}``. This kind has no decoder.

    Example:
        >>> load_artifact("artifacts/profile/best").profile.target_seconds(8)  # doctest: +SKIP
    """

    kind = "latency-profile"
    required: ClassVar[Mapping[str, Any]] = {PROFILE: Any}
    optional = ()
    purpose = "a latency profile is for experiments, as latency: {artifact: PATH}"
    written = "python -m specexp.profile FILE writes artifacts/profile/best"

    @override
    def read(self, payloads: Mapping[str, Any]) -> None:
        where = self.where(PROFILE)
        content = validated(dict[str, Any], payloads[PROFILE], where)
        values = {name: value for name, value in content.items() if name != "measured"}
        for name in ("modelled", "artifact"):  # these belong to the run that uses the profile
            if name in values:
                raise ArtifactError(f"{where}: {name} is a key of an experiment, not of a profile")
        for name in ("name", "source", "target_ms", "draft_ms"):
            if name not in values:
                raise ArtifactError(f"{where}: {name} is missing")
        self.value = self.profile = validated(LatencyProfile, values, where)
        self.measured: Measured | None = validated(Measured | None, content.get("measured"), where, "measured")
