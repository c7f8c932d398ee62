"""The format that writes an ordinary Hugging Face model folder."""

from __future__ import annotations

import sys
from pathlib import Path

from typing_extensions import override

from specexp.artifacts import ArtifactError
from specexp.deploy.export.export_format import ExportedFile, ExportFormat, ExportRequest


class HuggingFaceModel(ExportFormat):
    """An ordinary model folder in bfloat16, with a model such as ``stdlib`` or ``stdlib-draft`` and its tokenizer.

    Other programs cannot read the embedded models' own 8-bit format.
    """

    name = "hf"
    read_for = "transformers 5.23"
    deployment = "transformers serve {file}"
    folder = True

    @override
    def make(self, request: ExportRequest) -> ExportedFile:
        from specexp.models.pair import load_pair
        from specexp.models.sources import PairError, checked_sources

        source = str(request.source)
        folder = request.output or Path("models") / source
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ArtifactError(f"--output: {folder} already exists; choose a new or an empty folder")
        try:
            checked_sources(source, None)
            print(f"Loading {source} ...", file=sys.stderr, flush=True)
            pair = load_pair(source)
        except PairError as error:
            raise ArtifactError(f"--to {self.name}: {error}") from error
        pair.target.save_pretrained(folder)
        pair.tokenizer.save_pretrained(folder)
        return ExportedFile([folder])
