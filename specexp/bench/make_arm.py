"""From what is to be measured to an arm that measures it: the one place where arms are made."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from specexp.bench.preload import preloaded
from specexp.config import ConfigError, build_parts
from specexp.core.messages import first_line

if TYPE_CHECKING:
    from specexp.bench.arm import Arm
    from specexp.bench.arm_spec import ArmSpec, Backend


def make_arm(spec: ArmSpec, backend: Backend) -> Arm:
    """Make an arm: compose its parts, let them learn from other prompts where that is asked for, give it the models.

    Args:
        spec: What the arm is.
        backend: What runs it.

    Raises:
        ConfigError: Parts cannot be made, do not go together or with the models, or cannot learn; the sentence names
            ``spec.where``.
        ValueError: The same, of a specification that says no ``where``.

    Example:
        >>> backend = LiveBackend(load_pair("stdlib"))  # doctest: +SKIP
        >>> make_arm(ArmSpec("chain", Generation(), Parts(drafter, Chain(4))), backend)  # doctest: +SKIP
    """
    try:
        if spec.parts is None:
            assert spec.config is not None, "a specification has parts, or a configuration that says which"
            spec = replace(spec, parts=build_parts(spec.config, backend.draft))
        if spec.preload is not None:
            spec = preloaded(spec, backend)
        return backend.arm(spec)
    except ConfigError:
        raise
    except ValueError as error:
        if not spec.where:
            raise
        raise ConfigError(f"{spec.where}: {first_line(error)}") from error
