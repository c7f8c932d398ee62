"""``python -m specexp.export ARTIFACT --to FORMAT``: turns an artifact into what a deployment accepts.

``python -m specexp.export MODEL --to gguf`` writes a model, or the embedded pair by its name, as files for llama.cpp.
"""

from __future__ import annotations

if __name__ == "__main__":  # before what takes seconds to import
    from specexp.core.start import begin

    begin()

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from specexp.config.command import fail

_GGUF = "gguf"
"""The format of models; all others are of artifacts."""


def export(
    path_or_reference: str | Path, to: str, output: str | Path | None = None, trust: Sequence[str] = ()
) -> tuple[Any, str]:
    """Export an artifact.

    Args:
        path_or_reference: the artifact, as :func:`specexp.load_artifact` takes it.
        to: name of a format, e.g. ``rank-paths``.
        output: JSON file to write, whole or not at all. Where the format is a part of a larger file, such as
            a model's ``generation_config.json``, the other keys of an existing file stay.
        trust: installed packages whose classes its parts may be.

    Returns:
        The content, and one sentence on what the format had to drop, empty where it says all.

    Raises:
        ArtifactError: the artifact or the format is wrong, or the file cannot be written.

    Example:
        >>> paths, dropped = export("artifacts/tree_shape/best", "rank-paths")  # doctest: +SKIP
    """
    from specexp.artifacts import ArtifactError, formats
    from specexp.artifacts.export_format import ExportFormat
    from specexp.artifacts.plugins import class_in, names_in
    from specexp.config.artifacts import load_artifact
    from specexp.core.messages import did_you_mean

    try:
        chosen = class_in(formats, to, ExportFormat)()
    except LookupError as error:
        raise ArtifactError(
            f"--to: format {to!r} is not known{did_you_mean(to, (*names_in(formats), _GGUF))}"
        ) from error
    artifact = load_artifact(path_or_reference, trust)
    if artifact.kind not in chosen.kinds:
        raise ArtifactError(
            f"{artifact.folder}: kind {artifact.kind!r} cannot be exported to {to}, "
            f"which takes {', '.join(chosen.kinds)}" + (f"; {artifact.purpose}" if artifact.purpose else "")
        )
    result = chosen.export(artifact)
    if output is not None:
        _write(Path(output), result.content, keep_other_keys=chosen.updates)
    return result.content, result.dropped


def to_json(content: Any) -> str:
    """JSON text: an object with one key a line, a list on one line."""
    return json.dumps(content, indent=2 if isinstance(content, dict) else None) + "\n"


def main(arguments: list[str] | None = None) -> int:
    """The command; returns its exit code."""
    parser = _parser()
    given = parser.parse_args(arguments)
    from specexp.artifacts import ArtifactError
    from specexp.config.errors import ConfigError
    from specexp.config.here import check_writable
    from specexp.config.places import check_expanded

    try:
        check_expanded(given.output or "", ConfigError("--output"))
        if given.to == _GGUF:
            return _export_pair(given)
        for name in ("draft", "precision"):
            if getattr(given, name) is not None:
                raise ConfigError(
                    f"--{name} is for --to {_GGUF}, and the format is {given.to!r}: leave it out"
                )
        if given.output is not None:
            check_writable(Path(given.output).parent, ConfigError("--output"))
        content, dropped = export(given.artifact, given.to, given.output, given.trust)
    except (ArtifactError, ConfigError) as error:
        return fail(error)
    print(
        to_json(content) if given.output is None else given.output, end="" if given.output is None else "\n"
    )
    if dropped:
        print(dropped, file=sys.stderr)
    return 0


def _export_pair(given: argparse.Namespace) -> int:
    from specexp.export.gguf import export_pair

    folder = given.output or str(Path("models") / Path(given.artifact).name)
    files, dropped = export_pair(given.artifact, folder, given.draft, given.precision or "f32")
    for file in files:
        print(file)
    if dropped:
        print(dropped, file=sys.stderr)
    return 0


def _write(path: Path, content: Any, *, keep_other_keys: bool) -> None:
    from specexp.artifacts import ArtifactError
    from specexp.artifacts.manifest import read_bytes, read_json
    from specexp.artifacts.versions import write_file

    if path.is_dir():
        raise ArtifactError(f"--output: {path} is a folder; name a file in it")
    if keep_other_keys and path.exists():
        existing = read_json(read_bytes(path.resolve(), str(path)), str(path))
        if not isinstance(existing, dict):
            raise ArtifactError(f"--output: {path} exists and is no JSON object; name another file")
        content = {**existing, **content}
    write_file(path, to_json(content).encode())


def _parser() -> argparse.ArgumentParser:
    """The command line; the formats are the files of ``specexp/artifacts/formats``, none of them imported."""
    folder = Path(__file__).parents[1] / "artifacts" / "formats"
    formats = sorted(file.stem.replace("_", "-") for file in folder.glob("[!_]*.py"))
    parser = argparse.ArgumentParser(
        prog="python -m specexp.export",
        description="Turn an artifact into what a deployment accepts, or a model into a GGUF file.",
    )
    parser.add_argument(
        "artifact",
        metavar="ARTIFACT",
        help="folder, alias such as artifacts/tree_shape/best, or wandb:entity/project/name:alias; with --to gguf a "
        "model: stdlib for the embedded pair, a hub id or a folder",
    )
    parser.add_argument(
        "--to", required=True, metavar="FORMAT", help=f"one of: {', '.join((*formats, _GGUF))}"
    )
    parser.add_argument(
        "--output",
        metavar="FILE",
        help="file to write; without it the text goes to the output; with --to gguf a folder for target.gguf and "
        "draft.gguf, models/MODEL without it",
    )
    parser.add_argument("--draft", metavar="MODEL", help="with --to gguf: the draft's hub id or folder")
    parser.add_argument(
        "--precision",
        metavar="PRECISION",
        help="with --to gguf: f32 (unless given), bf16, f16, q8_0 or q4_k_m",
    )
    parser.add_argument(
        "--trust",
        action="append",
        default=[],
        metavar="PACKAGE",
        help="installed package whose classes the artifact's parts may be",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
