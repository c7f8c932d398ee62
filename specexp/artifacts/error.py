"""The one exception of everything that can be wrong with an artifact."""

from __future__ import annotations


class ArtifactError(ValueError):
    """An artifact cannot be read, written or exported; one sentence names the folder and the field."""
