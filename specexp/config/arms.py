"""The arms of an experiment: compositions beside the file's own, and Hugging Face's loops."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby, product
from typing import Any

from specexp.config.build import build_engine, build_latency, check_draft_latency, check_parts
from specexp.config.config import Config, apply_overrides, check_key, compose_arm
from specexp.config.errors import ConfigError
from specexp.config.schema import OVERRIDES, REFERENCE_KEYS

_REFERENCE = ("num_assistant_tokens", "assistant_confidence_threshold", "prompt_lookup_num_tokens",
              "max_matching_ngram_size")  # fmt: skip


@dataclass(frozen=True)
class ComposedArm:
    """An arm to run: a composition, or one of Hugging Face's own loops with its arguments."""

    name: str
    title: str
    config: Config
    reference: str | None
    arguments: Mapping[str, Any]
    preload: Config | None = None
    """The same composition over the prompts its drafter learns from before the run."""


def arms_of(config: Config) -> list[ComposedArm]:
    """The arms of a file in its order, grids unrolled; without ``arms:``, the composition itself."""
    if not config.get("arms"):
        return [ComposedArm(config.get("name"), config.get("name"), config, None, {})]
    found = []
    for name, arm in config.get("arms").items():
        title, reference = arm.get("title") or name, arm.get("reference")
        arguments = {key: arm[key] for key in REFERENCE_KEYS.get(reference, ()) if key in arm}
        for point in product(
            *([(key, value) for value in values] for key, values in (arm.get("grid") or {}).items())
        ):
            suffix = ", ".join(f"{key.rpartition('.')[2]}={_label(value)}" for key, value in point)
            composed = config if reference else compose_arm(config, name, dict(point))
            found.append(
                ComposedArm(
                    f"{name}[{suffix}]" if suffix else name,
                    f"{title}, {suffix}" if suffix else title,
                    composed,
                    reference,
                    arguments,
                    _preload(composed, name, arm),
                )
            )
    return found


def _preload(composed: Config, name: str, arm: Mapping[str, Any]) -> Config | None:
    if arm.get("preload") is None:
        return None
    source = f"{composed.source_of(('arms', name))}: arms.{name}.preload"
    return apply_overrides(composed, {"data": arm["preload"]}, source)


def check_arms(config: Config) -> None:
    """Compose every arm."""
    for name, arm in config.get("arms").items():
        where = f"{config.source_of(('arms', name))}: arms.{name}"
        if not name.strip() or not str(arm.get("title") or name).strip():
            raise config.checker.error(("arms",), f" has one called {name!r}; give it a name")
        reference = arm.get("reference")
        for key in arm:
            if reference is not None and (
                key in OVERRIDES
                or key in ("grid", "preload")
                or (key in _REFERENCE and key not in REFERENCE_KEYS[reference])
            ):
                allowed = ", ".join(("title", *REFERENCE_KEYS[reference]))
                raise ConfigError(
                    f"{config.source_of(('arms', name, key))}: arms.{name}.{key} does not go with reference "
                    f"{reference!r}, which takes {allowed}"
                )
            if reference is None and key in _REFERENCE:
                raise ConfigError(
                    f"{config.source_of(('arms', name, key))}: arms.{name}.{key} needs a reference, one of "
                    f"{', '.join(REFERENCE_KEYS)}"
                )
        if reference is not None:
            if reference == "hf-assisted":
                check_draft_latency(config, build_latency(config), f"arm {name!r}")
            continue
        with _inside(where, f"arms.{name}"):
            composed = compose_arm(config, name)
            _preload(composed, name, arm)
            for key, values in (arm.get("grid") or {}).items():
                check_key(composed, key, f"{where}.grid")
                if not values:
                    raise ConfigError(f"{where}.grid.{key} is an empty list; at least one value is needed")
                for value in values:
                    point = compose_arm(config, name, {key: value})
                check_parts(point)
                build_engine(point)
            if not arm.get("grid"):
                check_parts(composed)
                build_engine(composed)


@contextmanager
def _inside(where: str, arm: str) -> Iterator[None]:
    """Name the arm in an error that comes from something it did not set itself."""
    try:
        yield
    except ConfigError as error:
        if f": {arm}" in str(error):
            raise
        raise ConfigError(f"{where}: {str(error).partition(': ')[2]}") from error


def _label(value: Any) -> str:
    """A value of a grid in a title; in a list ``1 x 7`` is seven times 1."""
    if isinstance(value, Mapping):
        return str(value.get("name") or value.get("class_path", value))
    if not isinstance(value, list):
        return str(value)
    runs = ((str(entry), len(list(run))) for entry, run in groupby(value))
    return f"[{', '.join(f'{entry} x {count}' if count > 2 else ', '.join([entry] * count) for entry, count in runs)}]"
