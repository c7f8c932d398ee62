"""What is installed, whether it is what this version asks for, and what could be added."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from specexp.commands.doctor.diagnosis import Diagnosis

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
    """What is left out without them."""
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
