"""Values that a configuration may name instead of spelling them out."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Reference:
    """Marks an argument whose value may be given by reference in a configuration file.

    A constructor takes the plain value and reads no file. Where a configuration has a text in its place, that is the
    path of an artifact or of a file, ``wandb:entity/project/name:alias``, or the name of an embedded artifact
    (``stdlib:eagle``), and it is resolved when the part is built; the resolved configuration keeps the text.

    Args:
        kind: an artifact's kind, such as ``q-table``, or a kind of file, such as ``acceptance-vector``.

    Example:
        >>> RankPaths = Annotated[list[list[int]], Reference("static-tree")]  # doctest: +SKIP
    """

    kind: str
