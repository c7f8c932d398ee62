"""An interpreter of an environment with vLLM, as a program: it starts the fake server and writes down its arguments."""

import sys
from pathlib import Path

from helpers import fake_server


def fake_vllm(folder: Path, drafting: str = "") -> tuple[Path, Path]:
    """Return the program and the file that gets a line of arguments for every server.

    Args:
        drafting: arguments of the fake server if it speculates, such as ``--wrong 3``.
    """
    program, words = folder / "python", folder / "words.txt"
    program.write_text(
        f"#!{sys.executable}\nimport os, sys\n"
        "if sys.argv[1] == '-c':\n    sys.exit(print('0.32.0'))\n"
        f"print(*sys.argv[1:], file=open({str(words)!r}, 'a'))\n"
        f"more = {drafting.split()} if '--speculative-config' in sys.argv else []\n"
        "port = sys.argv[sys.argv.index('--port') + 1]\n"
        f"os.execv({sys.executable!r}, [{sys.executable!r}, {fake_server.__file__!r}, port, *more])\n"
    )
    program.chmod(0o755)
    return program, words
