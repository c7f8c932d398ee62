"""The sections with which ``specexp.init --for ENGINE`` tunes the engine itself, from its shipped search space."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from specexp.base.cores import usable_cores
from specexp.config.layers import ConfigError
from specexp.models.gguf import is_gguf
from specexp.models.sources import sources_of

STUDIED = {"vllm": "vllm.yaml", "llama-cpp": "llama_cpp.yaml", "openvino": "openvino.yaml"}
"""The search spaces in ``sweeps`` by the engine's name; specexp starts no other engine of an export."""
_DRAFT_KEYS = {"vllm": "model", "llama-cpp": "spec_draft_model"}
"""The setting that names the draft model; OpenVINO GenAI drafts with the pair's."""
_SETTINGS = "engine.init_args.settings."


class EngineStudy(NamedTuple):
    """Sections ``engine`` and ``sweep`` of an experiment, with the names of the choices that it keeps and lacks."""

    sections: dict[str, Any]
    kept: list[str]
    lacking: list[str]


def engine_study(engine: str, file: Path, target: str, draft: str | None, device: str) -> EngineStudy:
    """Return the sections for a study of an engine with these models.

    Args:
        file: The engine's search space.

    Raises:
        ConfigError: the engine cannot read the target.
    """
    if engine == "llama-cpp":
        for role, given, source in zip(("target", "draft"), (target, draft), sources_of(target, draft), strict=True):
            if source is not None and not is_gguf(source):
                raise ConfigError(f"--{role} must be a GGUF file with --for llama-cpp, got {given or source!r}")
    draft = sources_of(target, draft)[1]  # an embedded target has a draft of its own
    content = yaml.safe_load(file.read_text(encoding="utf-8"))
    base = engine_part(engine, content["engine"], draft, device)
    sweep = content["sweep"]
    choices = sweep["space"]["engine"]["choices"]
    kept = [engine_part(engine, one, draft, device) for one in choices if _is_usable(engine, one, target, draft)]
    settings = {f"{_SETTINGS}{name}" for one in kept for name in one["init_args"]["settings"]}
    space = {key: entry for key, entry in sweep["space"].items() if key in settings}
    named = [
        {**one, "engine": engine_part(engine, one["engine"], draft, device)}
        for one in sweep["enqueue"]
        if _is_usable(engine, one["engine"], target, draft)
    ]
    names = [one["name"] for one in kept]
    sections = {
        "engine": base,
        "sweep": {
            **{key: sweep[key] for key in ("n_trials", "sampler", "pruner")},
            "space": {"engine": {**sweep["space"]["engine"], "choices": kept}, **space},
            "enqueue": named,
            "export": {"kind": "engine-settings"},
        },
    }
    return EngineStudy(sections, names, [one["name"] for one in choices if one["name"] not in names])


def engine_part(engine: str, one: Mapping[str, Any], draft: str | None, device: str) -> dict[str, Any]:
    """Return an engine's specification, such as one of a search space, for a draft model and this machine."""
    arguments = {key: value for key, value in one["init_args"].items() if key not in ("target", "kv_cache_gib")}
    if "threads" in arguments:
        arguments["threads"] = usable_cores().number
    if "eager" in arguments and device != "cpu":
        del arguments["eager"]  # compiled on a GPU, as it is deployed
    if engine == "vllm" and (python := vllm_python()):
        arguments["python"] = python
    key = _DRAFT_KEYS.get(engine)
    if (settings := arguments.get("settings")) and key in settings and settings.get("method") != "custom_class":
        arguments["settings"] = {**settings, key: draft}
    return {**one, "init_args": arguments}


def vllm_python() -> str | None:
    """Return vLLM's interpreter if it is installed where the documentation does it; otherwise None."""
    python = Path(".vllm/bin/python")
    return str(python.absolute()) if python.exists() else None  # resolved, it would leave its environment


def _is_usable(engine: str, one: Mapping[str, Any], target: str, draft: str | None) -> bool:
    """Return whether the models have what a choice drafts with."""
    settings = one["init_args"]["settings"]
    if settings.get("method") == "eagle3":
        return False
    if settings.get("method") == "custom_class":
        return str(settings["revision"]).partition(":")[0] == target
    needs_draft = _DRAFT_KEYS.get(engine) in settings or one["init_args"].get("drafts") == "model"
    return draft is not None or not needs_draft
