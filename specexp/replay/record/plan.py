"""The plan of a recording: its prompts, output and coverage, derived solely from the experiment file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from specexp.base.checked import arguments_of
from specexp.base.messages import counted, first_line, restated
from specexp.bench.arm import describe
from specexp.config import (
    Config,
    ConfigError,
    arms_of,
)
from specexp.config.check import Checker, contracts_in
from specexp.config.load import with_prompts_of
from specexp.core.contracts import Drafter, TreeBuilder, Verifier
from specexp.core.parts import check_composition, parts_in
from specexp.core.tree import NodeKind
from specexp.models.sources import sources_of
from specexp.replay.format.trie import RecordingError
from specexp.replay.play.fidelity import learns, scoring_of

_DEFAULT = {"class_path": "Chain", "init_args": {"length": 24}}
_TOP_K = 8
"""Number of the target's best tokens to keep if no drafter learns from them."""


@dataclass(frozen=True)
class RecordingPlan:
    """The plan of a recording, drawn up before any model is loaded."""

    config: Config  # the experiment, with drafter and builder added if the file has none
    folder: Path
    coverage: Sequence[TreeBuilder]  # builders to run at every root
    covered_by: Sequence[Mapping[str, Any]]  # the config sections of these builders
    verifier: Verifier  # plain decoding with the configured verifier's sampling settings
    verifier_section: Mapping[str, Any]  # the config section of this verifier
    target_top_k: int  # number of the target's best tokens kept after every node
    prompts: Mapping[str, Config]  # stage name -> the experiment with the prompts of this stage
    added: bool  # whether the pair's draft model was added as the drafter because the file has none

    def drafter(self) -> Drafter | None:
        """Return a new drafter, without its models."""
        return self.config.drafter

    def made_of(self) -> dict[str, Any]:
        """Return all settings that affect the recorded answers, except for the prompts."""
        generation = self.config.generation
        scoring = scoring_of(self.drafter())
        return {
            "pair": self.config.get("pair"),
            "law": self.verifier.sampling_settings,
            "generation": {
                key: getattr(generation, key)
                for key in ("seed", "max_new_tokens", "samples", "stop_at_eos", "stop_at_repetition")
            },
            "drafter": self.config.get("drafter"),
            "scoring": None if scoring is None else asdict(scoring),
            "coverage": list(self.covered_by),
            "candidates": self.config.record.candidates,
            "target_top_k": self.target_top_k,
        }

    def lines(self) -> list[str]:
        """Return the plan as lines for the console."""
        config = self.config
        generation, drafter = config.get("generation"), self.drafter()
        found = [f"prompts of {name}: {describe_prompts(one.get('data'))}" for name, one in self.prompts.items()]
        samples = generation["samples"]
        often = f", {samples} samples of each" if samples > 1 else ""
        found.append(
            f"output: up to {counted(generation['max_new_tokens'], 'token')} by {describe(self.verifier)}, seed "
            f"{generation['seed']}{often}"
        )
        if drafter is None:
            return [*found, "drafter: none, only the target is recorded"]
        added = " (the file has none, and the pair has a draft)" if self.added else ""
        kept = f"the target's {self.target_top_k} best tokens after every token"
        if scoring_of(drafter) is None:
            kept += " of the output and of every tree that the drafter drafts"
        else:
            kept = (
                f"the draft's {config.record.candidates} best tokens after every token of the output, as many "
                f"as the coverage needs elsewhere, {kept}"
            )
        return [
            *found,
            f"drafter: {type(drafter).__name__}{added}",
            f"coverage: {', '.join(map(describe_part, self.covered_by))}",
            f"kept: {kept}",
        ]


def plan_recording(config: Config) -> RecordingPlan:
    """Plan the recording of an experiment or a sweep, without loading models or data.

    Raises ConfigError if the experiment cannot be recorded.
    """
    if config.is_multi_sequence:
        raise ConfigError(
            f"{config.file}: the experiment decodes several sequences for a prompt, which cannot be recorded: remove "
            "execution and TaskItems"
        )
    if config.get("engine") is not None:
        raise ConfigError(f"{config.file}: engine must be left out: only our own decoding can be recorded")
    verifier, section = _recorded_verifier(config)
    drafter = config.drafter
    covered_by = config.get("record")["coverage"]
    pair = config.get("pair")
    added = drafter is None and sources_of(pair["target"], pair["draft"])[1] is not None
    if covered_by is None:
        covered_by = [(config.get("builder") if learns(drafter) else None) or _DEFAULT]
    if not covered_by:
        raise refusal(config.checker, "coverage", "must have at least one builder, got an empty list")
    config = config.with_overrides({"record.coverage": covered_by}, config.source_of(("record", "coverage")))
    covered_by = config.get("record")["coverage"]
    overrides: dict[str, Any] = {"drafter": {"class_path": "DraftModel"}} if added else {}
    if (added or drafter is not None) and config.get("builder") is None:
        overrides["builder"] = covered_by[-1]
    config = config.with_overrides(overrides, config.file)
    drafter = config.drafter
    coverage: list[TreeBuilder] = list(config.record.coverage or [])
    for number, builder in enumerate(coverage if drafter is not None else ()):
        _check_coverage(config.checker, number, builder, drafter, verifier)
    with restated(RecordingError, lambda error: config.checker.error(("drafter",), f": {error}")):
        scoring_of(drafter)
    return RecordingPlan(
        config,
        config.recording_folder,
        coverage,
        covered_by,
        verifier,
        section,
        _target_top_k(config.record.target_top_k, drafter, config.checker),
        _prompts(config),
        added,
    )


def describe_part(part: Mapping[str, Any], base: type = TreeBuilder) -> str:
    """Return a configured part as text with its non-default arguments, such as ``Chain(length=24)``."""
    found = Checker(lambda key: "").find_class(part["class_path"], base)
    known = arguments_of(found) or {}

    def shown(name: str, value: Any) -> str:
        if not isinstance(value, Mapping) or "class_path" not in value:
            return str(value)
        (family,) = contracts_in(known[name].annotation)
        return describe_part(value, family)

    inner = ", ".join(
        f"{name}={shown(name, value)}"
        for name, value in (part.get("init_args") or {}).items()
        if name not in known or known[name].default != value
    )
    return f"{found.__name__}({inner})" if inner else found.__name__


def describe_prompts(data: Mapping[str, Any]) -> str:
    """Return a short description of the prompts of a workload."""
    count = "all" if data["max_prompts"] is None else f"up to {data['max_prompts']}"
    shuffled = "" if data["shuffle_seed"] is None else f", shuffled with seed {data['shuffle_seed']}"
    offset = f", without the first {data['offset']}" if data["offset"] else ""
    return f"{count} of {str(data['prompts']['class_path']).rpartition('.')[2]}{shuffled}{offset}"


def _recorded_verifier(config: Config) -> tuple[Verifier, Mapping[str, Any]]:
    """Return a plain-decoding verifier with the configured sampling settings, and its config section."""
    given = config.verifier
    settings = given.sampling_settings
    if settings is None:
        raise config.checker.error(
            ("verifier",),
            f": the output of {type(given).__name__} may depend on the drafts, so a recording cannot serve other "
            "drafts: record with Greedy, KeyedSampling, RejectionSampling or SampleMatch",
        )
    section: dict[str, Any] = {"class_path": "Greedy", "init_args": {}}
    if settings["temperature"]:
        section = {"class_path": "KeyedSampling", "init_args": dict(settings)}
    return config.with_overrides({"verifier": section}, config.file).verifier, section


def _check_coverage(
    checker: Checker, number: int, builder: TreeBuilder, drafter: Drafter | None, verifier: Verifier
) -> None:
    key = f"coverage.{number}"
    drawing = [one for one in parts_in(builder) if one.kind is not NodeKind.POINT_MASS]
    if drawing:
        raise refusal(
            checker,
            key,
            f"is a {type(drawing[0]).__name__} that draws its candidates, but a recording holds ranked candidates: set "
            "candidates to top-k",
        )
    try:
        check_composition(drafter, builder, verifier)
    except ValueError as error:
        raise refusal(checker, key, f"cannot be combined with the drafter: {first_line(error)}") from error


def _target_top_k(given: int | None, drafter: Drafter | None, checker: Checker) -> int:
    """Return ``record.target_top_k``, which defaults to the number of target tokens that the drafter learns from."""
    learned = {one.learned_candidates: type(one).__name__ for one in parts_in(drafter) if one.learned_candidates}
    most = max(learned, default=0)
    if given is None:
        return most or _TOP_K
    if given < most:
        raise refusal(
            checker,
            "target_top_k",
            f"must be at least {most}, since {learned[most]} learns from the target's best {most}, got {given}",
        )
    return given


def _prompts(config: Config) -> dict[str, Config]:
    """Return one experiment per stage, keyed by the stage's name and set to that stage's prompts."""
    found = {"data": config}
    if config.sweep is not None:
        return found | {f"sweep.{stage}": with_prompts_of(config, stage) for stage in config.sweep.stages}
    for arm in arms_of(config):
        if arm.preload is not None:
            found[f"preload of {arm.name}"] = arm.preload
    return found


def refusal(checker: Checker, key: str, sentence: str) -> ConfigError:
    """Return a ConfigError about a key in the ``record:`` section."""
    return checker.error(("record", *key.split(".")), f" {sentence}")
