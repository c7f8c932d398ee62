"""Formats that write Hugging Face model folders: an ordinary one, and one that decodes with an artifact."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from specexp.artifacts import ArtifactError
from specexp.deploy.export.export_format import ExportedFile, ExportFormat, ExportRequest, sampling_of

if TYPE_CHECKING:
    from specexp.core.contracts import Drafter
    from specexp.models.pair import ModelPair


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
        folder = _new_folder(request.output or Path("models") / str(request.source))
        _write_model(_loaded(self.name, str(request.source)), folder)
        return ExportedFile([folder])


class ServeBundle(ExportFormat):
    """A portable model folder with the target, draft, tokenizer and artifact, and a three-line hook that loads them.

    Loading the folder requires specexp and ``trust_remote_code=True``, which lets the hook run.
    """

    name = "serve-bundle"
    kinds = ("static-tree", "composition", "thresholds", "schedule", "plain-decoding")
    read_for = "transformers 5.23"
    deployment = "transformers serve --trust-remote-code {file}"
    options = ("target", "draft")
    folder = True

    @override
    def make(self, request: ExportRequest) -> ExportedFile:
        from specexp.models.gguf import is_gguf

        if request.trust:
            raise ArtifactError(
                "--trust is not supported with --to serve-bundle, which contains only specexp's own parts: leave it out"
            )
        artifact = self.load(request)
        folder = _new_folder(request.output or Path("models") / artifact.content.name)
        target, draft = request.options.get("target", "stdlib"), request.options.get("draft")
        found_for = ((artifact.provenance.get("config") or {}).get("pair") or {}).get("target")
        if "target" not in request.options and found_for != "stdlib":
            why = "does not record its model" if found_for is None else f"was found for {found_for!r}"
            raise ArtifactError(f"--target must be given, since {artifact.folder} {why}")
        if is_gguf(target) or is_gguf(draft or ""):
            raise ArtifactError(
                "--to serve-bundle: transformers cannot run GGUF files; give the original model of the file"
            )
        from specexp.deploy.hugging_face.bundle import ARTIFACT, DRAFT, HOOK, HOOK_TEXT

        dtype = artifact.provenance.get("dtype") or "bfloat16"
        pair = _loaded(self.name, target, draft, target_dtype=dtype)
        artifact.check(pair.target, pair.tokenizer)
        drafts = not artifact.content.plain and _needs_draft(artifact.parts.drafter)
        if drafts and pair.draft is None:
            raise ArtifactError(
                f"{artifact.folder}: the drafter needs a draft model: give --draft, a hub id or a folder"
            )
        try:
            _write_model(pair, folder)
            if drafts and pair.draft is not None:
                pair.draft.save_pretrained(folder / DRAFT)
            shutil.copytree(artifact.folder.resolve(), folder / ARTIFACT)
            (folder / HOOK).parent.mkdir()
            (folder / HOOK).write_text(HOOK_TEXT, encoding="utf-8")
        except OSError as error:
            raise ArtifactError(
                f"--output: {folder} cannot be written ({error.strerror or error})"
            ) from error
        chat = "" if pair.tokenizer.chat_template else "chat (the tokenizer has no chat template) and "
        return ExportedFile(
            [folder],
            f"serve-bundle: dropped {chat}the artifact's verifier"
            f" ({sampling_of(artifact) or 'every request sets its own sampling'})",
        )


def _new_folder(folder: Path) -> Path:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ArtifactError(f"--output: {folder} already exists; choose a new or an empty folder")
    return folder


def _loaded(to: str, target: str, draft: str | None = None, **options: Any) -> ModelPair:
    from specexp.models.pair import load_pair
    from specexp.models.sources import PairError, checked_sources

    try:
        checked_sources(target, draft)
        print(f"Loading {target} ...", file=sys.stderr, flush=True)
        return load_pair(target, draft, **options)
    except PairError as error:
        raise ArtifactError(f"--to {to}: {error}") from error


def _write_model(pair: ModelPair, folder: Path) -> None:
    pair.target.save_pretrained(folder)
    pair.tokenizer.save_pretrained(folder)


def _needs_draft(drafter: Drafter | None) -> bool:
    try:
        if drafter is not None:
            drafter.use_draft_model(None)
    except ValueError:
        return True
    return False
