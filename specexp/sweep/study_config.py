"""The configuration of a study: the settings that all candidates share, and each candidate as overrides of them."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from specexp.artifacts.environment import device_name
from specexp.artifacts.manifest import sha256
from specexp.base.messages import first_line, type_and_line
from specexp.config import (
    CommandError,
    Config,
    ConfigError,
    apply_overrides,
    build_latency,
    build_task_items,
    check_rows,
    has_key,
    is_multi_sequence,
    is_replayed,
    prompt_errors,
    recording_folder,
)
from specexp.config.load import COUNTS, with_counts, with_prompts_of
from specexp.config.sweep import FUNCTION, Suggested
from specexp.replay.format.recording import MANIFEST

if TYPE_CHECKING:
    from specexp.config.sweep import Sweep
    from specexp.core.latency import LatencyProfile
    from specexp.data.task_items import Problem

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


class StudyConfig(Config):
    """An experiment with a ``sweep`` section. Each candidate is the experiment's composition with some overrides."""

    sweep: Sweep

    def __init__(self, config: Config) -> None:
        vars(self).update(vars(config))
        self.folder = self.output / self.name
        # True if a recording replaces the models, or an engine replaces our parts.
        self.replayed = is_replayed(config)
        self.of_engine: bool = config.get("engine") is not None

    @property
    def clock(self) -> str:
        """The device on which seconds are measured, or ``a recording`` for a replay."""
        return "a recording" if self.replayed else device_name(self.pair.device)

    @cached_property
    def acceptance_counts(self) -> Path | None:
        """The file to which the study first writes its acceptance counts; None if it does not count any."""
        return self.folder / COUNTS if self.sweep.count_acceptances else None

    @cached_property
    def multi_sequence(self) -> bool:
        """True if any candidate decodes several sequences per prompt, in which case all candidates do."""
        keys = [*self.sweep.space, *(key for overrides in self.sweep.enqueue for key in overrides)]
        return is_multi_sequence(self) or any(key.partition(".")[0] == "execution" for key in keys)

    def applies(self, key: str, overrides: Mapping[str, Any]) -> bool:
        """Return whether a dotted key exists in the composition with these overrides."""
        section = key.partition(".")[0]
        # Skip numbers: they add no keys, and each would cost a validation.
        parts = {
            name: value
            for name, value in overrides.items()
            if name.partition(".")[0] == section and not isinstance(value, int | float)
        }
        found = self.with_overrides(parts)
        # A setting that the engine leaves unset belongs to another way of drafting, so it does not apply.
        return found.get(key, None) is not None if section == "engine" else has_key(found, key)

    def with_overrides(self, overrides: Mapping[str, Any], source: str = "sweep") -> Config:
        """Return a candidate's configuration. A fitted tree without acceptance counts gets the study's counts.

        ``source`` is the beginning of an error's message.
        """
        counts = self.acceptance_counts
        filled = {
            key: with_counts(value, str(counts)) if key == "builder" and counts else value
            for key, value in overrides.items()
        }
        return apply_overrides(self, filled, source)

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
            self.with_overrides(overrides, f"{where}: {entry.call}")
            if not self.multi_sequence and any(key.partition(".")[0] == "execution" for key in overrides):
                raise ConfigError(f"{where}: {entry.call} must return no key of execution, because the file sets none")
            yield overrides

    def resolved(self, config: Config) -> dict[str, Any]:
        """Return the sections in which candidates may differ, with all defaults filled in."""
        if self.of_engine:
            return {"engine": config.get("engine")}
        found = {section: config.get(section) for section in VARIED}
        if self.multi_sequence:
            one_by_one = "Serial" if found["drafter"] is None else "SerialSpeculative"
            found["execution"] = config.get("execution") or {"class_path": one_by_one, "init_args": {}}
        return found

    def latency(self) -> LatencyProfile | None:
        """Return the profile that models the seconds of the study; None if they are measured."""
        profile = build_latency(self)
        return profile if profile is not None and (profile.modelled or self.replayed) else None

    def live_latency(self) -> LatencyProfile | None:
        """Return the profile that models the seconds of a replay's live confirmation; None if they are measured.

        If the profile's source is ``measured``, live seconds are measured too. Otherwise the profile times live steps.
        """
        profile = self.latency()
        modelled = profile is not None and profile.modelled and profile.source != "measured"
        return profile if modelled else None

    def problems(self) -> dict[str, Problem]:
        """Return the task items of all stages by prompt id; empty if the prompts do not belong to a task."""
        found: dict[str, Problem] = {}
        for items in self._of_stages(build_task_items):
            found |= {} if items is None else items.problems
        return found

    def check_rows(self) -> list[str]:
        """Return remarks on stages with fewer prompts than ``max_prompts``; raises ConfigError if one has none."""
        return [remark for remarks in self._of_stages(check_rows) for remark in remarks]

    def _of_stages(self, read: Callable[[Config], T]) -> list[T]:
        found = []
        for stage in (None, *self.sweep.stages):
            staged = with_prompts_of(self, stage)
            with prompt_errors(staged):
                found.append(read(staged))
        return found

    def workload(self) -> dict[str, Any]:
        """Return the settings that all candidates share. Seconds from different workloads cannot be compared.

        Digests of files named in the settings are included, as models may be retrained and prompts edited in place.
        """
        shared = {section: self.get(section) for section in SHARED}
        shared["content"] = {
            name: digest_of_files(Path(name))
            for name in texts_in([shared["pair"], shared["data"]])
            if os.path.exists(name)  # noqa: PTH110 - false, not an error, for a text that cannot be a path
        }
        if self.of_engine:
            shared["engine"] = self.get("engine")["class_path"]
        if self.multi_sequence:
            shared["reasoning"] = self.get("reasoning")
        if (profile := build_latency(self)) is not None:
            # The profile's content rather than its path, because an alias may point to another version later.
            shared["latency"] = {**profile.to_dict(), "modelled": profile.modelled}
        if self.replayed:
            shared["recording"] = self.recording_digest()
        return shared

    def recording_digest(self) -> str:
        """Return the hash of the recording's manifest, which contains the hashes of the recording's files."""
        return sha256((recording_folder(self) / MANIFEST).read_bytes())
