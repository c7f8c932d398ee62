"""Formats for engines, which draft chains. Settings come from an artifact's best chain or a study of the engine."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, ClassVar

import yaml
from typing_extensions import override

from specexp.artifacts import ArtifactError, write_artifact
from specexp.artifacts.kinds.compositions import CONFIRMED, ConfirmedSetting
from specexp.artifacts.manifest import read_bytes, read_json
from specexp.artifacts.parts import PARTS
from specexp.artifacts.store import BEST_TREE
from specexp.artifacts.validation import validated
from specexp.base.messages import restated
from specexp.deploy.export.export_format import ExportedFile, ExportFormat, ExportRequest, NotInEngineError
from specexp.drafters.token_drafter import drafts_from_tokens
from specexp.engines.engine import EngineError
from specexp.engines.server import filled
from specexp.engines.settings import (
    PROPOSER,
    HuggingFaceSettings,
    LlamaCppSettings,
    OpenVinoSettings,
    Settings,
    SglangSettings,
    TrtllmSettings,
    VllmSettings,
    runs_in,
)
from specexp.models.gguf import is_gguf
from specexp.models.sources import sources_of

if TYPE_CHECKING:
    from specexp.config.artifacts import LoadedArtifact
    from specexp.core.contracts import Controller

Expressed = tuple[Settings, tuple[str, ...]]
"""Settings, and descriptions of the parts of the artifact that they cannot express."""


@dataclass(frozen=True)
class ChainDraft:
    """The chain of top candidates in an artifact's tree."""

    length: int  # number of drafted tokens, at least one
    drafter: str  # class name of the artifact's drafter; empty if there is none
    arguments: Mapping[str, Any]  # the drafter's arguments
    kept: str  # description of the part of the tree that the chain keeps
    lost: tuple[str, ...]  # descriptions of the parts of the artifact that no chain can express

    def set_arguments(self, *names: str) -> tuple[str, ...]:
        """Return descriptions of the named arguments that are set, i.e. not None, False or 1."""
        values = {name: self.arguments.get(name) for name in names}
        given = {name: value for name, value in values.items() if value not in (None, False, 1)}
        return tuple("the corpus" if name == "corpus" else f"{name}={value}" for name, value in given.items())


def chain_of(
    artifact: LoadedArtifact, name: str, keeps: Callable[[Controller], bool] = lambda one: one.same_plan
) -> ChainDraft:
    """Return the chain in an artifact's tree. ``name`` is the format's name in error messages, and ``keeps`` returns
    whether the engine runs a controller.

    Raises ArtifactError if the artifact's trees differ from step to step.
    """
    paths = artifact.builder.rank_paths
    if paths is None:
        raise ArtifactError(
            f"{artifact.folder}: {name} needs a fixed tree, but the trees of {type(artifact.builder).__name__} differ "
            "from step to step"
        )
    length = max((len(path) for path in paths if not any(path)), default=0)  # only paths of rank 0
    controller, lost = artifact.controller, []
    if controller is not None and not keeps(controller):
        lost.append(f"the {type(controller).__name__} controller")
    if (strategy := artifact.execution_spec) is not None:
        arguments = ", ".join(
            f"{key}={value['class_path'] if isinstance(value, Mapping) else value}"
            for key, value in strategy["init_args"].items()
            if value is not None
        )
        lost.append(f"the strategy {strategy['class_path']}({arguments})")
    if rest := len(paths) - length:
        lost.append(f"{rest} of {len(paths)} nodes")
    kept = f"the tree's best chain, of length {length}" if length else "one drafted token (the tree has no chain)"
    drafter = artifact.recorded.get("drafter", {})
    drafter_name = drafter.get("class_path", "").rpartition(".")[2]
    return ChainDraft(max(length, 1), drafter_name, drafter.get("init_args", {}), kept, tuple(lost))


def _artifact_of(file: Path) -> Path:
    """Return the artifact's alias of the study in the folder of ``file``, seen from where the study was started."""
    config = file.with_name("config.yaml")
    resolved = yaml.safe_load(read_bytes(config, str(config)))
    export = (resolved.get("sweep") or {}).get("export")
    if export is None:
        raise ArtifactError(f"{config}: sweep.export must be set, so that the study writes an artifact, got null")
    run = Path(resolved["output"], resolved["name"])
    folder = file.parent.absolute()
    is_below = folder.parts[-len(run.parts) :] == run.parts
    return (folder.parents[len(run.parts) - 1] if is_below else Path()) / str(export["to"]) / BEST_TREE


def check_no_draft(artifact: LoadedArtifact, draft: str | None) -> None:
    """Raise an ArtifactError if a draft model is named for an artifact that drafts without one."""
    if draft is not None:
        raise ArtifactError(
            f"--draft must be left out, got {draft!r}: {artifact.folder} drafts without a draft model or names its own"
        )


class ChainFormat(ExportFormat):
    """Settings for an engine: those of the chain in an artifact's tree, or those found by a study of the engine."""

    kinds: ClassVar[tuple[str, ...]] = ("static-tree", "composition", "schedule", "engine-settings")
    options: ClassVar[tuple[str, ...]] = ("draft",)
    settings: ClassVar[type[Settings]]
    otherwise: ClassVar[str] = ""  # advice for a run without a setting that the engine takes

    @override
    def make(self, request: ExportRequest) -> ExportedFile:
        file = Path(request.source) / CONFIRMED
        if not file.is_file():
            return super().make(request)
        content = read_json(read_bytes(file, str(file)), str(file))
        settings: list[ConfirmedSetting] = validated(list[ConfirmedSetting], content, str(file))
        if not settings:  # the study searched an engine's own
            return super().make(replace(request, source=_artifact_of(file)))
        best = next((one for one in settings if self.name in runs_in(one.parts)), None)
        if best is None:
            raise ArtifactError(
                f"{file}: no confirmed setting runs in {self.name}: {self.otherwise}search for one, with "
                f"python -m specexp.init FOLDER --for {self.name}"
            )
        with TemporaryDirectory() as folder:
            artifact = write_artifact(folder, "composition", {PARTS: best.parts})
            try:
                made = super().make(replace(request, source=artifact.folder))
            except ArtifactError as error:
                where = f"{file}: {best.label}"
                raise ArtifactError(str(error).replace(str(artifact.folder), where)) from error
        measured = f"{best.sentence}, as measured in specexp's own loop, and not known in {self.name}"
        return replace(made, dropped="; ".join(filter(None, (measured, made.dropped))))

    @override
    def export(self, artifact: LoadedArtifact, **options: str) -> ExportedFile:
        if artifact.kind == "engine-settings":
            check_no_draft(artifact, options.get("draft"))
            if artifact.engine != self.name:
                raise ArtifactError(
                    f"--to must be the engine of the study, {artifact.engine!r}, got {self.name!r}: the settings of "
                    f"{artifact.folder} were measured on that engine"
                )
            measured = validated(self.settings, artifact.settings, str(artifact.folder))
            return ExportedFile(measured.deployed(), settings=measured)
        chain = chain_of(artifact, self.name)
        made, lost = self.expressed(artifact, chain, options.get("draft"))
        words = " and ".join((*chain.lost, *lost))
        dropped = f"{self.name}: kept {chain.kept}; dropped {words}" if words else ""
        return ExportedFile(made.deployed(), dropped, settings=made)

    def expressed(self, artifact: LoadedArtifact, chain: ChainDraft, draft: str | None) -> Expressed:
        """Return the settings for an artifact's chain, and descriptions of the parts that they cannot express.

        Raises ArtifactError if the engine has no such drafter or does not sample with it, or ``draft`` is missing or
        not needed.
        """
        if chain.drafter and chain.drafter not in self.settings.drafters:
            raise NotInEngineError(
                f"{artifact.folder}: {self.name} does not support the {chain.drafter} drafter",
                f"export the study's folder, runs/NAME, for its best setting that {self.name} runs, or deploy with "
                "specexp.serve",
            )
        if chain.drafter in ("PromptLookup", "SuffixAutomaton"):
            check_no_draft(artifact, draft)
        if chain.drafter == "PromptLookup":
            arguments = chain.arguments
            return _LOOKUPS[self.settings](chain.length, arguments.get("min_ngram", 1), arguments.get("max_ngram", 3))
        if chain.drafter == "SuffixAutomaton":
            return _SUFFIXES[self.settings](chain)
        samples = artifact.verifier is not None and artifact.verifier.noise_temperature != 0
        if samples and not self.settings.samples_drafts:
            raise NotInEngineError(
                f"{artifact.folder}: {self.name} does not sample with a draft model, but the study's verifier is "
                f"{type(artifact.verifier).__name__}",
                "tune Greedy or PromptLookup, or deploy with specexp.serve",
            )
        if draft is None and "draft" in self.options:
            raise ArtifactError(
                f"{artifact.folder}: {self.name} needs a draft model: give --draft, the model's name or path on the "
                "engine's machine"
            )
        # engines take the draft's sampling parameters from the request
        sampling = chain.set_arguments("temperature", "top_k", "top_p", "coupled")
        lost = (f"the draft's {', '.join(sampling)}",) if sampling else ()
        return _DRAFT_MODELS[self.settings](chain.length, draft or ""), lost


_DRAFT_MODELS: dict[type[Settings], Callable[[int, str], Settings]] = {
    VllmSettings: lambda length, draft: VllmSettings("draft_model", length, draft),
    SglangSettings: lambda length, draft: SglangSettings(
        "STANDALONE",
        draft,
        length,
        eagle_topk=1,
        num_draft_tokens=length + 1,  # SGLang counts the root too
    ),
    TrtllmSettings: lambda length, draft: TrtllmSettings("Draft_Target", length, draft),
    LlamaCppSettings: lambda length, draft: LlamaCppSettings("draft-simple", draft, length, spec_draft_p_min=0.0),
    OpenVinoSettings: lambda length, _: OpenVinoSettings(length),
    HuggingFaceSettings: lambda length, _: HuggingFaceSettings(
        num_assistant_tokens=length,
        num_assistant_tokens_schedule="constant",
        assistant_confidence_threshold=0.0,
    ),
}
"""For each engine, a function that returns the settings for a chain length and a draft model."""
_LOOKUPS: dict[type[Settings], Callable[[int, int, int], Expressed]] = {
    VllmSettings: lambda length, shortest, longest: (
        VllmSettings("ngram", length, prompt_lookup_min=shortest, prompt_lookup_max=longest),
        ("the order of matches (vLLM has its own)",),
    ),
    SglangSettings: lambda length, shortest, longest: (
        SglangSettings(
            "NGRAM",
            num_draft_tokens=length + 1,
            ngram_max_bfs_breadth=1,
            ngram_max_trie_depth=longest + length,
        ),
        (f"min_ngram={shortest} and the order of matches (SGLang searches a trie)",),
    ),
    TrtllmSettings: lambda length, shortest, longest: (
        TrtllmSettings("NGram", length, max_matching_ngram_size=longest, is_use_oldest=False),
        (f"min_ngram={shortest}",) * (shortest > 1),
    ),
    # ngram-simple drafts no chains that are shorter than the n-gram, and nothing in loops as short as it
    LlamaCppSettings: lambda length, shortest, longest: (
        LlamaCppSettings("ngram-map-k", spec_ngram_map_k_size_n=longest, spec_ngram_map_k_size_m=length),
        (f"n-grams of {shortest} to {longest - 1} tokens (llama.cpp looks up exactly {longest} tokens)",)
        * (shortest < longest),
    ),
    OpenVinoSettings: lambda length, shortest, longest: (
        OpenVinoSettings(length, max_ngram_size=longest),
        ("the order of matches (OpenVINO GenAI has its own)", *(f"min_ngram={shortest}",) * (shortest > 1)),
    ),
    HuggingFaceSettings: lambda length, shortest, longest: (
        HuggingFaceSettings(length, max_matching_ngram_size=longest),
        ("the order of matches (transformers takes the oldest)", *(f"min_ngram={shortest}",) * (shortest > 1)),
    ),
}
"""For each engine, a function that returns the settings of prompt lookup for a chain length and n-gram limits."""


def _vllm_suffixes(chain: ChainDraft) -> Expressed:
    reach = chain.arguments.get("reach")
    made = VllmSettings(
        "suffix",
        chain.length,
        suffix_decoding_max_cached_requests=None if chain.arguments.get("state") == "carry" else 0,
        # without a reach, our drafter drafts the full length even after a match of one token
        suffix_decoding_max_spec_factor=float(chain.length if reach is None else reach),
        suffix_decoding_min_token_prob=0.0,
    )
    return made, (
        *chain.set_arguments("corpus", "min_run"),
        "the choice between continuations (vLLM weighs them by their frequency)",
    )


def _trtllm_suffixes(chain: ChainDraft) -> Expressed:
    carried = chain.arguments.get("state") == "carry"
    lost = chain.set_arguments("corpus", "min_run", "reach")
    pool = ("texts of earlier requests (TensorRT-LLM's pool holds only active requests)",) * carried
    return TrtllmSettings("SA", chain.length, enable_global_pool=carried), (*lost, *pool)


_SUFFIXES: dict[type[Settings], Callable[[ChainDraft], Expressed]] = {
    VllmSettings: _vllm_suffixes,
    TrtllmSettings: _trtllm_suffixes,
}
"""For each engine with suffix decoding, a function that returns its settings for a chain."""


class Vllm(ChainFormat):
    """vLLM's ``--speculative-config``, a JSON object. Draft lengths per batch size depend on vLLM's costs, so they can
    only be exported from a study of vLLM.
    """

    name, settings, read_for = "vllm", VllmSettings, VllmSettings.read_for
    kinds: ClassVar[tuple[str, ...]] = (*ChainFormat.kinds, "adjacency-matrix", "phrase-cache", "suffix-corpus")
    # the command vllm of the wheel for CPUs fails
    deployment = 'python -m vllm.entrypoints.openai.api_server --model MODEL --speculative-config "$(cat {file})"'
    otherwise = (
        "export the study's artifact, artifacts/NAME/best-tree, to draft inside vLLM with specexp's drafter, or "
    )

    @override
    def make(self, request: ExportRequest) -> ExportedFile:
        if (Path(request.source) / CONFIRMED).is_file():  # there is no artifact that vLLM could load
            return super().make(request)
        artifact = self.load(request)
        if "drafter" not in artifact.recorded or not drafts_from_tokens(artifact.drafter):
            return super().make(request)
        return self.noted(self._proposed(artifact, **request.options), artifact)

    @override
    def export(self, artifact: LoadedArtifact, **options: str) -> ExportedFile:
        made = super().export(artifact, **options)
        config = artifact.provenance.get("config") or {}
        engine, pair = config.get("engine"), config.get("pair")
        if artifact.kind != "engine-settings" or not engine or not pair:
            return made
        from specexp.engines.vllm import VLLM

        one = VLLM(**{**engine["init_args"], "settings": None})
        target = one.target or pair["target"]
        # vLLM takes folders and hub ids; --to hf writes a folder for a shortcut such as smollm2
        model = "MODEL" if sources_of(target)[0] != target or is_gguf(target) else target
        words = shlex.join(one.deployment(model, pair["target_dtype"])).replace("{", "{{").replace("}", "}}")
        return replace(made, command=f'{words} --speculative-config "$(cat {{file}})"')

    def _proposed(self, artifact: LoadedArtifact, draft: str | None = None) -> ExportedFile:
        """Return the settings with which specexp's own drafter loads the artifact in vLLM."""
        from specexp.deploy.vllm import controls_from_counts, lost_by  # imports torch

        check_no_draft(artifact, draft)
        chain = chain_of(artifact, self.name, controls_from_counts)
        made = VllmSettings("custom_class", chain.length, PROPOSER, str(artifact.folder.resolve()))
        lost = " and ".join((*chain.lost, *lost_by(artifact.drafter))) or "nothing"
        return ExportedFile(
            made.deployed(),
            f"{self.name}: kept {chain.kept}; dropped {lost}; vLLM's environment needs specexp (pip install --no-deps)",
            settings=made,
        )


class Sglang(ChainFormat):
    """SGLang's command-line flags."""

    name, settings, read_for = "sglang", SglangSettings, SglangSettings.read_for
    deployment = "python -m sglang.launch_server --model-path MODEL $(head -n 1 {file})"


class Trtllm(ChainFormat):
    """TensorRT-LLM's ``speculative_config``, a YAML block."""

    name, settings, read_for = "trtllm", TrtllmSettings, TrtllmSettings.read_for
    deployment = "trtllm-serve MODEL --config {file}"


class LlamaCpp(ChainFormat):
    """A llama.cpp preset, which is an INI file for ``--models-preset``. ``--draft`` must be a GGUF file."""

    name, settings, read_for = "llama-cpp", LlamaCppSettings, LlamaCppSettings.read_for
    greedy: ClassVar[Mapping[str, Any]] = {"temperature": 0, "top_k": 1}  # at temperature 0 alone, a sort breaks ties
    deployment = "llama-server --models-dir FOLDER --models-preset {file}"


class OpenVino(ChainFormat):
    """OpenVINO GenAI's ``generation_config.json``. Hugging Face uses the same file name with other keys.

    The draft model or ``prompt_lookup=True`` is passed to the pipeline's constructor.
    """

    name, settings, read_for = "openvino", OpenVinoSettings, OpenVinoSettings.read_for
    updates = True  # the file also holds the EOS tokens
    options = ()

    @override
    def deployed_by(self, file: str, content: Any) -> str:
        # the pipeline reads the file from the model's folder, so the path is not part of the command
        lookup = "max_ngram_size" in content
        draft = "prompt_lookup=True" if lookup else 'draft_model=genai.draft_model("DRAFT", "CPU")'
        code = f'print(genai.LLMPipeline("MODEL", "CPU", {draft}).generate("Hello"))'
        return f"python -c 'import openvino_genai as genai; {code}'"


class HfGenerationConfig(ChainFormat):
    """Hugging Face's ``generation_config.json``: the target's for prompt lookup, the draft's for assisted generation.

    ``generate`` reads the draft length from the config of the ``assistant_model`` alone. An artifact's schedule is
    dropped, because Hugging Face drafts for one sequence at a time.
    """

    name, settings = "hf-generation-config", HuggingFaceSettings
    read_for = HuggingFaceSettings.read_for
    updates = True  # a model's own file also holds its EOS tokens
    options = ()

    @override
    def export(self, artifact: LoadedArtifact, **options: str) -> ExportedFile:
        made = super().export(artifact, **options)
        if "num_assistant_tokens" not in made.content:
            return made
        where = "the file belongs in the draft's folder, since transformers ignores these keys in the target's"
        return replace(made, dropped=f"{made.dropped or self.name}; {where}")

    @override
    def deployed_by(self, file: str, content: Any) -> str:
        # generate reads the file from a model's folder, so the path is not part of the command
        draft = "" if "prompt_lookup_num_tokens" in content else ', assistant_model="DRAFT"'
        code = f'print(pipeline("text-generation", "MODEL"{draft})("Hello", max_new_tokens=32))'
        return f"python -c 'from transformers import pipeline; {code}'"


class Endpoint(ExportFormat):
    """The shell command to start a server with a study's fastest settings. Fill in ``{port}`` and ``{target}``."""

    name, kinds = "endpoint", ("engine-settings",)
    read_for = "the server that was measured"
    deployment = """sh -c "$(sed 's/{{port}}/8000/; s/{{target}}/MODEL/' {file})\""""

    @override
    def export(self, artifact: LoadedArtifact, **options: str) -> ExportedFile:
        settings = dict(artifact.settings)
        command, body = settings.pop("command", None), settings.pop("body", None)
        if artifact.engine != self.name or not isinstance(command, str):
            raise ArtifactError(
                f"{artifact.folder}: --to endpoint needs the settings of a server that a command started, got those of "
                f"the engine {artifact.engine!r}"
            )
        with restated(EngineError, lambda error: ArtifactError(f"{artifact.folder}: {error}")):
            words = filled(command, {**settings, "port": "{port}", "target": "{target}"})
        dropped = f"endpoint: dropped the fields that every request must have, {body}" if body else ""
        return ExportedFile(f"{shlex.join(words)}\n", dropped)
