"""The format that writes an ordinary Hugging Face model folder."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from specexp.artifacts import ArtifactError
from specexp.artifacts.manifest import MANIFEST
from specexp.base.messages import restated
from specexp.deploy.export.export_format import ExportedFile, ExportFormat, ExportRequest

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class HuggingFaceModel(ExportFormat):
    """An ordinary model folder in bfloat16, with a model such as ``stdlib`` or ``stdlib-draft`` and its tokenizer.

    Other programs cannot read the embedded models' own 8-bit format. A draft or a head such as ``smollm2:eagle3`` also
    gets the weights that it shares with its target.
    """

    name = "hf"
    read_for = "transformers 5.23"
    deployment = "transformers serve {file}"
    folder = True

    @override
    def make(self, request: ExportRequest) -> ExportedFile:
        from specexp.core.packed import has_embeddings, is_packed
        from specexp.models.pair import load_pair
        from specexp.models.sources import PairError, checked_sources, embedded_artifacts

        source = str(request.source)
        if source in embedded_artifacts(source.partition(":")[0]) or Path(source, MANIFEST).is_file():
            raise ArtifactError(f"--to {self.name} takes a model or a head, got the artifact {source}")
        folder = request.output or Path("models") / source
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ArtifactError(f"--output: {folder} already exists; choose a new or an empty folder")
        with restated(PairError, lambda error: ArtifactError(f"--to {self.name}: {error}")):
            family, _, head = source.partition(":")
            first = checked_sources(family, None)[0]
            print(f"Loading {source} ...", file=sys.stderr, flush=True)
            if head:
                _save_head(source, load_pair(family).target, folder)
                return ExportedFile([folder])
            shares = is_packed(first) and not has_embeddings(first)
            target = family.partition("-")[0]
            pair = load_pair(target, target) if shares else load_pair(source)
            model = pair.draft if shares else pair.target
        assert model is not None
        model.save_pretrained(folder)
        pair.tokenizer.save_pretrained(folder)
        return ExportedFile([folder])

    @override
    def deployed_by(self, file: str, content: Any) -> str:
        if Path(content[0], "tokenizer_config.json").exists():
            return super().deployed_by(file, content)
        # a head drafts for its target, and serves nothing alone
        spec = json.dumps({"method": "eagle3", "model": str(content[0]), "num_speculative_tokens": 2})
        return f"python -m vllm.entrypoints.openai.api_server --model MODEL --speculative-config {shlex.quote(spec)}"


def _save_head(source: str, target: PreTrainedModel, folder: Path) -> None:
    """Write an EAGLE-3 head with its own output rows, which engines expect of a head with few tokens."""
    from torch import nn

    from specexp.drafters.eagle3 import folder_of
    from specexp.drafters.eagle3_network import Eagle3Network

    with restated(ValueError, lambda error: ArtifactError(f"--to hf: {error}")):
        network = Eagle3Network.load(folder_of(source))
    if network.lm_head is None:
        rows = target.get_output_embeddings().weight[network.kept].to(network.fc.weight)
        network.lm_head = nn.Linear(rows.shape[1], rows.shape[0], bias=False)
        network.lm_head.weight = nn.Parameter(rows, requires_grad=False)
    network.save(folder)
