"""``python -m specexp.config schema`` prints the JSON schema of experiment files."""

from __future__ import annotations

if __name__ == "__main__":  # before what takes seconds to import
    from specexp.core.start import begin

    begin()

import sys
from collections.abc import Sequence

from specexp.config.command import fail

USAGE = """usage: python -m specexp.config schema

Prints the JSON schema by which editors complete and check experiment files. They look for it in
specexp/config/schema.json, which git ignores: python -m specexp.config schema > specexp/config/schema.json"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given != ["schema"]:
        print(USAGE)
        known = not given or given[0] in ("-h", "--help")
        return (0 if given else 2) if known else fail(f"command line: {given[0]!r} is not known; say schema")
    from specexp.config.explain import schema_text

    print(schema_text(), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
