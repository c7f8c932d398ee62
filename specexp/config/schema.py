"""The sections of an experiment file. A part's arguments are defined by its constructor instead."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from specexp.artifacts import ControllerKind
from specexp.base.checked import CallOf, PartOf, Section, refusal
from specexp.config.sweep import Count, Sweep
from specexp.core.runtime import RowOrder

Dtype = Literal["bfloat16", "float16", "float32"]


class Pair(Section):
    """The target and draft models, their dtypes and their device.

    Attributes:
        target: ``stdlib`` for the embedded pair, ``smollm2`` for SmolLM2-135M-Instruct (weights converted from Q4_1,
            fetched on first use), or a hub id, folder or GGUF file.
        draft: Hub id, folder or GGUF file, or ``smollm2`` for the embedded draft model of target ``smollm2``. If null,
            embedded targets use their own draft model, and other targets have none.
        target_dtype: Dtype of the target; with llama.cpp, the dtype of its KV cache.
        draft_dtype: Dtype of the draft model; with llama.cpp, the dtype of its KV cache.
        device: A torch device, such as ``cpu`` or ``cuda:1``.
        device_map: Placement of a target too large for one device: a strategy such as ``auto``, or a mapping from
            modules to devices, ``cpu`` or ``disk``. The draft model stays on ``device``.
        offload_folder: Folder for weights placed on ``disk`` that cannot be read from the model's own files.
        attn_implementation: Attention implementation. Only these two support the attention mask of a draft tree.
        row_order: Order of a tree's rows in the target pass; used only in modes ``eager`` and ``graphed``.
        mode: Runtime of both models. ``eager`` runs their own code. ``compiled`` runs passes compiled for this CPU,
            for some families. ``packed`` does the same with the quantized blocks of a GGUF file. ``graphed`` replays
            CUDA graphs. ``auto`` uses the fastest mode that works, or llama.cpp for GGUF files if it is installed.
    """

    target: str = "stdlib"
    draft: str | None = None
    target_dtype: Dtype = "bfloat16"
    draft_dtype: Dtype = "float32"
    device: str = "cpu"
    device_map: Literal["auto", "balanced", "balanced_low_0", "sequential"] | dict[str, str | int] | None = None
    offload_folder: str | None = None
    attn_implementation: Literal["sdpa", "eager"] = "sdpa"
    row_order: RowOrder = "built"
    mode: str = "auto"


class Generation(Section):
    """Settings for generation: length limit, number of samples, seed and when to stop.

    Attributes:
        max_new_tokens: Hard limit on the number of tokens generated per turn.
        seed: Random seed for verifiers and drafters that sample.
        samples: Number of continuations generated for each prompt.
        stop_at_eos: Whether to stop at the EOS token.
        stop_at_repetition: Whether to end an answer once it repeats itself, i.e. once its last 24 or more tokens are at
            least three copies of a block of up to 32 tokens. Ignored if any arm is an ``engine``, because engines
            cannot do this.
        threads: Number of CPU threads for torch; null for torch's default.
    """

    max_new_tokens: Count = 128
    seed: Annotated[int, Field(ge=0)] = 0
    samples: Count = 1
    stop_at_eos: bool = True
    stop_at_repetition: bool = True
    threads: Count | None = None


class Reasoning(Section):
    """The tree-of-thoughts search for reasoning tasks.

    Attributes:
        search: Search strategy, which selects the states to expand in the tree of thoughts.
        max_new_tokens: Limit on tokens per generation, in addition to the task's own limits; null for no further limit.
    """

    search: Annotated[Any, PartOf("specexp.data.searches.search.Search")] = Field(
        default={"class_path": "BreadthFirst"}
    )
    max_new_tokens: Count | None = None


class Tracking(Section):
    """Settings for W&B runs.

    Attributes:
        project: W&B project that runs are logged to; null for WANDB_PROJECT, or specexp if this is not set.
        mode: W&B mode; null means online if logged in, otherwise offline.
        entity: W&B user or team that owns the project; null for the logged-in user.
        tags: W&B tags for the runs.
    """

    project: str | None = None
    mode: Literal["online", "offline", "disabled"] | None = None
    entity: str | None = None
    tags: list[str] = Field(default=[])


class Verify(Section):
    """Settings for the tests that ``specexp.verify`` runs.

    Attributes:
        level: Significance level, i.e. the probability of rejecting a lossless composition.
        total_variation: Total variation distance that the test must detect or rule out in the joint distribution of
            three tokens on the toy targets.
        toy_triples: Maximum number of token triples per toy target; null for as many as the test needs.
        toy_tokens: Number of tokens compared on the toy targets if the verifier is deterministic.
        prompts: Number of prompts used to test the first output tokens of the configured models.
        samples: Number of continuations sampled for each of these prompts.
        first_tokens: Number of first output tokens of the configured models that are tested jointly.
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
    """Settings for ``specexp.profile``: the passes to measure, and the output folder.

    Attributes:
        to: Folder of the ``latency-profile`` artifact.
        max_tokens: Largest number of tokens in a measured pass, including the root.
        prefixes: Cache lengths, in tokens, at which passes are measured. The context must also have room for the depth
            of the largest pass and the 15 tokens that a block of passes appends.
        lanes: Batch sizes (number of sequences, >= 2) of batched passes, which are measured at the middle prefix.
        repeats: Number of blocks of passes per size; each block yields one measurement.
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
        coverage: Builders to run once at every root, so that replayed builders can use the nodes of these trees. If
            null, a chain of 24 nodes is used, or the experiment's builder if the drafter learns from its own drafts.
        candidates: Number of draft candidates recorded per output token; this limits the width of a replayed tree.
        target_top_k: Number of the target's top tokens recorded per token, for drafters that learn from them. If null,
            the number that the drafter learns from, or 8 if it does not learn from them.
        turns_per_file: Number of turns per Parquet file; an interrupted recording resumes after the last file.
        live_sample: Number of prompts that are also decoded live, for comparison with the replay.
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
        files: YAML files that add one profile each, in a ``latency:`` section, such as
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
        drafter: Overrides for the experiment's drafter; null to decode without a drafter.
        builder: Overrides for the experiment's builder; null to decode without a builder.
        engine: Engine that replaces specexp's decoder; drafter and builder must then be null.
        grid: Lists of values by dotted key; each combination is one arm.
        preload: Overrides of ``data`` that select prompts to decode before the run. Token Recycling and phrase caches
            start every prompt in the state learned from these; the controller only starts the run in that state.
        reference: Hugging Face decoding loop that replaces specexp's decoder. The arguments below configure it.
        num_assistant_tokens: Number of tokens that ``hf-assisted`` drafts.
        assistant_confidence_threshold: Probability below which ``hf-assisted`` stops drafting.
        prompt_lookup_num_tokens: Number of tokens that ``hf-prompt-lookup`` drafts.
        max_matching_ngram_size: Longest n-gram that ``hf-prompt-lookup`` tries to match.
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
    """Settings for ``specexp.fit``, which trains a controller on the prompts of ``data``.

    Attributes:
        epochs: Number of times each prompt is decoded.
        checkpoint_every: Number of prompts between checkpoints.
        export: Artifact in which to save the learned table; null to save nothing.
    """

    epochs: Count = 1
    checkpoint_every: Count = 8
    export: TableExport | None = None


class Experiment(Section):
    """A complete experiment file.

    Attributes:
        name: Name of the run and its folder; defaults to the file's name.
        question: The question that the experiment answers, in one sentence.
        paper: Publication with the results to compare against.
        pair: The models.
        data: The prompts to decode.
        drafter: Proposes the next tokens; null for plain decoding.
        builder: Builds the draft tree of each step.
        verifier: Accepts drafted tokens.
        controller: Limits the draft of each step; null for the builder's own limits.
        artifact: Artifact to verify, or to compare on other prompts. Its parts, without their learned state, replace
            the file's own parts, arms and search.
        trust: Installed packages that are trusted to define the artifact's parts.
        execution: Strategy that decodes several sequences per prompt: a tree of thoughts for ``TaskItems``, otherwise
            one group of ``generation.samples`` continuations. If any arm has one, arms without one use
            ``SerialSpeculative``. The only baseline is then plain decoding with ``Serial``, because Hugging Face's
            loops cannot decode groups. Null decodes one sequence at a time.
        reasoning: How to search for solutions to the items of ``TaskItems``.
        generation: Length limit, number of samples, seed and when to stop.
        engine: Engine that replaces specexp's decoder. ``specexp.sweep`` then searches the engine's settings.
        latency: Latency profile of a device and models, used to model times; null to measure them.
        trainer: Arguments of Lightning's Trainer.
        output: Folder of the results.
        tracking: W&B settings.
        verify: How much ``specexp.verify`` tests.
        profile: What ``specexp.profile`` measures.
        record: What ``specexp.record`` records.
        backend: ``live`` runs the models; ``replay`` uses a recording, with times from the latency profile.
        recording: Folder of the recording to replay; null for ``record.to``.
        what_if: Which devices ``specexp.what_if`` compares.
        arms: Named compositions to compare, each given as overrides of the file's own composition.
        baselines: Baselines of the comparison: plain decoding by specexp, by Hugging Face's generate, or both. Null
            means both, unless Hugging Face's generate cannot produce the verifier's tokens.
        published: Rows of the paper's table that are not run here, each with a ``method`` and its figures.
        figure: Figure that ``specexp.run`` draws: ``speedup``, ``curves`` or ``phases``; null for its default.
        least_gain: Smallest speedup worth having. An arm is *not faster* if its interval excludes this gain.
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
    verifier: Annotated[Any, PartOf("specexp.core.contracts.Verifier")] = Field(default={"class_path": "Greedy"})
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
    least_gain: Annotated[float, Field(ge=1)] = 1.05
    float32_prompts: Annotated[int, Field(ge=0)] = 8
    analyses: list[Annotated[Any, PartOf("specexp.report.analysis.Analysis")]] = Field(default=[])
    fit: Fit | None = None
    sweep: Sweep | None = None
