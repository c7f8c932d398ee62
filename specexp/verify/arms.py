"""What is to be verified of a file: its compositions, and which tests each of them calls for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from specexp.config import (
    ComposedArm,
    Config,
    ConfigError,
    apply_overrides,
    arms_of,
    build_verifier,
    is_multi_sequence,
)
from specexp.config.layers import Layers

if TYPE_CHECKING:
    from specexp.core.verifier import Verifier


@dataclass(frozen=True)
class Law:
    """What the target is sampled with; a temperature of 0 leaves one possible output."""

    temperature: float
    top_k: int | None
    top_p: float | None


@dataclass(frozen=True)
class Claim:
    """One composition and what is claimed of it.

    Attributes:
        arm: Arm of the file.
        verifier: Its verifier.
        law: Law of its output.
    """

    arm: ComposedArm
    verifier: Verifier
    law: Law

    @property
    def deterministic(self) -> bool:
        """Whether its outputs must equal plain decoding's token for token."""
        return self.verifier.sampling == "deterministic"

    @property
    def sampled(self) -> bool:
        """Whether its outputs have a law to be tested."""
        return self.law.temperature > 0 or not self.deterministic

    @property
    def checks(self) -> list[str]:
        """The tests it calls for."""
        found = ["token equality", "toy equality"] if self.deterministic else []
        found += ["toy joint"] if self.sampled else []
        return found + ([] if self.deterministic else ["first tokens"])


def ours(config: Config) -> tuple[Config, list[str]]:
    """The file with our own arms alone, in float32 where it names no dtype; and the arms left out.

    Args:
        config: Configuration of the experiment.

    Raises:
        ConfigError: it decodes groups of sequences.
    """
    if is_multi_sequence(config):
        raise ConfigError(
            f"{config.file}: it decodes groups of sequences, and verify looks at one at a time: python -m specexp.run "
            f"{config.file} compares every group with plain decoding, token for token"
        )
    arms: Mapping[str, Any] = config.get("arms") or {}
    left_out = [name for name, arm in arms.items() if arm.get("reference") or arm.get("engine")]
    layers = config.layers.copy()
    if left_out:
        layers.values["arms"] = {
            name: arm for name, arm in layers.values["arms"].items() if name not in left_out
        }
    kept = Config(layers, config.file)
    overrides: dict[str, Any] = {"baselines": ["engine"]}
    if not _names_dtype(layers):
        overrides["pair.target_dtype"] = "float32"
    titles = [arms[name].get("title") or name for name in left_out]
    return apply_overrides(kept, overrides, "specexp.verify"), titles + [
        name for name in config.get("baselines") or () if name != "engine"
    ]


def _names_dtype(layers: Layers) -> bool:
    return "target_dtype" in (layers.values.get("pair") or {})


def claims_of(config: Config) -> list[Claim]:
    """Every composition of a file, with what is claimed of it.

    Args:
        config: What :func:`ours` gave.

    Raises:
        ConfigError: a verifier does not state the law of its output.
    """
    claims = []
    for arm in arms_of(config):
        verifier = build_verifier(arm.config)
        claims.append(Claim(arm, verifier, _law(arm, verifier)))
    return claims


def _law(arm: ComposedArm, verifier: Verifier) -> Law:
    temperature = verifier.noise_temperature
    temperature = getattr(verifier, "temperature", None) if temperature is None else temperature
    if temperature is None:
        raise arm.config.checker.error(
            ("verifier",),
            f": {type(verifier).__name__} has no attribute temperature, so the law its output should have is unknown "
            "and nothing can be verified",
        )
    return Law(float(temperature), getattr(verifier, "top_k", None), getattr(verifier, "top_p", None))
