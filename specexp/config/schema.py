"""Sections of an experiment file. The schema of a part is its constructor."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from specexp.artifacts import ControllerKind
from specexp.config.sweep import Count, Sweep
from specexp.core.checked import CallOf, PartOf, Section, refusal

Dtype = Literal["bfloat16", "float16", "float32"]


class Pair(Section):
    """The models.

    Attributes:
        target: ``stdlib`` for the embedded pair, otherwise hub id, folder, or GGUF file for llama.cpp.
        draft: Hub id, folder or GGUF file; null for the draft of an embedded target, or no draft.
        target_dtype: Precision of the target; for a GGUF file of its keys and values.
        draft_dtype: Precision of the draft; for a GGUF file of its keys and values.
        device: A torch device, such as ``cpu`` or ``cuda:1``.
        device_map: Devices of the target's modules if one device is too small: ``auto`` and the like, or a
            mapping of modules to devices, ``cpu`` or ``disk``; the draft is on ``device``. Needs accelerate.
        offload_folder: Folder for weights on ``disk`` if they cannot be read from the model's own files.
        attn_implementation: Implementation of attention; others than these take no tree mask.
        mode: Runtime of both models: ``eager`` is the model's own code, ``compiled`` are passes compiled for this
            machine (models of the Llama family on a CPU), ``auto`` is compiled if possible.
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
    mode: str = "auto"


class Generation(Section):
    """Lengths, samples and seed of the generation, the same for every arm.

    Attributes:
        max_new_tokens: Most tokens of a turn; never exceeded.
        seed: Seed of verifiers and drafters that draw.
        samples: Continuations of every prompt.
        stop_at_eos: Whether EOS ends an answer.
        threads: CPU threads of torch; null for torch's default.
    """

    max_new_tokens: Count = 128
    seed: Annotated[int, Field(ge=0)] = 0
    samples: Count = 1
    stop_at_eos: bool = True
    threads: Count | None = None


class Reasoning(Section):
    """The search of reasoning tasks.

    Attributes:
        search: Which states of the tree of thoughts are expanded.
        max_new_tokens: Most tokens of one generation if a task allows more; null for the task's own limits.
    """

    search: Annotated[Any, PartOf("specexp.data.searches.search.Search")] = Field(
        default={"class_path": "BreadthFirst"}
    )
    max_new_tokens: Count | None = None


class Tracking(Section):
    """W&B.

    Attributes:
        project: Project of the runs.
        mode: Mode of the runs; null is online if logged in, else offline.
        entity: Owner of the project; the logged-in user if null.
        tags: Labels of the runs.
    """

    project: str = "specexp"
    mode: Literal["online", "offline", "disabled"] | None = None
    entity: str | None = None
    tags: list[str] = Field(default=[])


class Verify(Section):
    """The size of the tests of ``specexp.verify``.

    Attributes:
        level: Probability that an exact composition is refused.
        total_variation: Deviation of the joint distribution of three tokens on the toy targets that is found or
            excluded.
        toy_triples: Triples of tokens on each toy target at most; as many as a decision needs if null.
        toy_tokens: Tokens on the toy targets that are compared with the output of a deterministic verifier.
        prompts: How many prompts' first tokens are tested on the configured models.
        samples: Continuations of each of those prompts.
        first_tokens: How many tokens are tested jointly on the configured models.
        workers: Processes that decode on the toy targets; as many as cores if null.
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
    """Measurements and output of ``specexp.profile``.

    Attributes:
        to: Folder of the ``latency-profile`` artifact.
        max_tokens: Most tokens of a pass, the root among them.
        prefixes: Tokens in the cache before a pass. The context must have room for them, the deepest row of the
            largest pass, and 15 tokens by which the cache grows over a block of passes.
        lanes: Numbers of sequences, from 2, for passes of several sequences, measured at the middle prefix.
        repeats: Blocks of passes of every size; each block gives one measurement.
        prompts: How many prompts of ``data`` are decoded by every composition.
        max_new_tokens: Most tokens of each of those answers.
    """

    to: str = "artifacts/profile"
    max_tokens: Count = 128
    prefixes: list[Count] = Field(default=[64, 256, 448])
    lanes: list[Annotated[int, Field(ge=2)]] = Field(default=[])
    repeats: Annotated[int, Field(ge=2)] = 30
    prompts: Count = 4
    max_new_tokens: Annotated[int, Field(ge=8)] = 48


class Record(Section):
    """Settings of ``specexp.record``.

    Attributes:
        to: Folder of the recording; ``recordings/<name>`` if null.
        coverage: Builders run once at every root: replayed builders may use the nodes of their trees. If null a
            chain of 24, or the experiment's builder if the drafter learns from its drafts.
        candidates: Candidates of the draft kept for every token of the output, which bounds the width of a tree.
        target_top_k: The target's best tokens kept for every recorded token, for drafters that learn from them; if
            null, as many as the drafter learns, or 8.
        turns_per_file: Turns in a Parquet file; an interrupted recording continues after the last file.
        live_sample: Prompts that the composition also decodes live, to compare with the replay.
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
        profiles: Latency profiles: their arguments, or an ``artifact`` that has them.
        files: Further profiles: YAML files with a ``latency:`` section each, such as
            ``experiments/replay/devices/a100_7b.yaml``.
        max_nodes: Most nodes of a tree.
        max_depth: Depth of the deepest node.
    """

    profiles: list[Annotated[Any, CallOf("specexp.core.latency.LatencyProfile")]] = Field(default=[])
    files: list[str] = Field(default=[])
    max_nodes: Annotated[int, Field(ge=1, le=512)] = 64
    max_depth: Annotated[int, Field(ge=1, le=32)] = 10


class ArmSection(Section):
    """A named arm: overrides of the composition, or one of Hugging Face's own loops.

    Attributes:
        title: Name in tables; the arm's name if null.
        drafter: Overrides of the experiment's drafter; null for none.
        builder: Overrides of the experiment's builder; null for none.
        engine: Another engine instead of specexp's decoder; drafter and builder must be null then.
        grid: Values by dotted key: one arm for each.
        preload: Overrides of ``data`` for prompts that are decoded before the run. The arm's Token Recycling or
            phrase cache starts every prompt with the state learned from them, its controller the run.
        reference: Hugging Face's own generate instead of specexp's decoder, with the arguments below.
        num_assistant_tokens: Tokens that ``hf-assisted`` drafts.
        assistant_confidence_threshold: Probability below which ``hf-assisted`` stops drafting.
        prompt_lookup_num_tokens: Tokens that ``hf-prompt-lookup`` drafts.
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
"""Arguments of each reference loop."""


class TableExport(Section):
    """The artifact that fitting a controller leaves.

    Attributes:
        to: Folder of the artifact.
        kind: Kind of the artifact.
    """

    to: str
    kind: ControllerKind = "q-table"


class Fit(Section):
    """The learning of a controller by ``specexp.fit`` on the prompts of ``data``.

    Attributes:
        epochs: How often every prompt is decoded.
        checkpoint_every: Prompts between two checkpoints.
        export: Where the learned table is written.
    """

    epochs: Count = 1
    checkpoint_every: Count = 8
    export: TableExport | None = None


class Experiment(Section):
    """A whole file.

    Attributes:
        name: Name of the run and of its folder; that of the file if not given.
        question: The question of the experiment, in a sentence.
        paper: Publication with figures to compare with.
        pair: The models.
        data: The prompts that are decoded.
        drafter: Proposes the next tokens; null for plain decoding.
        builder: Grows the tree of a step.
        verifier: Accepts drafted tokens.
        controller: Limits a step's draft; null for the builder's own limits.
        artifact: Artifact with the parts to prove, or to compare on other prompts, without their learned state.
            They replace the file's own parts, arms and search.
        trust: Installed packages that may define that artifact's parts.
        execution: How several sequences are decoded for a prompt: an item of ``TaskItems`` as a tree of
            thoughts, any other prompt with ``generation.samples`` continuations as one group. Null decodes
            one sequence at a time, or with ``SerialSpeculative`` if other arms have an execution. Plain decoding
            is then ``Serial``, and the only baseline: Hugging Face's loops decode no groups.
        reasoning: How items of ``TaskItems`` are searched.
        generation: How much is generated.
        engine: Another engine. ``specexp.sweep`` searches its settings instead of the four parts.
        latency: Costs of a device and its models, by which the run's seconds are modelled; null to measure them.
        trainer: Arguments of Lightning's Trainer.
        output: Folder of the results.
        tracking: W&B project and mode of the runs.
        verify: How much ``specexp.verify`` tests.
        profile: What ``specexp.profile`` measures.
        record: What ``specexp.record`` records.
        backend: ``live`` runs the models; ``replay`` uses a recording, with seconds of the latency profile.
        recording: Folder that ``specexp.record`` wrote, for replay; ``record.to`` if null.
        what_if: Which devices ``specexp.what_if`` compares.
        arms: Named compositions to compare; each is its difference from the file's own.
        baselines: Baselines of the comparison: plain decoding by specexp, by Hugging Face's generate, or both. If
            null both, unless Hugging Face's generate cannot emit the tokens of the verifier.
        published: Rows of the paper's table that are not run here: a ``method`` and its figures.
        figure: Which figure ``specexp.run`` draws; its default if null.
        float32_prompts: How many prompts ``specexp.run`` and the confirmation of a sweep decode once more
            with a float32 copy of a 16-bit target, untimed and within 15 seconds, if outputs differ at near
            ties: in float32 they must be equal. 0 turns it off.
        analyses: Analyses of every step by ``specexp.run``.
        fit: How ``specexp.fit`` lets the controller learn.
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
    baselines: list[Literal["engine", "hf-eager"]] | None = None
    published: list[dict[str, str | float | None]] = Field(default=[])
    figure: str | None = None
    float32_prompts: Annotated[int, Field(ge=0)] = 8
    analyses: list[Annotated[Any, PartOf("specexp.bench.analysis.Analysis")]] = Field(default=[])
    fit: Fit | None = None
    sweep: Sweep | None = None
