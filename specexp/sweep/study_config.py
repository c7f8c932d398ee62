"""A study's configuration, read once: typed settings that all candidates share, and each candidate's composition."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from specexp.artifacts.environment import device_name
from specexp.artifacts.manifest import sha256
from specexp.base.messages import first_line, type_and_line
from specexp.bench.experiment import check_prompts, solver_for
from specexp.config import (
    CommandError,
    Config,
    ConfigError,
    build_data,
    build_pair,
    build_parts,
    check_rows,
    prompt_errors,
)
from specexp.config.layers import PARTS
from specexp.config.load import COUNTS, awaits_counts, with_counts, with_prompts_of
from specexp.config.sweep import FUNCTION, Suggested
from specexp.core.parts import Parts
from specexp.replay.format.recording import MANIFEST
from specexp.scheduling import Execution, Serial, SerialSpeculative

if TYPE_CHECKING:
    from specexp.bench.execution_arm import Solver
    from specexp.core.latency import LatencyProfile
    from specexp.data import LoadedPrompts
    from specexp.engines.engine import ForeignEngine
    from specexp.models.pair import ModelPair
    from specexp.replay.format.recording import Recording

T = TypeVar("T")
VARIED = ("drafter", "builder", "controller")
SHARED = ("pair", "data", "verifier", "generation")
_DRAWS = 4
"""Number of draws of a user's function before its study begins."""
PIECE = 2**16
"""Size, in bytes, of the pieces of a file that are hashed. A file of up to 64 pieces is hashed completely."""


class StudyError(CommandError):
    """Raised if a study cannot continue. The message gives the reason and suggests a fix."""


def digest_of(value: Any) -> str:
    """Return a short digest of a JSON value, independent of the order of its keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:16]


def digest_of_files(path: Path) -> str:
    """Return a short digest of a file or of all files in a folder, based on each file's size and at most 65 pieces."""
    found = hashlib.sha256()
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if not file.is_file():
            continue
        size = file.stat().st_size
        found.update(f"{file.name} {size} ".encode())
        with file.open("rb") as opened:
            for place in range(0, size, max(size // 64, PIECE)):
                opened.seek(place)
                found.update(opened.read(PIECE))
    return found.hexdigest()[:16]


def texts_in(value: Any) -> Iterator[str]:
    """Yield all strings in a JSON value, except the keys of its mappings."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list):
        for one in value.values() if isinstance(value, Mapping) else value:
            yield from texts_in(one)


@dataclass(frozen=True)
class Composition:
    """The settings of a candidate, as new objects."""

    parts: Parts  # the verifier alone for an engine
    execution: Execution | None  # None if one sequence is decoded per prompt
    engine: ForeignEngine | None
    resolved: Mapping[str, Any]  # the sections in which candidates may differ, with all defaults filled in


class StudyConfig:
    """The settings of an experiment with a ``sweep`` section. A candidate is its composition with some overrides.

    Attributes:
        acceptance_counts: The file to which the study first writes its counts; None if it does not count any.
        values: All values of the resolved file, with passwords masked, to be stored with results.
        specs: The specifications of the file's own parts and engine, by section.
        replayed: Whether a recording replaces the models.
        of_engine: Whether an engine replaces our parts.
    """

    def __init__(self, config: Config) -> None:
        assert config.sweep is not None
        self.sweep = config.sweep
        self.checker = config.checker
        self.name = config.name
        self.question = config.question
        self.folder = config.output / config.name
        self.acceptance_counts = self.folder / COUNTS if self.sweep.count_acceptances else None
        self.pair = config.pair
        self.generation = config.generation
        self.tracking = config.tracking
        self.baselines = config.baselines
        self.least_gain = config.least_gain
        self.float32_prompts = config.float32_prompts
        self.invocation = config.invocation
        self.values = config.to_dict()
        self.specs: dict[str, Any] = {section: config.get(section) for section in (*PARTS, "engine")}
        self.replayed = config.is_replayed
        self.of_engine = self.specs["engine"] is not None
        self._config = config

    @property
    def clock(self) -> str:
        """The device on which seconds are measured, or ``a recording`` for a replay."""
        return "a recording" if self.replayed else device_name(self.pair.device)

    @cached_property
    def multi_sequence(self) -> bool:
        """True if any candidate decodes several sequences per prompt, in which case all candidates do."""
        keys = [*self.sweep.space, *(key for overrides in self.sweep.enqueue for key in overrides)]
        return self._config.is_multi_sequence or any(key.partition(".")[0] == "execution" for key in keys)

    def applies(self, key: str, overrides: Mapping[str, Any]) -> bool:
        """Return whether a dotted key exists in the composition with these overrides."""
        section = key.partition(".")[0]
        # Skip numbers: they add no keys, and each would cost a validation.
        parts = {
            name: value
            for name, value in overrides.items()
            if name.partition(".")[0] == section and not isinstance(value, int | float)
        }
        found = self._with_overrides(parts)
        # A setting that the engine leaves unset belongs to another way of drafting, so it does not apply.
        return found.get(key, None) is not None if section == "engine" else found.has(key)

    def compose(self, overrides: Mapping[str, Any], draft: Any) -> Composition:
        """Return a candidate's composition; raises ConfigError if its parts do not fit together.

        ``draft`` is the pair's draft model, or a recording of it.
        """
        config = self._with_overrides(overrides)
        engine = config.build_engine() if self.of_engine else None
        parts = self.plain_parts if self.of_engine else build_parts(config, draft)
        execution = None
        if self.multi_sequence:
            execution = config.execution or (Serial() if parts.drafter is None else SerialSpeculative())
        return Composition(parts, execution, engine, self._resolved(config))

    @property
    def plain_parts(self) -> Parts:
        """The parts of plain decoding: a new verifier alone."""
        return Parts(verifier=self._config.verifier)

    @property
    def engine(self) -> Any:
        """The file's own engine, new and unstarted; None if our loop decodes."""
        return self._config.build_engine()

    @property
    def resolved(self) -> dict[str, Any]:
        """The sections in which candidates may differ, as the file sets them, with all defaults filled in."""
        return self._resolved(self._config)

    def awaits_counts(self, overrides: Mapping[str, Any]) -> bool:
        """Return whether a candidate cannot be composed before the study has counted acceptances."""
        return awaits_counts(self._with_overrides(overrides), self.sweep)

    def _with_overrides(self, overrides: Mapping[str, Any], source: str = "sweep") -> Config:
        """Return a candidate's configuration. A fitted tree without acceptance counts gets the study's counts.

        ``source`` is the beginning of an error's message.
        """
        counts = self.acceptance_counts
        filled = {
            key: with_counts(value, str(counts)) if key == "builder" and counts else value
            for key, value in overrides.items()
        }
        return self._config.with_overrides(filled, source)

    def drawn(self) -> Iterator[dict[str, Any]]:
        """Yield a few draws of the user's function; raises ConfigError if it fails or its settings are wrong."""
        import optuna

        entry = self.sweep.space[FUNCTION]
        assert isinstance(entry, Suggested)
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
        where = str(self.checker.error(("sweep", "space"), ""))
        for _ in range(_DRAWS):
            try:
                overrides = entry.suggest(study.ask(), FUNCTION, {})
            except Exception as error:  # the user's code may raise anything
                text = first_line(error)
                cannot = f"{entry.call} cannot be called: {type_and_line(error)}"
                raise ConfigError(f"{where}: {text if text.startswith(entry.call) else cannot}") from error
            self._with_overrides(overrides, f"{where}: {entry.call}")
            if not self.multi_sequence and any(key.partition(".")[0] == "execution" for key in overrides):
                raise ConfigError(f"{where}: {entry.call} must return no key of execution, because the file sets none")
            yield overrides

    def _resolved(self, config: Config) -> dict[str, Any]:
        if self.of_engine:
            return {"engine": config.get("engine")}
        found = {section: config.get(section) for section in VARIED}
        if self.multi_sequence:
            one_by_one = "Serial" if found["drafter"] is None else "SerialSpeculative"
            found["execution"] = config.get("execution") or {"class_path": one_by_one, "init_args": {}}
        return found

    @cached_property
    def profile(self) -> LatencyProfile | None:
        """The latency profile of the file, which models the seconds of a replay; None if there is none."""
        return self._config.latency

    @property
    def latency(self) -> LatencyProfile | None:
        """The profile that models the seconds of the study; None if they are measured."""
        return self.profile if self.replayed or (self.profile is not None and self.profile.modelled) else None

    @property
    def live_latency(self) -> LatencyProfile | None:
        """The profile that models the seconds of a replay's live steps; None if they are measured, as its own were."""
        profile = self.latency
        modelled = profile is not None and profile.modelled and profile.source != "measured"
        return profile if modelled else None

    def load_models(self, weights: bool = True) -> ModelPair:
        """Return the models, or only their outlines if ``weights`` is False; raises ConfigError on failure."""
        return build_pair(self._config, weights)

    def solver(self, pair: ModelPair) -> Solver:
        """Return what solves the task items of all stages. It has no problems if prompts do not belong to a task."""
        tasks = [items for items in self._of_stages(lambda staged: staged.task_items) if items is not None]
        return solver_for(self._config, pair, {key: one for items in tasks for key, one in items.problems.items()})

    def data_of(self, stage: str | None) -> Any:
        """Return the section ``data`` of a stage; None is the search."""
        return with_prompts_of(self._config, stage).get("data")

    def load_prompts(
        self, stage: str | None, pair: ModelPair | None, recording: Recording | None = None
    ) -> LoadedPrompts:
        """Return the prompts of a stage; raises ConfigError if one does not fit the context or was not recorded.

        ``pair`` is None if only the recording can be used.
        """
        staged = with_prompts_of(self._config, stage)
        if recording is not None:
            from specexp.replay.backend import recorded_data, tokenizer_of

            tokenizer = tokenizer_of(self.pair.target) if pair is None else pair.tokenizer
            data = recorded_data(staged, recording, tokenizer)
        else:
            assert pair is not None
            data = build_data(staged, pair.tokenizer)
        with prompt_errors(staged):
            if pair is not None:
                check_prompts(staged, data.prompts, pair, self.multi_sequence)
        return data

    def check_rows(self) -> list[str]:
        """Return remarks on stages with fewer prompts than ``max_prompts``; raises ConfigError if one has none."""
        return [remark for remarks in self._of_stages(check_rows) for remark in remarks]

    def _of_stages(self, read: Callable[[Config], T]) -> list[T]:
        found = []
        for stage in (None, *self.sweep.stages):
            staged = with_prompts_of(self._config, stage)
            with prompt_errors(staged):
                found.append(read(staged))
        return found

    def workload(self) -> dict[str, Any]:
        """Return the settings that all candidates share. Seconds from different workloads cannot be compared.

        Digests of files named in the settings are included, as models may be retrained and prompts edited in place.
        """
        shared = {section: self._config.get(section) for section in SHARED}
        shared["content"] = {
            name: digest_of_files(Path(name).expanduser())
            for name in texts_in([shared["pair"], shared["data"]])
            if os.path.exists(os.path.expanduser(name))  # noqa: PTH110, PTH111 - no error for what cannot be a path
        }
        if self.of_engine:
            shared["engine"] = self.specs["engine"]["class_path"]
        if self.multi_sequence:
            shared["reasoning"] = self._config.get("reasoning")
        if (profile := self.profile) is not None:
            # The profile's content rather than its path, because an alias may point to another version later.
            shared["latency"] = {**profile.to_dict(), "modelled": profile.modelled}
        if self.replayed:
            shared["recording"] = self.recording_digest()
        return shared

    def recording_digest(self) -> str:
        """Return the hash of the recording's manifest, which contains the hashes of the recording's files."""
        return sha256((self._config.recording_folder / MANIFEST).read_bytes())

    def open_recording(self) -> Recording:
        """Return the recording to replay; raises ConfigError if it was made with other settings."""
        from specexp.replay.backend import open_recording

        return open_recording(self._config)

    def check_models(self, recording: Recording, pair: ModelPair) -> None:
        """Raise ConfigError if the recording was not made with the models of ``pair``."""
        from specexp.replay.backend import check_models

        check_models(self._config, recording, pair)

    def save(self, command: list[str]) -> None:
        """Write the resolved file and the environment to the study's folder."""
        self._config.save(self.folder, command)
