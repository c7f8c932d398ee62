"""``python -m specexp.config schema`` prints the JSON schema of experiment files."""

from __future__ import annotations

import sys
from collections.abc import Sequence

USAGE = """usage: python -m specexp.config schema

Prints the JSON schema with which editors complete and check experiment files. Editors look for it in
specexp/config/schema.json, which git ignores. To write it:
python -m specexp.config schema > specexp/config/schema.json"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given != ["schema"]:
        print(USAGE)
        return 0 if given in (["-h"], ["--help"]) else 2
    from specexp.config.json_schema import schema_text

    print(schema_text(), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
