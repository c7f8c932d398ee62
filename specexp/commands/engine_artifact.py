"""The experiment of ``specexp.verify ARTIFACT --for ENGINE``: the engine with an artifact's settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from specexp.artifacts import Artifact, ArtifactError, read_artifact
from specexp.artifacts.parts import init_args_of
from specexp.base.messages import restated
from specexp.commands.engine_study import STUDIED, engine_part
from specexp.commands.init import shipped
from specexp.config.config import Config
from specexp.config.layers import COMMAND_LINE, ConfigError, Layers, parse_overrides
from specexp.config.load import check_samples, prompts_of_stage
from specexp.config.named_artifacts import local
from specexp.config.next_step import class_paths
from specexp.deploy.export.export_format import ExportRequest, NotInEngineError, all_formats
from specexp.engines.settings import ENGINES, SettingsError
from specexp.models.sources import sources_of

_DRAFT_MODEL = "specexp.drafters.draft_model.DraftModel"
_SHARED = ("name", "pair", "data", "generation")
_PROGRAMS = ("python", "program")  # an artifact is not trusted to choose what is started
_MOST_PROMPTS = 20  # some minutes with a small model on two cores


def engine_experiment(engine: str, reference: str, overrides: Sequence[str] = ()) -> Config:
    """Return the experiment that compares an engine with an artifact's settings and without, decoding greedily.

    Models, lengths and the engine's other arguments are those of the artifact's study. The prompts are the first 20 of
    its confirmation, which its search did not use. Raises ConfigError if the artifact cannot be read, records no study,
    or has no settings for the engine.

    Args:
        engine: a key of :data:`~specexp.commands.engine_study.STUDIED`.
        reference: the artifact's path or reference.
        overrides: as of :func:`~specexp.config.load_config`. A file of prompts is read from its beginning.
    """
    typed = parse_overrides(overrides)
    with restated((ArtifactError, SettingsError), lambda error: ConfigError(str(error))):
        artifact = read_artifact(local(reference))
        study = artifact.provenance["config"]
        if not {*_SHARED, "sweep", "engine"} <= (study or {}).keys():
            why = "provenance.config must be a study's configuration, which names its models and prompts"
            raise ArtifactError(f"{artifact.folder}: {why}")
        pair = {key.removeprefix("pair."): value for key, value in typed if key.startswith("pair.")}
        spec = _engine(engine, artifact, {**study["pair"], **pair})
    layers = Layers()
    layers.merge({name: study[name] for name in _SHARED}, reference)
    if (study["sweep"] or {}).get("confirm"):
        layers.merge({"data": prompts_of_stage(study["data"], study["sweep"], "confirm", reference)}, reference)
    most = min(layers.values["data"]["max_prompts"] or _MOST_PROMPTS, _MOST_PROMPTS)
    others = {"offset": 0, "field": None} if "data.prompts" in dict(typed) else {}
    layers.merge({"data": {"max_prompts": most, **others}, "verifier": "Greedy", "engine": spec}, reference)
    for key, value in typed:
        layers.set(key, value, COMMAND_LINE)
    for name in class_paths(layers.values["data"]):  # an artifact is not trusted
        if "." in name and not name.startswith("specexp.") and layers.source_of(("data", "prompts"), "") == reference:
            raise ConfigError(
                f"{reference}: data.prompts must be a class of specexp, got {name!r}: give --prompts FILE"
            )
    config = Config(layers, reference)
    config.typed = typed
    config.artifact = reference
    check_samples(config)
    return config


def program_options(config: Config) -> list[str]:
    """Return the options that start the engine by its study's program, which an artifact does not choose by itself."""
    measured_with = _measured_with(read_artifact(local(config.artifact)))
    found = [(key, str(measured_with[key])) for key in _PROGRAMS if key in measured_with]
    there = [(key, path) for key, path in found if Path(path).is_absolute() and Path(path).exists()]
    return [word for key, path in there for word in (f"--engine.init_args.{key}", path)]


def _measured_with(artifact: Artifact) -> Mapping[str, Any]:
    """Return the arguments of the engine in an artifact's study; empty if our loop decoded."""
    return (artifact.provenance["config"]["engine"] or {}).get("init_args") or {}


def export_options(engine: str, artifact: Artifact, draft: str | None) -> dict[str, str]:
    """Return the options with which an artifact is exported to an engine: its draft model, if the file names it."""
    drafts = init_args_of(artifact.recorded.get("drafter"), _DRAFT_MODEL) is not None
    return {"draft": draft} if draft and drafts and "draft" in all_formats()[engine].options else {}


def _engine(engine: str, artifact: Artifact, pair: Mapping[str, Any]) -> dict[str, Any]:
    """Return the specification of an engine with an artifact's settings. Raises ArtifactError if it has none."""
    measured = getattr(artifact, "engine", engine)
    if measured not in STUDIED:
        raise ArtifactError(f"{artifact.folder} has settings of {measured!r}, which --for cannot start: use --endpoint")
    if measured != engine:
        raise ArtifactError(
            f"--for must be the engine of the study, {measured!r}, got {engine!r}: the settings of {artifact.folder} "
            "were measured on that engine"
        )
    content = yaml.safe_load(shipped(f"sweeps/{STUDIED[engine]}").read_text(encoding="utf-8"))
    part = engine_part(engine, content["engine"], None, pair["device"])
    others = {key: value for key, value in _measured_with(artifact).items() if key not in _PROGRAMS}
    arguments = part["init_args"] | others
    form = all_formats()[engine]()
    options = export_options(engine, artifact, sources_of(pair["target"], pair["draft"])[1])
    drafters = " or ".join(ENGINES[engine].drafters)
    advice = f"name an artifact that drafts with {drafters}, or verify this one in our loop, with FILE --artifact"
    with restated(NotInEngineError, lambda error: ArtifactError(f"{error.why}: {advice}")):
        made = form.make(ExportRequest(artifact.folder, options=options)).settings
    assert made is not None  # every engine's format has them
    if engine == "openvino" and artifact.recorded:
        arguments["drafts"] = "prompt-lookup" if "max_ngram_size" in made.given() else "model"
    return {**part, "init_args": {**arguments, "settings": made.given()}}
