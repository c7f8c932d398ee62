"""A model as an ordinary transformers folder, for what does not read the embedded models' 8 bits."""

from __future__ import annotations

from pathlib import Path

from typing_extensions import override

from specexp.artifacts import ArtifactError
from specexp.deploy.export.export_format import ExportedFile, Format, Given


class HuggingFaceModel(Format):
    """A model, such as ``stdlib``, ``stdlib-draft`` or ``stdlib-middle``, with its tokenizer, in bfloat16."""

    name = "hf"
    read_for = "transformers 5.23"
    deployment = "transformers serve {file}"
    folder = True

    @override
    def make(self, given: Given) -> ExportedFile:
        from specexp.models.pair import load_pair
        from specexp.models.sources import PairError

        folder = given.output or Path("models") / str(given.source)
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ArtifactError(f"--output: {folder} is there already; name a new or an empty folder")
        try:
            pair = load_pair(str(given.source))
        except PairError as error:
            raise ArtifactError(f"--to hf: {error}") from error
        pair.target.save_pretrained(folder)
        pair.tokenizer.save_pretrained(folder)
        return ExportedFile([folder])
