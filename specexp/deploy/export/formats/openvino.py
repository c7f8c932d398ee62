"""OpenVINO GenAI's ``generation_config.json``."""

from __future__ import annotations

from typing_extensions import override

from specexp.deploy.export.export_format import ExportedFile
from specexp.deploy.export.formats._chain import ChainDraft, ChainFormat
from specexp.engines.settings.openvino import OpenVinoSettings
from specexp.engines.settings.settings import Settings


class OpenVino(ChainFormat):
    """Keys of the file beside the model; not the file that Hugging Face reads, whose keys differ.

    The draft model or ``prompt_lookup=True`` is given where the pipeline is made.
    """

    settings = OpenVinoSettings
    read_for = OpenVinoSettings.read_for
    updates = True  # it also holds the EOS tokens
    names_draft = False
    options = ()

    @override
    def drafted(self, chain: ChainDraft, draft: str) -> Settings:
        return OpenVinoSettings(chain.length)

    @override
    def looked_up(self, chain: ChainDraft, shortest: int, longest: int) -> tuple[Settings, tuple[str, ...]]:
        made = OpenVinoSettings(chain.length, max_ngram_size=longest)
        lost = "the order of matches, for OpenVINO GenAI has its own"
        return made, (lost,) if shortest == 1 else (lost, f"min_ngram={shortest}")

    @override
    def deployed_by(self, file: str, made: ExportedFile) -> str:
        # the file lies in the model's folder, from which the pipeline takes its settings
        lookup = "max_ngram_size" in made.content
        draft = "prompt_lookup=True" if lookup else 'draft_model=genai.draft_model("DRAFT", "CPU")'
        code = f'print(genai.LLMPipeline("MODEL", "CPU", {draft}).generate("Hello"))'
        return f"python -c 'import openvino_genai as genai; {code}'"
