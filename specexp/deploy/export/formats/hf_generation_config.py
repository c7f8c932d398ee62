"""``generation_config.json`` for Hugging Face's assisted generation and prompt lookup, which draft chains."""

from __future__ import annotations

from typing_extensions import override

from specexp.deploy.export.export_format import ExportedFile, ExportFormat, Tuned
from specexp.deploy.export.formats._chain import CHAINS, chain_of, measured_settings
from specexp.engines.settings.hugging_face import HuggingFaceSettings


class HfGenerationConfig(ExportFormat):
    """The tree's chain of best candidates, as a fixed number of drafted tokens.

    A tree tuned with ``PromptLookup`` becomes prompt lookup; any other one assisted generation, which needs
    an ``assistant_model``. Of a schedule the drafts alone are left: Hugging Face drafts for one sequence at a time.
    """

    kinds = (*CHAINS, "engine-settings")
    read_for = HuggingFaceSettings.read_for
    updates = True  # a model's own file also holds its EOS tokens

    @override
    def export(self, artifact: Tuned, **options: str) -> ExportedFile:
        name = HuggingFaceSettings.engine
        if artifact.kind == "engine-settings":
            return ExportedFile(measured_settings(artifact, HuggingFaceSettings).deployed())
        chain = chain_of(artifact, name)
        lost: tuple[str, ...] = ()
        if chain.drafter == "PromptLookup":
            made = HuggingFaceSettings(
                prompt_lookup_num_tokens=chain.length,
                max_matching_ngram_size=chain.arguments.get("max_ngram", 3),
            )
        else:
            made = HuggingFaceSettings(
                num_assistant_tokens=chain.length,
                num_assistant_tokens_schedule="constant",
                assistant_confidence_threshold=0.0,
            )
            if chain.drafter:
                lost = (f"the {chain.drafter} drafter (give generate an assistant_model instead)",)
        return ExportedFile(made.deployed(), chain.told(name, *lost))

    @override
    def deployed_by(self, file: str, made: ExportedFile) -> str:
        # the file lies in the model's folder, from which generate takes its settings
        draft = "" if "prompt_lookup_num_tokens" in made.content else ', assistant_model="DRAFT"'
        code = f'print(pipeline("text-generation", "MODEL"{draft})("Hello", max_new_tokens=32))'
        return f"python -c 'from transformers import pipeline; {code}'"
