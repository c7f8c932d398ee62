"""``python -m specexp.export ARTIFACT --to FORMAT``: converts an artifact to a file that another program can read."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from specexp.artifacts import ArtifactError
from specexp.artifacts.atomic_write import atomic_write
from specexp.artifacts.manifest import read_bytes, read_json
from specexp.base.messages import did_you_mean
from specexp.config.command import Options, check_writable, fail
from specexp.config.config import check_expanded
from specexp.config.layers import ConfigError
from specexp.deploy.export.export_format import ExportedFile, ExportFormat, ExportRequest, all_formats
from specexp.engines.settings import SettingsError


def export(
    path_or_reference: str | Path,
    to: str,
    output: str | Path | None = None,
    trust: Sequence[str] = (),
    **options: str,
) -> tuple[Any, str]:
    """Export an artifact or, if the format accepts one, a model.

    Args:
        path_or_reference: the artifact's path or reference, as in :func:`specexp.load_artifact`.
        to: name of a format, e.g. ``vllm``.
        output: file to write (atomically). If the format is part of a larger file, such as a model's
            ``generation_config.json``, the other keys of an existing file are kept.
        trust: installed packages from which parts of the artifact may be imported.
        options: options of the format, e.g. ``draft``.

    Returns:
        The file's content, and a sentence naming the dropped settings, which is empty if there are none.

    Raises:
        ArtifactError: the artifact or the format is not valid, or the file cannot be written.

    Example:
        >>> config, dropped = export("artifacts/tree_shape/best", "vllm", draft="small")  # doctest: +SKIP
    """
    file = None if output is None else Path(output)
    made = _exported(_format(to), ExportRequest(path_or_reference, file, trust, options))
    return made.content, made.dropped


def _format(to: str) -> ExportFormat:
    formats = all_formats()
    if to not in formats:
        raise ArtifactError(f"--to: there is no format {to!r}{did_you_mean(to, formats)}")
    return formats[to]()


def _exported(chosen: ExportFormat, request: ExportRequest) -> ExportedFile:
    for name, value in request.options.items():
        if not value:
            raise ArtifactError(f"--{name} must not be empty")
        if name not in chosen.options:
            takes = [to for to, one in all_formats().items() if name in one.options]
            raise ArtifactError(
                f"--{name} is only for --to {', '.join(takes)}, got --to {chosen.name}: leave --{name} out"
            )
    made = chosen.make(request)
    if request.output is not None and not chosen.folder:
        _write(request.output, made.content, keep_other_keys=chosen.updates)
    return made


def _as_text(content: Any) -> str:
    """Return text unchanged, an object as indented JSON, and a list as JSON on one line."""
    if isinstance(content, str):
        return content
    return json.dumps(content, indent=2 if isinstance(content, dict) else None) + "\n"


def _write(path: Path, content: Any, *, keep_other_keys: bool) -> None:
    if path.is_dir():
        raise ArtifactError(f"--output must be a file, got the folder {path}")
    if keep_other_keys and path.exists():
        existing = read_json(read_bytes(path.resolve(), str(path)), str(path))
        if not isinstance(existing, dict):
            raise ArtifactError(f"--output: {path} exists and is not a JSON object; choose another file")
        content = {**existing, **content}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(path, _as_text(content))
    except OSError as error:
        raise ArtifactError(f"--output: {path} cannot be written ({error.strerror or error})") from error


def main(arguments: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    given = _parser().parse_args(arguments)
    output = None if given.output is None else Path(given.output)
    options = {} if given.draft is None else {"draft": given.draft}
    try:
        check_expanded(given.output or "", ConfigError("--output"))
        chosen = _format(given.to)
        if output is not None and not chosen.folder:
            check_writable(output.parent, ConfigError("--output"))
        made = _exported(chosen, ExportRequest(given.artifact, output, given.trust, options))
    except (ArtifactError, ConfigError, SettingsError) as error:
        return fail(error)
    if chosen.folder:
        print(*made.content, sep="\n")
    else:
        print(_as_text(made.content) if output is None else f"{output}\n", end="")
    print(f"{made.dropped or chosen.name}; written for {chosen.read_for}", file=sys.stderr)
    file = shlex.quote(str(made.content[0] if chosen.folder else output or "FILE"))
    if line := made.command.format(file=file) or chosen.deployed_by(file, made.content):
        print(f"Next: {line}", file=sys.stderr)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = Options(
        prog="python -m specexp.export",
        description="Convert an artifact to a file that another program reads.",
    )
    parser.add_argument(
        "artifact",
        metavar="ARTIFACT",
        help="the artifact: a folder, an alias such as artifacts/tree_shape/best, or "
        "wandb:entity/project/name:alias; a model for --to hf",
    )
    add = parser.add_argument
    add("--to", required=True, metavar="FORMAT", help=f"one of: {', '.join(all_formats())}")
    output = "file to write (default: the console); for --to hf a folder (default: models/NAME)"
    add("--output", metavar="FILE", help=output)
    add("--draft", metavar="MODEL", help="the draft model's name or path for the engine")
    trust = "an installed package from which parts of the artifact may be imported"
    add("--trust", action="append", default=[], metavar="PACKAGE", help=trust)
    return parser
