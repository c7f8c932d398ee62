"""The compositions of a file that are verified, and the tests that each of them needs."""

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
from specexp.core.sampling import Processors

if TYPE_CHECKING:
    from specexp.core.contracts import Verifier


@dataclass(frozen=True)
class Claim:
    """One composition and its claim."""

    arm: ComposedArm
    verifier: Verifier
    # temperature, top-k and top-p of the target; with temperature 0 there is one possible output
    law: tuple[float, int | None, float | None]

    @property
    def deterministic(self) -> bool:
        """Whether its outputs must equal plain decoding's token for token."""
        return self.verifier.sampling == "deterministic"

    @property
    def sampled(self) -> bool:
        """Whether its outputs have a law to be tested."""
        return self.law[0] > 0 or not self.deterministic

    @property
    def checks(self) -> list[str]:
        """The tests it needs."""
        found = ["token equality", "toy equality"] if self.deterministic else []
        found += ["toy joint"] if self.sampled else []
        return found + ([] if self.deterministic else ["first tokens"])


def our_arms(config: Config) -> tuple[Config, list[str]]:
    """Return the file with our own arms alone, in float32 if it names no dtype, and the names of the other arms.

    Raises:
        ConfigError: It decodes groups of sequences.
    """
    if is_multi_sequence(config):
        raise ConfigError(
            f"{config.file}: it decodes groups of sequences, and verify tests one at a time: python -m specexp.run "
            f"{config.file} compares every group with plain decoding, token for token"
        )
    arms: Mapping[str, Any] = config.get("arms") or {}
    left_out = [name for name, arm in arms.items() if arm.get("reference") or arm.get("engine")]
    layers = config.layers.copy()
    if left_out:
        ours = layers.values["arms"].items()
        layers.values["arms"] = {name: arm for name, arm in ours if name not in left_out}
    overrides: dict[str, Any] = {"baselines": ["engine"]}
    if "target_dtype" not in (layers.values.get("pair") or {}):
        overrides["pair.target_dtype"] = "float32"
    titles = [arms[name].get("title") or name for name in left_out]
    titles += [name for name in config.get("baselines") or () if name != "engine"]
    return apply_overrides(Config(layers, config.file), overrides, "specexp.verify"), titles


def claims_of(config: Config) -> list[Claim]:
    """Return every composition of a file, as of :func:`our_arms`, with its claim.

    Raises:
        ConfigError: A verifier does not state the law of its output.
    """
    claims = []
    for arm in arms_of(config):
        verifier = build_verifier(arm.config)
        temperature = verifier.noise_temperature
        processors = verifier.processors or (None if temperature is None else Processors(temperature))
        if processors is None:
            raise arm.config.checker.error(
                ("verifier",),
                f": {type(verifier).__name__} declares no processors, so the law its output should have is unknown "
                "and nothing can be verified",
            )
        law = float(processors.temperature), processors.top_k, processors.top_p
        claims.append(Claim(arm, verifier, law))
    return claims
