"""What a run leaves beside its results, so that it can be repeated from there alone."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from specexp.config.config import Config
from specexp.config.errors import ConfigError
from specexp.environment import environment
from specexp.wording import first_line


def save_resolved(config: Config, folder: str | Path, command: list[str] | None = None) -> None:
    """Write ``config.yaml`` (defaults filled in; the run can be repeated from it) and ``environment.json``.

    Raises:
        ConfigError: the folder cannot be written.
    """
    target = Path(folder)
    text = yaml.safe_dump(config.to_dict(), sort_keys=False, allow_unicode=True)
    record = json.dumps(environment(str(config.get("pair.device")), command), indent=2) + "\n"
    try:
        target.mkdir(parents=True, exist_ok=True)
        for name, content in (("config.yaml", text), ("environment.json", record)):
            beside = target / f".{name}.part"
            beside.write_text(content, encoding="utf-8")
            beside.replace(target / name)
    except OSError as error:
        raise ConfigError(
            f"{config.source_of(('output',))}: output: {target} cannot be written ({first_line(error)})"
        ) from error
