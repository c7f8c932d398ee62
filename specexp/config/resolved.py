"""What a run leaves beside its results, so that it can be repeated from there alone."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from specexp.artifacts.atomic_write import atomic_write
from specexp.artifacts.environment import environment
from specexp.config.config import Config
from specexp.config.errors import ConfigError
from specexp.config.layers import Key
from specexp.core.messages import first_line


def annotated(config: Config) -> str:
    """The resolved configuration as YAML, each value with who set it as a comment."""
    return "\n".join(_lines(config.to_dict(), (), config)) + "\n"


def _lines(values: Mapping[Any, Any] | list[Any], at: Key, config: Config) -> Iterator[str]:
    for name, value in enumerate(values) if isinstance(values, list) else values.items():
        key = (*at, str(name))
        begin = "-" if isinstance(values, list) else f"{_scalar(name)}:"
        inner = (
            list(value.values()) if isinstance(value, Mapping) else value if isinstance(value, list) else []
        )
        if not inner or not (isinstance(value, Mapping) or any(isinstance(one, Mapping) for one in inner)):
            yield f"{begin} {_scalar(value)}  # {config.layers.origin_of(key) or 'default'}"
            continue
        lines = [f"  {line}" for line in _lines(value, key, config)]
        yield from [f"- {lines[0][2:]}", *lines[1:]] if begin == "-" else [begin, *lines]


def _scalar(value: Any) -> str:
    """A value on one line."""
    if isinstance(value, str) and "\n" in value:
        return json.dumps(value, ensure_ascii=False)
    text: str = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=10**9)
    return text.removesuffix("...\n").strip()


def save_resolved(config: Config, folder: str | Path, command: list[str] | None = None) -> None:
    """Write ``config.yaml`` (defaults filled in; the run can be repeated from it) and ``environment.json``.

    Raises:
        ConfigError: the folder cannot be written.
    """
    target = Path(folder)
    made = [path for path in (target, *target.parents) if not path.exists()]
    text = yaml.safe_dump(config.to_dict(), sort_keys=False, allow_unicode=True)
    record = json.dumps(environment(str(config.get("pair.device")), command), indent=2) + "\n"
    try:
        target.mkdir(parents=True, exist_ok=True)
        for name, content in (("config.yaml", text), ("environment.json", record)):
            atomic_write(target / name, content)
    except OSError as error:
        for path in made:
            if path.is_dir() and not any(path.iterdir()):
                path.rmdir()
        raise unwritable(config, target, error) from error


def unwritable(config: Config, folder: Path, error: OSError) -> ConfigError:
    """Return the error of a command whose output folder cannot be written."""
    return config.checker.error(
        ("output",), f": {folder} cannot be written ({error.strerror or first_line(error)})"
    )
