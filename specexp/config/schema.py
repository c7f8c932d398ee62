"""The sections of an experiment file. The arguments of a part are checked against its constructor instead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from specexp.artifacts import ControllerKind
from specexp.base.checked import CallOf, PartOf, Section, refusal
from specexp.config.sweep import Count, Sweep
from specexp.core.runtime import RowOrder

Dtype = Literal["bfloat16", "float16", "float32"]
Mode = Literal["auto", "eager", "compiled", "packed", "graphed"]


class Pair(Section):
    """The target and draft models, their dtypes and their device.

    Attributes:
        target: ``stdlib`` for the embedded pair, ``smollm2`` for SmolLM2-135M-Instruct with weights from Q4_1
            (fetched on first use); otherwise a hub id, a folder or a GGUF file.
        draft: Hub id, folder or GGUF file, or ``smollm2`` for the embedded draft of that target. If null, an embedded
            target uses its own draft, any other target none.
        target_dtype: Dtype of the target; in llama.cpp, the dtype of its KV cache.
        draft_dtype: Dtype of the draft; in llama.cpp, the dtype of its KV cache.
        device: A torch device, such as ``cpu`` or ``cuda:1``.
        device_map: Spreads a target that is too large for one device: a strategy such as ``auto``, or a mapping
            of modules to devices, ``cpu`` or ``disk``. The draft stays on ``device``.
        offload_folder: Folder for the weights on ``disk`` if they cannot be read from the model's own files.
        attn_implementation: Attention implementation; only these two accept the mask of a draft tree.
        row_order: Order of a tree's rows in the target's pass, in the modes ``eager`` and ``graphed``.
        mode: Runtime of both models: ``eager`` runs the model's own code, ``compiled`` runs passes compiled for
            this machine (Llama-family models on a CPU), ``packed`` does so with the blocks of a GGUF file in place of
            bfloat16 weights, ``auto`` uses ``compiled`` if possible and, if it is installed, llama.cpp for GGUF files.
    """

    target: str = "stdlib"
    draft: str | None = None
    target_dtype: Dtype = "bfloat16"
    draft_dtype: Dtype = "float32"
    device: str = "cpu"
    device_map: Literal["auto", "balanced", "balanced_low_0", "sequential"] | dict[str, str | int] | None = (
        None
    )
    offload_folder: str | None = None
    attn_implementation: Literal["sdpa", "eager"] = "sdpa"
    row_order: RowOrder = "built"
    mode: Mode = "auto"


class Generation(Section):
    """The length limit, number of samples, seed and stopping rule of the generation.

    Attributes:
        max_new_tokens: Maximum number of generated tokens per turn; never exceeded.
        seed: Random seed of sampling verifiers and drafters.
        samples: Number of continuations generated for each prompt.
        stop_at_eos: Whether generation stops at the EOS token.
        stop_at_repetition: Whether an answer ends where it begins to repeat: when its last tokens are at least three
            copies of one block of at most 32 tokens, and at least 24 tokens. If an arm is another ``engine``, which
            cannot stop there, no arm does.
        threads: Number of CPU threads for torch; null for torch's default.
    """

    max_new_tokens: Count = 128
    seed: Annotated[int, Field(ge=0)] = 0
    samples: Count = 1
    stop_at_eos: bool = True
    stop_at_repetition: bool = True
    threads: Count | None = None

    @model_validator(mode="before")
    @classmethod
    def _name_the_verifier(cls, given: Any) -> Any:
        if isinstance(given, Mapping) and "temperature" in given:
            to = "the verifier's: set verifier to {class_path: KeyedSampling, init_args: {temperature: T}}"
            raise refusal(("temperature",), f" is {to}")
        return given


class Reasoning(Section):
    """The tree-of-thoughts search for reasoning tasks.

    Attributes:
        search: Search strategy, which selects the states to expand in the tree of thoughts.
        max_new_tokens: Maximum number of tokens per generation if the task allows more; null for the task's limits.
    """

    search: Annotated[Any, PartOf("specexp.data.searches.search.Search")] = Field(
        default={"class_path": "BreadthFirst"}
    )
    max_new_tokens: Count | None = None


class Tracking(Section):
    """Settings of W&B runs.

    Attributes:
        project: W&B project of the runs.
        mode: W&B mode of the runs; null means online if logged in, otherwise offline.
        entity: W&B user or team that owns the project; null for the logged-in user.
        tags: W&B tags of the runs.
    """

    project: str = "specexp"
    mode: Literal["online", "offline", "disabled"] | None = None
    entity: str | None = None
    tags: list[str] = Field(default=[])


class Verify(Section):
    """Settings for the tests of ``specexp.verify``.

    Attributes:
        level: Significance level: the probability of rejecting a composition that is lossless.
        total_variation: Total variation distance that is detected or excluded, for the joint distribution of three
            tokens on the toy targets.
        toy_triples: Maximum number of token triples per toy target; null for as many as a decision needs.
        toy_tokens: Number of tokens compared on the toy targets if the verifier is deterministic.
        prompts: Number of prompts for which the first output tokens are tested on the configured models.
        samples: Number of continuations sampled for each of these prompts.
        first_tokens: Number of first output tokens that are tested jointly on the configured models.
        workers: Number of processes that decode on the toy targets; null for one per core.
    """

    level: Annotated[float, Field(gt=0, lt=1)] = 0.001
    total_variation: Annotated[float, Field(ge=0.001, lt=1)] = 0.05
    toy_triples: Count | None = None
    toy_tokens: Count = 8000
    prompts: Count = 2
    samples: Count = 400
    first_tokens: Annotated[int, Field(ge=1, le=4)] = 3
    workers: Count | None = None


class Profile(Section):
    """The measurements and the output of ``specexp.profile``.

    Attributes:
        to: Folder of the ``latency-profile`` artifact.
        max_tokens: Largest number of tokens in a measured pass, including the root.
        prefixes: Numbers of cached tokens before a measured pass. The context must have room for them, for the depth
            of the largest pass, and for 15 tokens that a block of passes adds to the cache.
        lanes: Batch sizes (numbers of sequences, >= 2) of batched passes, measured at the middle prefix.
        repeats: Number of blocks of passes per size; each block gives one measurement.
        prompts: Number of prompts from ``data`` that every composition decodes.
        max_new_tokens: Maximum number of tokens generated for each of these prompts.
    """

    to: str = "artifacts/profile"
    max_tokens: Count = 128
    prefixes: list[Count] = Field(default=[64, 256, 448])
    lanes: list[Annotated[int, Field(ge=2)]] = Field(default=[])
    repeats: Annotated[int, Field(ge=2)] = 30
    prompts: Count = 4
    max_new_tokens: Annotated[int, Field(ge=8)] = 48


class Record(Section):
    """Settings for ``specexp.record``.

    Attributes:
        to: Folder of the recording; null for ``recordings/<name>``.
        coverage: Builders that run once at every root. Replayed builders may use the nodes of these trees. If null, a
            chain of 24 nodes, or the experiment's builder if the drafter learns from its own drafts.
        candidates: Number of draft candidates recorded per output token; this limits the width of a replayed tree.
        target_top_k: Number of the target's top tokens recorded per token, for drafters that learn from them. Null
            for the number that the drafter uses, or 8.
        turns_per_file: Number of turns per Parquet file; an interrupted recording continues after the last file.
        live_sample: Number of prompts that are also decoded live, to compare with the replay.
    """

    to: str | None = None
    coverage: list[Annotated[Any, PartOf("specexp.core.contracts.TreeBuilder")]] | None = None
    candidates: Annotated[int, Field(ge=1, le=4096)] = 32
    target_top_k: Annotated[int, Field(ge=1, le=256)] | None = None
    turns_per_file: Count = 8
    live_sample: Annotated[int, Field(ge=0)] = 4


class WhatIf(Section):
    """The devices and trees that ``specexp.what_if`` compares.

    Attributes:
        profiles: Latency profiles, each given by its arguments or as an ``artifact``.
        files: YAML files with one further profile each, in a ``latency:`` section, such as
            ``experiments/replay/devices/a100_7b.yaml``.
        max_nodes: Maximum number of nodes in a tree.
        max_depth: Maximum depth of a tree.
    """

    profiles: list[Annotated[Any, CallOf("specexp.core.latency.LatencyProfile")]] = Field(default=[])
    files: list[str] = Field(default=[])
    max_nodes: Annotated[int, Field(ge=1, le=512)] = 64
    max_depth: Annotated[int, Field(ge=1, le=32)] = 10


class ArmSection(Section):
    """A named arm: overrides of the composition, or one of Hugging Face's own decoding loops.

    Attributes:
        title: Name in tables; null for the arm's key.
        drafter: Overrides of the experiment's drafter; null to decode without a drafter.
        builder: Overrides of the experiment's builder; null to decode without a builder.
        engine: Engine that replaces specexp's decoder; drafter and builder must then be null.
        grid: Lists of values by dotted key; each combination is one arm.
        preload: Overrides of ``data`` for prompts that are decoded before the run. Token Recycling and phrase caches
            start every prompt with the state learned from them; the controller only starts the run with it.
        reference: Mode of Hugging Face's generate that replaces specexp's decoder, with the arguments below.
        num_assistant_tokens: Number of tokens that ``hf-assisted`` drafts.
        assistant_confidence_threshold: Probability below which ``hf-assisted`` stops drafting.
        prompt_lookup_num_tokens: Number of tokens that ``hf-prompt-lookup`` drafts.
        max_matching_ngram_size: Longest n-gram that ``hf-prompt-lookup`` looks for.
    """

    title: str | None = None
    drafter: Any = None
    builder: Any = None
    verifier: Any = None
    controller: Any = None
    execution: Any = None
    engine: Any = None
    data: dict[str, Any] | None = None
    generation: dict[str, Any] | None = None
    pair: dict[str, Any] | None = None
    grid: dict[str, list[Any]] = Field(default={})
    preload: dict[str, Any] | None = None
    reference: Literal["hf-eager", "hf-assisted", "hf-prompt-lookup"] | None = None
    num_assistant_tokens: Count = 4
    assistant_confidence_threshold: Annotated[float, Field(ge=0, le=1)] = 0.0
    prompt_lookup_num_tokens: Count = 8
    max_matching_ngram_size: Count = 2

    @model_validator(mode="before")
    @classmethod
    def _check_reference(cls, given: Any) -> Any:
        keys = given if isinstance(given, dict) else {}
        reference = keys.get("reference")
        takes = REFERENCE_KEYS.get(reference) if isinstance(reference, str) else None
        for key in keys:
            if reference is None and any(key in others for others in REFERENCE_KEYS.values()):
                raise refusal((key,), f" needs a reference, one of {', '.join(REFERENCE_KEYS)}")
            if takes is not None and key in cls.model_fields and key not in ("title", "reference", *takes):
                allowed = ", ".join(("title", *takes))
                why = f" cannot be combined with reference {reference!r}, which takes {allowed}"
                raise refusal((key,), why)
        return given


OVERRIDES = ("drafter", "builder", "verifier", "controller", "execution", "engine", "data", "generation",
             "pair")  # fmt: skip
"""Sections that an arm may override."""

REFERENCE_KEYS = {
    "hf-eager": (),
    "hf-assisted": ("num_assistant_tokens", "assistant_confidence_threshold"),
    "hf-prompt-lookup": ("prompt_lookup_num_tokens", "max_matching_ngram_size"),
}
"""Arguments that each reference accepts."""


class TableExport(Section):
    """The artifact in which ``specexp.fit`` saves a controller.

    Attributes:
        to: Folder of the artifact.
        kind: Kind of the artifact.
    """

    to: str
    kind: ControllerKind = "q-table"


class Fit(Section):
    """Settings with which ``specexp.fit`` trains a controller on the prompts of ``data``.

    Attributes:
        epochs: Number of times that every prompt is decoded.
        checkpoint_every: Number of prompts between two checkpoints.
        export: Artifact for the learned table; null for none.
    """

    epochs: Count = 1
    checkpoint_every: Count = 8
    export: TableExport | None = None


class Experiment(Section):
    """A complete experiment file.

    Attributes:
        name: Name of the run and of its folder; by default the file's name.
        question: The question that the experiment answers, in one sentence.
        paper: Publication with results to compare with.
        pair: The models.
        data: The prompts that are decoded.
        drafter: Proposes the next tokens; null for plain decoding.
        builder: Builds the draft tree of each step.
        verifier: Accepts drafted tokens.
        controller: Limits the draft of each step; null for the builder's own limits.
        artifact: Artifact to verify, or to compare on other prompts. Its parts, without their learned state, replace
            the file's own parts, arms and search.
        trust: Installed packages that may define the artifact's parts.
        execution: Strategy that decodes several sequences per prompt: a tree of thoughts for ``TaskItems``, otherwise
            one group of ``generation.samples`` continuations. Null decodes one sequence at a time, or with
            ``SerialSpeculative`` if other arms have an execution. The only baseline is then plain decoding with
            ``Serial``, because Hugging Face's loops decode no groups.
        reasoning: How items of ``TaskItems`` are searched.
        generation: Length, samples and seed of the generation.
        engine: Engine that replaces specexp's decoder. ``specexp.sweep`` then searches the engine's settings.
        latency: Latency profile of a device and its models, from which times are modelled; null to measure times.
        trainer: Arguments of Lightning's Trainer.
        output: Folder of the results.
        tracking: W&B project and mode of the runs.
        verify: How much ``specexp.verify`` tests.
        profile: What ``specexp.profile`` measures.
        record: What ``specexp.record`` records.
        backend: ``live`` runs the models; ``replay`` uses a recording, with times from the latency profile.
        recording: Folder of the recording to replay; null for ``record.to``.
        what_if: Which devices ``specexp.what_if`` compares.
        arms: Named compositions to compare, each given as overrides of the file's own.
        baselines: Baselines of the comparison: plain decoding by specexp, by Hugging Face's generate, or both. Null
            means both, unless Hugging Face's generate cannot produce the verifier's tokens.
        published: Rows of the paper's table that are not run here: a ``method`` and its figures.
        figure: Figure that ``specexp.run`` draws: ``speedup``, ``curves`` or ``phases``; null for its default.
        float32_prompts: Number of prompts that ``specexp.run`` and a sweep's confirmation decode again in float32 if
            outputs of a 16-bit target differ at near ties. In float32 the outputs must be equal. The check is
            untimed and limited to 15 seconds; 0 turns it off.
        analyses: Analyses that ``specexp.run`` applies to every step.
        fit: How ``specexp.fit`` trains the controller.
        sweep: What ``specexp.sweep`` searches.
    """

    name: str
    question: str | None = None
    paper: str | None = None
    pair: Pair = Field(default_factory=Pair)
    data: Annotated[Any, CallOf("specexp.data.Workload")] = Field(
        default={"prompts": {"class_path": "StdlibFunctions"}}
    )
    drafter: Annotated[Any, PartOf("specexp.core.contracts.Drafter")] | None = None
    builder: Annotated[Any, PartOf("specexp.core.contracts.TreeBuilder")] | None = None
    verifier: Annotated[Any, PartOf("specexp.core.contracts.Verifier")] = Field(
        default={"class_path": "Greedy"}
    )
    controller: Annotated[Any, PartOf("specexp.core.contracts.Controller")] | None = Field(
        default={"class_path": "Fixed"}
    )
    artifact: str | None = None
    trust: str | list[str] = Field(default=[])
    execution: Annotated[Any, PartOf("specexp.scheduling.Execution")] | None = None
    reasoning: Reasoning = Field(default_factory=dict)  # type: ignore[assignment]
    generation: Generation = Field(default_factory=Generation)
    engine: Annotated[Any, PartOf("specexp.engines.engine.ForeignEngine")] | None = None
    latency: Annotated[Any, CallOf("specexp.core.latency.LatencyProfile")] | None = None
    trainer: dict[str, Any] = Field(default={})
    output: str = "runs"
    tracking: Tracking = Field(default_factory=Tracking)
    verify: Verify = Field(default_factory=Verify)
    profile: Profile = Field(default_factory=Profile)
    record: Record = Field(default_factory=Record)
    backend: Literal["live", "replay"] = "live"
    recording: str | None = None
    what_if: WhatIf | None = None
    arms: dict[str, ArmSection | None] = Field(default={})
    baselines: list[Literal["plain", "hf-eager"]] | None = None
    published: list[dict[str, str | float | None]] = Field(default=[])
    figure: str | None = None
    float32_prompts: Annotated[int, Field(ge=0)] = 8
    analyses: list[Annotated[Any, PartOf("specexp.report.analysis.Analysis")]] = Field(default=[])
    fit: Fit | None = None
    sweep: Sweep | None = None
