"""An experiment as a study sees it: what all its candidates share, and a candidate as overrides of it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specexp.artifacts.environment import device_name
from specexp.config import (
    Config,
    Generation,
    apply_overrides,
    build_execution,
    build_generation,
    build_latency,
    build_parts,
    build_task_items,
    build_verifier,
    has_key,
    is_multi_sequence,
    is_replayed,
    prompts_error,
    recording_folder,
)
from specexp.config.load import COUNTS, STAGES, with_counts, with_prompts_of
from specexp.data import PromptSetError

if TYPE_CHECKING:
    from specexp.core.latency import LatencyProfile
    from specexp.core.parts import Parts
    from specexp.data.task_items import Problem
    from specexp.scheduling import Execution

VARIED = ("drafter", "builder", "controller")
SHARED = ("pair", "data", "verifier", "generation")


class StudyError(RuntimeError):
    """A study that cannot go on; the sentence says why and what to do."""


def digest_of(value: Any) -> str:
    """A short digest of a JSON value, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:16]


class StudyConfig:
    """An experiment with a sweep section; every candidate of its study is its composition with overrides.

    Attributes:
        replayed: Whether a recording answers instead of the models.
        of_engine: Whether another engine is tuned, and not our parts.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self.name: str = config.get("name")
        self.question: str | None = config.get("question")
        self.folder: Path = Path(config.get("output")) / self.name

        self.replayed = is_replayed(config)
        self.of_engine: bool = config.get("engine") is not None

    @property
    def clock(self) -> str:
        """The device whose seconds the study compares."""
        return "a recording" if self.replayed else device_name(self.config.get("pair.device"))

    @cached_property
    def acceptance_counts(self) -> Path | None:
        """File of the acceptance counts that the study records first; None where it records none."""
        return self.folder / COUNTS if self.config.get("sweep.count_acceptances", None) else None

    @cached_property
    def multi_sequence(self) -> bool:
        """Whether several sequences are decoded for every prompt: by one candidate at least, and then by all."""
        space, known = self.config.get("sweep.space"), self.config.get("sweep.enqueue")
        keys = [*space, *(key for overrides in known for key in overrides)]
        return is_multi_sequence(self.config) or any(key.partition(".")[0] == "execution" for key in keys)

    def applies(self, key: str, overrides: Mapping[str, Any]) -> bool:
        """Whether a dotted key exists in the composition with these overrides."""
        section = key.partition(".")[0]
        telling = {
            name: value
            for name, value in overrides.items()
            if name.partition(".")[0] == section
            and not isinstance(value, int | float)  # numbers bring no keys
        }
        found = self.with_overrides(telling)
        if section == "engine":  # a setting that a choice leaves unset belongs to another way to draft
            return found.get(key, None) is not None
        return has_key(found, key)

    def with_overrides(self, overrides: Mapping[str, Any]) -> Config:
        """The configuration of a candidate; a fitted tree that names no acceptance counts gets the study's."""
        counts = self.acceptance_counts
        filled = {
            key: with_counts(value, str(counts)) if key == "builder" and counts else value
            for key, value in overrides.items()
        }
        return apply_overrides(self.config, filled, "sweep")

    def resolved(self, config: Config) -> dict[str, Any]:
        """The sections in which candidates may differ, of one of them, defaults filled in."""
        if self.of_engine:
            return {"engine": config.get("engine")}
        varied = (*VARIED, "execution") if self.multi_sequence else VARIED
        found = {section: config.get(section) for section in varied}
        if self.multi_sequence and found["execution"] is None:
            one_by_one = "Serial" if found["drafter"] is None else "SerialSpeculative"
            found["execution"] = {"class_path": one_by_one, "init_args": {}}
        return found

    def compose(self, config: Config, draft: Any = None) -> tuple[Parts, Execution | None]:
        """New objects of a candidate, in their initial state.

        Args:
            draft: The pair's draft model, or a recording of its answers, for a drafter that needs one.

        Returns:
            The parts, and how several sequences are decoded; None where it is one at a time.

        Raises:
            ConfigError: They cannot be made, or do not go together.
        """
        parts = build_parts(config, draft)
        if not self.multi_sequence:
            return parts, None
        from specexp.scheduling import Serial, SerialSpeculative

        return parts, build_execution(config) or (Serial if parts.drafter is None else SerialSpeculative)()

    def compose_plain(self) -> tuple[Parts, Execution | None]:
        """New objects of plain decoding, as :meth:`compose` gives those of a candidate."""
        from specexp.core.parts import Parts
        from specexp.scheduling import Serial

        return Parts(verifier=build_verifier(self.config)), Serial() if self.multi_sequence else None

    @cached_property
    def generation(self) -> Generation:
        """How much is generated."""
        return build_generation(self.config)

    def latency(self) -> LatencyProfile | None:
        """The profile by which the seconds of a study are modelled; None where they are measured."""
        profile = build_latency(self.config)
        return profile if profile is not None and (profile.modelled or self.replayed) else None

    def live_latency(self) -> LatencyProfile | None:
        """The profile by which the seconds of a live confirmation are modelled; None where they are measured.

        A replay by a profile that was measured here is confirmed in seconds measured here; one by a profile of another
        device in the steps taken here, at that device's seconds.
        """
        profile = self.latency()
        measured_here = profile is not None and self.replayed and profile.source == "measured"
        return None if measured_here or profile is None or not profile.modelled else profile

    def problems(self) -> dict[str, Problem]:
        """Items of tasks by prompt id, those of all stages; empty where prompts are continued."""
        found: dict[str, Problem] = {}
        for stage in (None, *(stage for stage in STAGES if self.config.get(f"sweep.{stage}", None))):
            staged = with_prompts_of(self.config, stage)
            try:
                items = build_task_items(staged)
                found |= {} if items is None else items.problems
            except PromptSetError as error:
                raise prompts_error(staged, error) from error
        return found

    def workload(self) -> dict[str, Any]:
        """What all candidates have in common: their seconds can be compared where this is the same."""
        shared = {section: self.config.get(section) for section in SHARED}
        if self.of_engine:
            shared["engine"] = self.config.get("engine.class_path")
        if self.multi_sequence:
            shared["reasoning"] = self.config.get("reasoning")
        if self.config.get("latency") is not None:
            profile = build_latency(self.config)
            assert profile is not None
            # Its content, not its path: an alias may come to name another version.
            shared["latency"] = {**profile.to_dict(), "modelled": profile.modelled}
        if self.replayed:
            shared["recording"] = self.recording_digest()
        return shared

    def recording_digest(self) -> str:
        """Hash of the recording's manifest, which holds those of its files."""
        from specexp.artifacts.manifest import sha256
        from specexp.replay.format.recording import MANIFEST

        return sha256((recording_folder(self.config) / MANIFEST).read_bytes())
