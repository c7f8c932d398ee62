"""``python -m specexp.export ARTIFACT --to FORMAT``: turns an artifact into a file that a deployment accepts."""

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
from specexp.config.command import check_writable, fail
from specexp.config.config import check_expanded
from specexp.config.layers import ConfigError
from specexp.core.messages import did_you_mean
from specexp.deploy.export.export_format import ExportedFile, ExportFormat, ExportRequest, all_formats
from specexp.engines.settings import SettingsError

_OPTIONS = {
    "draft": (
        "MODEL",
        "with --to serve-bundle the draft's hub id or folder; otherwise its name in the engine",
    ),
    "target": ("MODEL", "with --to serve-bundle the target's hub id or folder (stdlib)"),
    "length": ("N", "with --to acceptance-profile the number of drafted tokens of a step (5)"),
}
"""Options that only some formats take, each with its metavar and help."""


def export(
    path_or_reference: str | Path,
    to: str,
    output: str | Path | None = None,
    trust: Sequence[str] = (),
    **options: str,
) -> tuple[Any, str]:
    """Export an artifact, or the other source that the format takes.

    Args:
        path_or_reference: the artifact, as :func:`specexp.load_artifact` takes it.
        to: name of a format, e.g. ``vllm``.
        output: file to write, whole or not at all. Where the format is a part of a larger file, such as a model's
            ``generation_config.json``, the other keys of an existing file stay.
        trust: installed packages that may define its parts.
        options: the format's own, e.g. ``draft``.

    Returns:
        The content, and one sentence on what was dropped, empty if the format expresses everything.

    Raises:
        ArtifactError: the artifact or the format is wrong, or the file cannot be written.

    Example:
        >>> config, dropped = export("artifacts/tree_shape/best", "vllm", draft="small")  # doctest: +SKIP
    """
    file = None if output is None else Path(output)
    made = _exported(_format(to), ExportRequest(path_or_reference, file, trust, options))
    return made.content, made.dropped


def _format(to: str) -> ExportFormat:
    formats = all_formats()
    if to not in formats:
        raise ArtifactError(f"--to: format {to!r} is not known{did_you_mean(to, formats)}")
    return formats[to]()


def _exported(chosen: ExportFormat, request: ExportRequest) -> ExportedFile:
    for name in request.options:
        if name not in chosen.options:
            takes = [to for to, one in all_formats().items() if name in one.options]
            raise ArtifactError(
                f"--{name} is for --to {', '.join(takes)}, and the format is {chosen.name!r}: leave it out"
            )
    made = chosen.make(request)
    if request.output is not None and not chosen.folder:
        _write(request.output, made.content, keep_other_keys=chosen.updates)
    return made


def _as_text(content: Any) -> str:
    """JSON with one key of an object a line and a list on one line, unless it is text already."""
    if isinstance(content, str):
        return content
    return json.dumps(content, indent=2 if isinstance(content, dict) else None) + "\n"


def _write(path: Path, content: Any, *, keep_other_keys: bool) -> None:
    if path.is_dir():
        raise ArtifactError(f"--output: {path} is a folder; name a file in it")
    if keep_other_keys and path.exists():
        existing = read_json(read_bytes(path.resolve(), str(path)), str(path))
        if not isinstance(existing, dict):
            raise ArtifactError(f"--output: {path} exists and is not a JSON object; name another file")
        content = {**existing, **content}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(path, _as_text(content))
    except OSError as error:
        raise ArtifactError(f"{path} cannot be written ({error.strerror or error})") from error


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    given = _parser().parse_args(arguments)
    output = None if given.output is None else Path(given.output)
    options = {name: value for name in _OPTIONS if (value := getattr(given, name)) is not None}
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
    print(f"{made.dropped or chosen.name}; read for {chosen.read_for}", file=sys.stderr)
    file = made.content[0] if chosen.folder else output or "FILE"
    if line := chosen.deployed_by(shlex.quote(str(file)), made.content):
        print(f"Next: {line}", file=sys.stderr)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m specexp.export", description="Turn an artifact into a file that a deployment accepts."
    )
    parser.add_argument(
        "artifact",
        metavar="ARTIFACT",
        help="folder, alias such as artifacts/tree_shape/best, or wandb:entity/project/name:alias; with --to "
        "acceptance-profile a recording",
    )
    add = parser.add_argument
    add("--to", required=True, metavar="FORMAT", help=f"one of: {', '.join(all_formats())}")
    output = (
        "file to write, the console without it; with --to serve-bundle or hf a folder, models/NAME without it"
    )
    add("--output", metavar="FILE", help=output)
    for name, (metavar, text) in _OPTIONS.items():
        add(f"--{name}", metavar=metavar, help=text)
    trust = "an installed package that may define parts of the artifact"
    add("--trust", action="append", default=[], metavar="PACKAGE", help=trust)
    return parser
