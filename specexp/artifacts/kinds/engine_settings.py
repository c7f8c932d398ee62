"""Settings of somebody else's engine, as a study of that engine found them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from typing_extensions import override

from specexp.artifacts.artifact import Artifact
from specexp.artifacts.error import ArtifactError

SETTINGS = "settings.json"
_FIELDS = ("engine", "version", "settings")


class EngineSettingsArtifact(Artifact):
    """``settings.json``: ``engine``, the ``version`` that was measured, and its speculation's ``settings`` by its
    own names.

    ``python -m specexp.export ARTIFACT --to ENGINE`` writes what that engine's deployment loads. It composes no
    decoder.

    Attributes:
        engine: e.g. ``openvino``, as ``--to`` names it.
        version: what the engine said of itself.
        settings: the fields; the engine's rules are held against them when they are exported.
    """

    kind = "engine-settings"
    required = (SETTINGS,)
    optional = ()
    purpose = "settings of an engine are exported to that engine alone"

    @classmethod
    @override
    def payloads_of(cls, parts: Mapping[str, Any], attributes: Mapping[str, Any]) -> dict[str, Any] | None:
        found = attributes.get("engine")
        return None if found is None else {SETTINGS: dict(found)}

    @override
    def read(self, payloads: Mapping[str, Any]) -> None:
        content, where = payloads[SETTINGS], self.where(SETTINGS)
        if not isinstance(content, dict) or sorted(content) != sorted(_FIELDS):
            raise ArtifactError(f"{where} is no object with {', '.join(_FIELDS)} and nothing else")
        self.engine, self.version, self.settings = (content[name] for name in _FIELDS)
        if not isinstance(self.engine, str) or not isinstance(self.version, str):
            raise ArtifactError(f"{where}: engine and version are texts")
        if not isinstance(self.settings, dict):
            raise ArtifactError(f"{where}: settings is {self.settings!r}; fields by name are expected")
