"""What a run leaves beside its results, so that it can be repeated from there alone."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from specexp.artifacts.atomic_write import write_whole
from specexp.artifacts.environment import environment
from specexp.config.config import Config
from specexp.config.errors import ConfigError
from specexp.core.messages import first_line


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
            write_whole(target / name, content)
    except OSError as error:
        for path in made:
            if path.is_dir() and not any(path.iterdir()):
                path.rmdir()
        raise ConfigError(
            f"{config.source_of(('output',))}: output: {target} cannot be written "
            f"({error.strerror or first_line(error)})"
        ) from error
