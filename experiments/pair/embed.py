"""``python -m experiments.pair.embed EXPORTED NAME``: pack an exported model in 8 bits as the embedded model NAME.

NAME is ``target``, ``draft`` or a size such as ``middle``. An existing model card is kept.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from safetensors.torch import load_file

from specexp.core.packed import pack
from specexp.models.sources import PAIRS


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command: pack one model."""
    parser = argparse.ArgumentParser(prog="python -m experiments.pair.embed")
    parser.add_argument("exported", type=Path)
    parser.add_argument("name")
    given = parser.parse_args(arguments)
    folder = PAIRS / "stdlib" / given.name
    folder.mkdir(exist_ok=True)
    for file in sorted(given.exported.glob("*.json")):
        shutil.copyfile(file, folder / file.name)
    pack(load_file(given.exported / "model.safetensors"), folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
