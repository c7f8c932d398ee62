"""The machine: processor, memory, disk, what else runs on it, and the devices that torch sees."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Iterator
from pathlib import Path

from specexp.commands.doctor.diagnosis import Diagnosis

_FASTER = {
    "avx2": "AVX2",
    "avx512f": "AVX-512",
    "avx512_bf16": "AVX-512 BF16",
    "amx_bf16": "AMX",
    "asimd": "NEON",
}
"""What compiled passes and libraries gain by, as Linux calls it."""
_BUSY = 0.25
"""Load a core, at which measured seconds are no longer the machine's own."""
_LITTLE_DISK = 2e9


def processor() -> Iterator[Diagnosis]:
    """Cores, instructions and what else is running."""
    lines = _lines("/proc/cpuinfo")
    name = lines.get("model name") or platform.processor() or platform.machine()
    flags = set((lines.get("flags") or lines.get("Features") or "").split())
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    found = ", ".join(shown for flag, shown in _FASTER.items() if flag in flags)
    yield Diagnosis(
        "processor", f"{name}, {cores} of {os.cpu_count()} cores usable" + (f", {found}" if found else "")
    )
    if flags and not flags & {"avx512_bf16", "amx_bf16", "bf16"}:
        yield Diagnosis(
            "bfloat16",
            "this processor multiplies no bfloat16 numbers",
            "note",
            "passes of several rows cost more than with it; --pair.target_dtype float32 may be as fast",
        )
    if hasattr(os, "getloadavg"):
        load = os.getloadavg()[0]
        if load > _BUSY * cores:
            yield Diagnosis(
                "load",
                f"{load:.1f} processes were running on average in the last minute",
                "note",
                "measured seconds are the machine's own only where nothing else runs",
            )


def memory() -> Iterator[Diagnosis]:
    """Of the machine, and where things are written."""
    known = _lines("/proc/meminfo")
    if "MemTotal" in known:
        total, free = (int(known[key].split()[0]) * 1024 for key in ("MemTotal", "MemAvailable"))
        yield Diagnosis("memory", f"{_giga(free)} of {_giga(total)} free")
    for what, folder in (
        ("results", Path.cwd()),
        ("temporary files", Path(os.environ.get("TMPDIR", "/tmp"))),
    ):
        if folder.is_dir():
            free = shutil.disk_usage(folder).free
            writable = os.access(folder, os.W_OK)
            if not writable:
                yield Diagnosis(
                    "disk", f"{folder} ({what}) cannot be written", "problem", "go to a folder that can"
                )
            elif free < _LITTLE_DISK:
                yield Diagnosis(
                    "disk", f"{_giga(free)} free in {folder} ({what})", "note", "recordings may not fit"
                )
            else:
                yield Diagnosis("disk", f"{_giga(free)} free in {folder} ({what})")


def devices() -> Iterator[Diagnosis]:
    """What torch can run a model on."""
    import torch

    threads, cores = (
        torch.get_num_threads(),
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0,
    )
    if cores and threads < cores:
        yield Diagnosis(
            "threads",
            f"torch uses {threads} of {cores} cores",
            "note",
            "OMP_NUM_THREADS or generation.threads says so",
        )
    if torch.cuda.is_available():
        for number in range(torch.cuda.device_count()):
            about = torch.cuda.get_device_properties(number)
            yield Diagnosis(f"cuda:{number}", f"{about.name}, {_giga(about.total_memory)}")
    elif shutil.which("nvidia-smi"):
        built = torch.version.cuda or "no CUDA"
        yield Diagnosis(
            "cuda",
            f"there is an NVIDIA driver, and torch {torch.__version__}, built for {built}, does not see a GPU",
            "note",
            "install the torch of your CUDA version (pytorch.org, Get started)",
        )
    elif torch.backends.mps.is_available():
        yield Diagnosis("mps", "Apple's GPU", "note", "it was never measured; pair.device mps takes it")
    else:
        yield Diagnosis("gpu", "none; models run on the processor (pair.device cpu)")


def _lines(file: str) -> dict[str, str]:
    """The first of each name in a file of ``name: value`` lines; nothing where there is no such file."""
    found: dict[str, str] = {}
    path = Path(file)
    for line in path.read_text().splitlines() if path.exists() else ():
        name, _, value = line.partition(":")
        found.setdefault(name.strip(), value.strip())
    return found


def _giga(size: float) -> str:
    return f"{size / 1e9:.1f} GB"
