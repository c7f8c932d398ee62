"""Parts of a decoder as an artifact records them: ``parts.json``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NotRequired

from pydantic import ConfigDict, with_config
from typing_extensions import TypedDict

from specexp.artifacts.validation import validated

PARTS = "parts.json"
FAMILIES = ("drafter", "builder", "verifier", "controller")

Spec = Mapping[str, Any]
"""``{"class_path": ..., "init_args": {...}}``: a part, or anything else that a constructor makes."""


@with_config(ConfigDict(extra="forbid"))
class PartSpec(TypedDict):
    """The schema of a :data:`Spec`."""

    class_path: str
    init_args: NotRequired[dict[str, Any]]


@with_config(ConfigDict(extra="forbid"))
class _Recorded(TypedDict, total=False):
    drafter: PartSpec | None
    builder: PartSpec | None
    verifier: PartSpec | None
    controller: PartSpec | None


def checked_specs(content: Any, where: str) -> dict[str, Spec]:
    """Return the recorded parts by family without those that are null; no class is imported.

    Raises:
        ArtifactError: a part is not null or ``{"class_path": ..., "init_args": {...}}``; ``where`` names the file.
    """
    validated(_Recorded, content, where)
    return {family: spec for family, spec in content.items() if spec is not None}


def init_args_of(spec: Spec | None, dotted: str) -> dict[str, Any] | None:
    """Return the arguments of a specification if it is of the class ``dotted``, else None.

    The class is named by the module that defines it; its short name and that of its family's package mean it too.

    Example:
        >>> init_args_of({"class_path": "Chain"}, "specexp.builders.regular_trees.Chain")
        {}
    """
    module, _, name = dotted.rpartition(".")
    package = module.rpartition(".")[0]
    if spec is None or spec.get("class_path") not in (name, f"{package}.{name}", dotted):
        return None
    return dict(spec.get("init_args") or {})
