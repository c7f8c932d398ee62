"""A model folder that ``transformers serve`` runs and ``model.generate`` loads with the artifact at work."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from typing_extensions import override

from specexp.artifacts import ArtifactError
from specexp.deploy.export.export_format import ExportedFile, ExportFormat, Given

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from specexp.core.contracts import Drafter
    from specexp.models.pair import ModelPair


class ServeBundle(ExportFormat):
    """Target, tokenizer, artifact, draft and a hook of three lines; nothing of it names a path of this machine.

    The folder is new or empty. Whoever loads it has specexp installed and trusts the hook with ``trust_remote_code``.
    """

    name = "serve-bundle"
    kinds = ("static-tree", "composition", "thresholds", "schedule", "plain-decoding")
    read_for = "transformers 5.23"
    deployment = "transformers serve --trust-remote-code {file}"
    options = ("target", "draft")
    folder = True

    @override
    def make(self, given: Given) -> ExportedFile:
        from specexp.config.artifacts import load_artifact
        from specexp.models.gguf import is_gguf
        from specexp.models.pair import load_pair
        from specexp.models.sources import PairError

        if given.trust:
            raise ArtifactError(
                "--trust is not for --to serve-bundle, whose hook imports specexp's own parts alone"
            )
        artifact = load_artifact(given.source)
        self.check_kind(artifact)
        folder = given.output or Path("models") / artifact.content.name
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ArtifactError(f"--output: {folder} is there already; name a new or an empty folder")
        if any(is_gguf(source) for source in given.options.values()):
            raise ArtifactError(
                "--to serve-bundle: transformers runs no GGUF file; name the model it was made from"
            )
        try:
            pair = load_pair(
                given.options.get("target", "stdlib"),
                given.options.get("draft"),
                target_dtype=artifact.provenance.get("dtype") or "bfloat16",
            )
        except PairError as error:
            raise ArtifactError(f"--to serve-bundle: {error}") from error
        artifact.check(pair.target, pair.tokenizer)
        drafts = not artifact.content.plain and _asks_draft(artifact.parts.drafter)
        if drafts and pair.draft is None:
            raise ArtifactError(
                f"{artifact.folder}: its drafter asks a draft model: give --draft, a hub id or a folder"
            )
        try:
            _write(folder, artifact.folder, pair, pair.draft if drafts else None)
        except OSError as error:
            raise ArtifactError(
                f"--output: {folder} cannot be written ({error.strerror or error})"
            ) from error
        chat = "" if pair.tokenizer.chat_template else "chat, for the tokenizer has no template, and "
        told = f"serve-bundle: dropped {chat}the artifact's verifier, for every request says how it samples"
        return ExportedFile([folder], told)


def _asks_draft(drafter: Drafter | None) -> bool:
    try:
        if drafter is not None:
            drafter.use_draft_model(None)
    except ValueError:
        return True
    return False


def _write(folder: Path, artifact: Path, pair: ModelPair, draft: PreTrainedModel | None) -> None:
    from specexp.deploy.hugging_face.bundle import ARTIFACT, DRAFT, HOOK, HOOK_TEXT

    folder.mkdir(parents=True, exist_ok=True)
    pair.target.save_pretrained(folder)
    pair.tokenizer.save_pretrained(folder)
    if draft is not None:
        draft.save_pretrained(folder / DRAFT)
    shutil.copytree(artifact.resolve(), folder / ARTIFACT)
    (folder / HOOK).parent.mkdir()
    (folder / HOOK).write_text(HOOK_TEXT, encoding="utf-8")
