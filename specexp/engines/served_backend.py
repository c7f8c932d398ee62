"""The backend that decodes with our loop and with other people's engines, side by side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from typing_extensions import override

from specexp.bench.arm import EngineArm
from specexp.bench.live import LiveBackend
from specexp.core.parts import Parts
from specexp.engines.served_arm import EnginePool, ServedArm

if TYPE_CHECKING:
    from specexp.bench.arm import Arm
    from specexp.bench.arm_spec import ArmSpec
    from specexp.bench.execution_arm import Solver
    from specexp.data.task_items import Problem
    from specexp.models.pair import ModelPair


class ServedBackend(LiveBackend):
    """A pair of models, and the engines that were started on it.

    Args:
        pair: The models.
        problems: See :class:`~specexp.bench.live.LiveBackend`.
        solver: The same.

    Attributes:
        pool: Its running engines; whoever made the backend closes it.
    """

    def __init__(
        self, pair: ModelPair, problems: Mapping[str, Problem] | None = None, solver: Solver | None = None
    ) -> None:
        super().__init__(pair, problems, solver)
        self.pool = EnginePool(pair)

    @override
    def arm(self, spec: ArmSpec) -> Arm:
        if spec.engine is None:
            return super().arm(spec)
        assert spec.parts is not None
        scorer = super().arm(replace(spec, engine=None, parts=Parts(verifier=spec.parts.verifier)))
        assert isinstance(scorer, EngineArm)
        return ServedArm(spec.name, spec.engine, self.pool, scorer)
