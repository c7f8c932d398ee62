"""A tuned execution strategy: how several sequences are decoded together, and the parts of each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from typing_extensions import override

from specexp.artifacts.artifact import Artifact
from specexp.artifacts.error import ArtifactError
from specexp.artifacts.parts import PARTS, Spec, check_spec, init_args_of

SCHEDULE = "schedule.json"
_PLAIN = "specexp.scheduling.serial.Serial"


class ScheduleArtifact(Artifact):
    """``schedule.json``: an execution strategy as ``class_path`` and ``init_args``, e.g. ``{"class_path": "Scheduled",
    "init_args": {"n": 3}}``.

    ``parts.json`` holds what every sequence is decoded with; the draft model itself is the deployment's. A schedule
    runs in our own loop, also inside Hugging Face's ``generate``. Engines that batch requests themselves take no
    strategy from outside: of a schedule only the drafts can be exported.

    Example:
        >>> schedule = load_artifact("artifacts/schedule/best")  # doctest: +SKIP
        >>> with schedule.open(pair.target, pair.draft) as executor:  # doctest: +SKIP
        ...     run = executor.run([Job(prompt, sequence=number) for number in range(6)])
    """

    kind = "schedule"
    required = (SCHEDULE,)
    holds_state = True
    made_from: ClassVar[Mapping[str, str]] = {"execution": SCHEDULE}

    @classmethod
    @override
    def payloads_of(cls, parts: Mapping[str, Any], attributes: Mapping[str, Any]) -> dict[str, Any] | None:
        execution = attributes.get("execution")
        if execution is None or init_args_of(execution, _PLAIN) is not None or parts.get("drafter") is None:
            return None
        return {SCHEDULE: dict(execution), PARTS: dict(parts)}

    @override
    def read(self, payloads: Mapping[str, Any]) -> None:
        self.schedule: dict[str, Any] = payloads[SCHEDULE]
        where = self.where(SCHEDULE)
        check_spec(self.schedule, where)
        if init_args_of(self.schedule, _PLAIN) is not None:
            raise ArtifactError(
                f"{where}: class_path is {self.schedule['class_path']!r}, plain decoding; a strategy that drafts is "
                "expected, such as Scheduled"
            )

    @override
    def specs(self) -> dict[str, Spec]:
        return {**self.recorded, "execution": self.schedule}
