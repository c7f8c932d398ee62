"""A pair's models as files that llama.cpp runs."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from typing_extensions import override

from specexp.artifacts import ArtifactError
from specexp.deploy.export.export_format import ExportedFile, Format, Given


class Gguf(Format):
    """``target.gguf`` and ``draft.gguf`` of a model, or of the embedded pair by its name."""

    read_for = "llama.cpp of llama-cpp-python 0.3.36"
    options = ("draft", "precision")
    folder = True

    @override
    def make(self, given: Given) -> ExportedFile:
        folder = given.output or Path("models") / Path(given.source).name
        return ExportedFile(*export_pair(str(given.source), folder, **given.options))

    @override
    def deployed_by(self, file: str, made: ExportedFile) -> str:
        target, *draft = (shlex.quote(str(path)) for path in made.content)
        drafted = "".join(f" --spec-type draft-simple --spec-draft-model {path}" for path in draft)
        return f"llama-server --model {target}{drafted}"


def export_pair(
    target: str, folder: str | Path, draft: str | None = None, precision: str = "f32"
) -> tuple[Sequence[Path], str]:
    """Write a target, and its draft if it has one, as ``target.gguf`` and ``draft.gguf``.

    Args:
        target: a target as :func:`specexp.load_pair` takes it, of the Llama family.
        folder: where the files go; those that are there are replaced.
        draft: a draft as :func:`specexp.load_pair` takes it; the embedded pair has its own.
        precision: of the weights, as :data:`~specexp.models.gguf_writing.Precision` names them.

    Returns:
        The files, and a sentence on what llama.cpp's own programs cannot do with them, empty where they can do all.

    Raises:
        ArtifactError: a model cannot be loaded, has no such form, or the folder cannot be written.

    Example:
        >>> export_pair("stdlib", "models/stdlib", precision="q8_0")  # doctest: +SKIP
    """
    from specexp.models.gguf import is_gguf
    from specexp.models.gguf_writing import check_precision, write_gguf
    from specexp.models.pair import load_pair

    if any(is_gguf(source) for source in (target, draft or "")):
        raise ArtifactError("--to gguf: a GGUF file is given already; name the model it was made from")
    if any(path.exists() and not path.is_dir() for path in (Path(folder), *Path(folder).parents)):
        raise ArtifactError(f"--output: {folder} is no folder and cannot hold target.gguf; name another one")
    try:
        check_precision(precision)
        pair = load_pair(target, draft, target_dtype="float32", draft_dtype="float32")
        files, dropped = [], ""
        for role, model in (("target", pair.target), ("draft", pair.draft)):
            if model is not None:
                file = Path(folder) / f"{role}.gguf"
                dropped = write_gguf(model, pair.tokenizer, file, precision)  # type: ignore[arg-type]
                files.append(file)
    except (ValueError, OSError) as error:
        raise ArtifactError(f"--to gguf: {error}") from error
    return files, dropped
