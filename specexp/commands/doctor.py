"""``python -m specexp.doctor``: what this machine can do, what would be slow, and what to do about it."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from specexp.core.runtime import Runtime

Verdict = Literal["ok", "note", "problem"]
"""A note is what costs time or is left out; a problem is what keeps specexp from working."""


@dataclass(frozen=True)
class Diagnosis:
    """One thing that was looked at.

    Attributes:
        topic: what, in a word or two.
        said: what it is.
        verdict: how that is.
        advice: what to do about it; empty where nothing is to be done.
    """

    topic: str
    said: str
    verdict: Verdict = "ok"
    advice: str = ""


_EXTRAS = {
    "llama-cpp": "GGUF files as models",
    "openvino": "OpenVINO GenAI measured beside our own backends",
    "serve": "an OpenAI-compatible server",
    "cluster": "studies on many machines",
    "dashboard": "W&B workspaces and optuna-dashboard",
}


def packages() -> Iterator[Diagnosis]:
    """Python, specexp, and every package it needs."""
    from packaging.requirements import Requirement

    yield Diagnosis("python", f"{platform.python_version()} on {platform.platform(terse=True)}")
    try:
        needed = [Requirement(line) for line in requires("specexp") or ()]
        yield Diagnosis("specexp", version("specexp"))
    except PackageNotFoundError:
        yield Diagnosis("specexp", "not installed", "problem", "pip install -e . in its folder")
        return
    met: list[str] = []
    for one in needed:
        if one.marker is not None and not one.marker.evaluate({"extra": ""}):
            continue
        found = _version(one.name)
        if found is None or not one.specifier.contains(found, prereleases=True):
            has = "is not installed" if found is None else f"{found} is installed"
            yield Diagnosis(one.name, f"{has}, and {one} is needed", "problem", f"pip install '{one}'")
        else:
            met.append(f"{one.name} {found}")
    yield Diagnosis("packages", ", ".join(met))


def extras() -> Iterator[Diagnosis]:
    """Features that are missing without them."""
    from packaging.requirements import Requirement

    try:
        needed = [Requirement(line) for line in requires("specexp") or ()]
    except PackageNotFoundError:
        return
    for extra, gives in _EXTRAS.items():
        own = [
            one for one in needed if one.marker and f'extra == "{extra}"' in str(one.marker).replace("'", '"')
        ]
        if not own:
            continue
        missing = [one.name for one in own if _version(one.name) is None]
        if missing:
            yield Diagnosis(
                extra,
                f"not installed ({', '.join(missing)}): {gives}",
                "note",
                f"pip install 'specexp[{extra}]'",
            )
        else:
            yield Diagnosis(extra, ", ".join(f"{one.name} {_version(one.name)}" for one in own))


def tracking() -> Iterator[Diagnosis]:
    """Where W&B runs go."""
    from specexp.tracking.mode import logged_in, resolve_mode

    mode = resolve_mode()
    where = "logged in" if logged_in() else "nobody is logged in"
    advice = "" if mode == "online" else "wandb login sends them; a command prints how to send them later"
    yield Diagnosis("wandb", f"runs are {mode}; {where}", "ok" if mode == "online" else "note", advice)


def caches() -> Iterator[Diagnosis]:
    """Where models and compiled passes are kept."""
    from huggingface_hub.constants import HF_HUB_CACHE, HF_HUB_OFFLINE

    from specexp.core.kernels import cache_folder

    offline = "; HF_HUB_OFFLINE is set: nothing is downloaded" if HF_HUB_OFFLINE else ""
    yield Diagnosis("hub", f"models are kept in {HF_HUB_CACHE}{offline}")
    folder = cache_folder("kernels")
    kept = sorted(folder.glob("*.so")) if folder.is_dir() else []
    above = next((one for one in (folder, *folder.parents) if one.exists()), Path("/"))
    if not os.access(above, os.W_OK):
        yield Diagnosis(
            "kernels",
            f"{folder} cannot be written",
            "note",
            "set XDG_CACHE_HOME, or every process compiles anew",
        )
    else:
        yield Diagnosis("kernels", f"{len(kept)} compiled in {folder}")


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


_FASTER = {
    "avx2": "AVX2",
    "avx512f": "AVX-512",
    "avx512_bf16": "AVX-512 BF16",
    "amx_bf16": "AMX",
    "asimd": "NEON",
}
"""Processor features that speed up compiled passes and libraries, by Linux's names."""
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
    """Facts about the machine, and the folders that are written to."""
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
    """The devices that torch can run a model on."""
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


_REPEATS = 15


def compiled() -> Iterator[Diagnosis]:
    """Compile, compare with the model's own code, and time both."""
    from specexp.core.kernels import CannotCompileError
    from specexp.core.language_model import LanguageModel
    from specexp.models.compiled import CompiledModel
    from specexp.models.pair import load_pair

    target = load_pair("stdlib").target
    own = _milliseconds(LanguageModel(target))
    try:
        ours = _milliseconds(CompiledModel(target))
    except CannotCompileError as error:
        yield Diagnosis(
            "compiled passes", str(error), "note", f"models run by their own code, {own:.1f} ms a pass here"
        )
        return
    yield Diagnosis(
        "compiled passes",
        f"work: {ours:.2f} ms a pass of the embedded target, {own:.1f} ms by its own code (once, just now)",
    )


def _milliseconds(model: Runtime) -> float:
    """Median time of a plain step's pass behind a few tokens."""
    from specexp.core.tree import root_tree

    model.prefill(0, list(range(5, 37)))
    tree, taken = root_tree(7), list[float]()
    for _ in range(_REPEATS):
        started = perf_counter()
        model.tree_pass([0], [tree])
        taken.append(perf_counter() - started)
    return 1e3 * median(taken)


def checks() -> list[Callable[[], Iterator[Diagnosis]]]:
    """All that is looked at, in the order it is told."""
    return [
        packages,
        extras,
        processor,
        memory,
        devices,
        compiled,
        tracking,
        caches,
    ]


def examine() -> Iterator[Diagnosis]:
    """Every diagnosis; after a package that is missing nothing that would import it is tried."""
    for check in checks():
        problem = False
        for diagnosis in check():
            problem |= diagnosis.verdict == "problem" and diagnosis.topic != "disk"
            yield diagnosis
        if problem:
            return


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code: 0, or 1 where something keeps specexp from working."""
    parser = argparse.ArgumentParser(
        prog="python -m specexp.doctor",
        description="Say what this machine can do for specexp, what would be slow on it, and what to do about it. "
        "Nothing is sent anywhere; paste it into a report of a bug.",
    )
    parser.add_argument("--json", action="store_true", help="a line of JSON for each")
    given = parser.parse_args(arguments)
    worst = 0
    for diagnosis in examine():
        worst |= diagnosis.verdict == "problem"
        if given.json:
            print(json.dumps(asdict(diagnosis)), flush=True)
            continue
        mark = {"ok": "  ", "note": "- ", "problem": "! "}[diagnosis.verdict]
        print(f"{mark}{diagnosis.topic}: {diagnosis.said}", flush=True)
        if diagnosis.advice:
            print(f"    {diagnosis.advice}", flush=True)
    if not given.json:
        print("Next: mend what is marked !" if worst else "Next: python -m specexp.init my-study --help")
    return worst
