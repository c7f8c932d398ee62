"""The composition of an artifact in the place of a file's own: to compare it, or to prove it."""

from __future__ import annotations

from typing import Any

from specexp.config.config import Config, apply_overrides
from specexp.config.errors import ConfigError


def with_artifact(config: Config) -> Config:
    """The experiment with the parts of its ``artifact``; of several arms, and of a search, nothing is left.

    What the artifact had learned is not taken along: its parts begin as the file's own would.

    Args:
        config: The experiment; as it is where it names no artifact.

    Raises:
        ConfigError: The artifact cannot be read, holds no parts, or decodes plainly.
    """
    path = config.get("artifact")
    if path is None:
        return config
    from specexp.artifacts import ArtifactError
    from specexp.artifacts.parts import FAMILIES
    from specexp.config.artifacts import load_artifact

    where = f"{config.source_of(('artifact',))}: artifact"
    trust = config.get("trust")
    try:
        artifact = load_artifact(path, [trust] if isinstance(trust, str) else trust)
    except ArtifactError as error:
        raise ConfigError(f"{where}: {error}") from error
    if artifact.plain:
        raise ConfigError(
            f"{where}: {path} decodes plainly, so that there is nothing to compare or prove; a study's best-tree drafts"
        )
    specs = artifact.specs()
    if "drafter" not in specs or "builder" not in specs:
        raise ConfigError(
            f"{where}: {path} is of kind {artifact.kind!r} and composes no decoder; one with a drafter and a builder "
            "is expected"
        )
    parts: dict[str, Any] = {family: specs[family] for family in FAMILIES if family in specs}
    found = apply_overrides(config, {**parts, "artifact": None, "sweep": None, "arms": {}}, str(path))
    found.artifact = str(path)
    return found
