"""Where what is made once a machine is kept between runs."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder(what: str) -> Path:
    """``specexp/<what>`` in ``XDG_CACHE_HOME``, or in ``~/.cache``; it may not be there yet."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "specexp" / what
