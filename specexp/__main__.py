"""``python -m specexp``: the list of commands."""

from __future__ import annotations

import ast
import sys
from pathlib import Path


def commands() -> dict[str, str]:
    """Return the first sentence about each command, by name. No command is imported."""
    found = {}
    for file in sorted(Path(__file__).parent.glob("*/__main__.py")):
        doc = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
        sentence = " ".join(doc.partition("\n\n")[0].split())
        found[file.parent.name] = sentence.partition("``: ")[2].replace("``", "")
    return found


def main() -> int:
    """Print the list."""
    print("usage: python -m specexp.COMMAND ...; --help after a command explains it.\n")
    for name, sentence in commands().items():
        print(f"  {name:<10} {sentence}")
    print("\nNext: python -m specexp.doctor")
    return 0


if __name__ == "__main__":
    sys.exit(main())
