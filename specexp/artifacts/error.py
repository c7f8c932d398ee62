"""The one exception of everything that can be wrong with an artifact."""

from __future__ import annotations

_LONGEST = 1000


class ArtifactError(ValueError):
    """An artifact cannot be read, written or exported; one sentence names the folder and the field.

    What it quotes may be a stranger's: line breaks and control characters are escaped, and the middle of a sentence
    beyond 1,000 characters is left out.

    Args:
        sentence: what, where, and what is allowed.
    """

    def __init__(self, sentence: str) -> None:
        half = _LONGEST // 2
        short = sentence if len(sentence) <= _LONGEST else f"{sentence[:half]} [...] {sentence[-half:]}"
        super().__init__("".join(one if one.isprintable() else repr(one)[1:-1] for one in short))
