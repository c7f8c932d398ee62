"""``python -m specexp.why``: explains where a composition or, with ``--endpoint URL``, a server loses time."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from specexp.replay.advice import why
from specexp.servers.options import watches_server


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not watches_server(given):
        return why.main(arguments)
    from specexp.servers.why import why_endpoint

    return why_endpoint(given)
