"""A study of somebody else's engine: its settings, paired with the same engine without speculation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from specexp.config import Config, build_engine
from specexp.core.messages import first_line
from specexp.engines.engine import ForeignEngine
from specexp.engines.served_arm import EnginePool, ServedArm
from specexp.sweep.live import LiveStudyBackend
from specexp.sweep.study_config import StudyConfig

if TYPE_CHECKING:
    from specexp.bench.arm import Arm, EngineArm
    from specexp.bench.equality import InFloat32
    from specexp.bench.record import PromptRecord
    from specexp.models.pair import ModelPair
    from specexp.sweep.confirmed import Confirmed


class EngineStudyBackend(LiveStudyBackend):
    """The engine, started once for all candidates that it can answer without a restart.

    Args:
        study_config: The experiment, with an ``engine:``.
        pair: Its models.

    Raises:
        ConfigError: As :func:`~specexp.config.build_engine`.
    """

    def __init__(self, study_config: StudyConfig, pair: ModelPair) -> None:
        build_engine(study_config.config)
        super().__init__(study_config, pair, None)
        self.pool = EnginePool(pair)

    @override
    def compose(self, name: str, config: Config) -> EngineArm:
        return self._served(name, build_engine(config))

    @override
    def plain(self) -> EngineArm:
        try:
            return self._served("engine", build_engine(self.study_config.config).plain())
        except ValueError as error:
            config = self.study_config.config
            raise config.checker.error(("engine",), f": {first_line(error)}") from error

    @override
    def other_arms(self) -> list[Arm]:
        return []

    @override
    def attributes_of(self, arm: EngineArm) -> dict[str, Any]:
        assert isinstance(arm, ServedArm)
        engine = arm.engine
        told = {
            "engine": engine.exported_as,
            "version": engine.version,
            "settings": engine.deployed_settings(),
        }
        return {"engine": told}

    @override
    def in_float32(self, confirmed: Sequence[Confirmed], records: Sequence[PromptRecord]) -> InFloat32 | None:
        return None

    @override
    def provenance(self, best: Confirmed) -> dict[str, Any]:
        return {}

    def _served(self, name: str, engine: ForeignEngine) -> EngineArm:
        return ServedArm(name, engine, self.pool, super().plain())
