"""Sections of an experiment file. Parts are not here: their constructors are their schema."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Field

from specexp.artifacts import ControllerKind
from specexp.config.sweep import Sweep
from specexp.core.annotations import CallOf, PartOf

Count = Annotated[int, Field(ge=1)]
Dtype = Literal["bfloat16", "float16", "float32"]


@dataclass(frozen=True)
class Pair:
    """The models.

    Args:
        target: ``stdlib`` for the embedded pair, otherwise hub id, folder, or GGUF file for llama.cpp.
        draft: hub id, folder or GGUF file; null for the embedded pair's own, and for none beside other targets.
        target_dtype: Precision of the target; of a GGUF file's keys and values.
        draft_dtype: Precision of the draft; of a GGUF file's keys and values.
        device: As torch names it.
        device_map: Where the target's modules stand, for one that a device alone does not hold: ``auto`` and the like,
            or a mapping of modules to devices, ``cpu`` or ``disk``; the draft stands on ``device``. Needs accelerate.
        offload_folder: Where what is mapped to ``disk`` is written if it cannot be read from the model's own files.
        attn_implementation: How attention is computed; other implementations take no tree mask.
        mode: How both are run: ``eager`` by their own code as it is, ``compiled`` by passes compiled for this machine
            (models of the Llama family on a CPU), ``auto`` compiled where that can be.
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


@dataclass(frozen=True)
class Generation:
    """How much is generated, the same for every arm.

    Args:
        max_new_tokens: Most tokens of a turn; never exceeded.
        seed: Seed of verifiers and drafters that draw.
        samples: Continuations of every prompt.
        stop_at_eos: Whether EOS ends an answer.
        threads: CPU threads of torch; null leaves them as they are.
    """

    max_new_tokens: Count = 128
    seed: Annotated[int, Field(ge=0)] = 0
    samples: Count = 1
    stop_at_eos: bool = True
    threads: Count | None = None


@dataclass(frozen=True)
class Reasoning:
    """How items of reasoning tasks are searched.

    Args:
        search: Which states of the tree of thoughts are expanded.
        max_new_tokens: Most tokens of one generation, where a task allows more; null for the task's own limits.
    """

    search: Annotated[Any, PartOf("specexp.data.searches.search.Search")] = field(
        default_factory=lambda: {"class_path": "BreadthFirst"}
    )
    max_new_tokens: Count | None = None


@dataclass(frozen=True)
class Tracking:
    """W&B.

    Args:
        project: Where runs go.
        mode: How they go there; null is online if logged in, else offline.
        entity: Whose project it is; the user's own if null.
        tags: Labels of the runs.
    """

    project: str = "specexp"
    mode: Literal["online", "offline", "disabled"] | None = None
    entity: str | None = None
    tags: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Verify:
    """How much ``specexp.verify`` tests.

    Args:
        level: Probability with which a composition that is exact is refused.
        total_variation: Deviation of the joint of three tokens on the toy targets that is to be found or excluded.
        toy_triples: Triples of tokens on each toy target at most; as many as a decision needs if null.
        toy_tokens: Tokens on the toy targets that are compared with what a deterministic verifier has to say.
        prompts: How many prompts' first tokens are tested on the configured models.
        samples: Continuations of each of those prompts.
        first_tokens: How many tokens are tested jointly there.
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


@dataclass(frozen=True)
class Profile:
    """What ``specexp.profile`` measures, and where it goes.

    Args:
        to: Folder of the ``latency-profile`` artifact.
        max_tokens: Most tokens of a pass, the root among them.
        prefixes: Tokens in the cache before a pass; the context must hold them, the deepest row of the largest pass,
            and 15 tokens, since the cache grows over a block of passes.
        lanes: Numbers of sequences, from 2, that one pass answers together: such passes are measured, too, behind the
            middle prefix.
        repeats: Blocks of passes of every size; each block gives one measurement.
        prompts: How many prompts of ``data`` are decoded by every composition.
        max_new_tokens: Most tokens of each of those answers.
    """

    to: str = "artifacts/profile"
    max_tokens: Count = 128
    prefixes: list[Count] = field(default_factory=lambda: [64, 256, 448])
    lanes: list[Annotated[int, Field(ge=2)]] = field(default_factory=list)
    repeats: Annotated[int, Field(ge=2)] = 30
    prompts: Count = 4
    max_new_tokens: Annotated[int, Field(ge=8)] = 48


@dataclass(frozen=True)
class Record:
    """What ``specexp.record`` asks the models, and where the answers go.

    Args:
        to: Folder of the recording; ``recordings/<name>`` if null.
        coverage: Builders run once at every root: what they ask is what replayed builders may ask. If null a chain of
            24, or for a drafter that learns from what it drafts the experiment's builder.
        candidates: Candidates of the draft kept after every token of the output, at least: the widest static tree.
        target_top_k: Best tokens of the target kept after every recorded token, for drafters that learn from them; as
            many as the drafter learns, or 8, if null.
        turns_per_file: Answered turns of a Parquet file; a recording that was cut off goes on after the last one.
        live_sample: Prompts that the composition also decodes live, to compare with what replay says of them.
    """

    to: str | None = None
    coverage: list[Annotated[Any, PartOf("specexp.core.contracts.TreeBuilder")]] | None = None
    candidates: Annotated[int, Field(ge=1, le=4096)] = 32
    target_top_k: Annotated[int, Field(ge=1, le=256)] | None = None
    turns_per_file: Count = 8
    live_sample: Annotated[int, Field(ge=0)] = 4


@dataclass(frozen=True)
class WhatIf:
    """Which static tree ``specexp.what_if`` finds for each of several devices.

    Args:
        profiles: Latency profiles: their arguments, or an ``artifact`` to take them from.
        files: Further profiles: YAML files with a ``latency:`` section each, such as
            ``experiments/replay/devices/a100_7b.yaml``.
        max_nodes: Most nodes of a tree.
        max_depth: Depth of the deepest node.
    """

    profiles: list[Annotated[Any, CallOf("specexp.core.latency.LatencyProfile")]] = field(
        default_factory=list
    )
    files: list[str] = field(default_factory=list)
    max_nodes: Annotated[int, Field(ge=1, le=512)] = 64
    max_depth: Annotated[int, Field(ge=1, le=32)] = 10


@dataclass(frozen=True)
class ArmSection:
    """A named arm: overrides of the composition, or one of Hugging Face's own loops.

    Args:
        title: What tables say; the arm's name if null.
        drafter: Overrides of the experiment's; null for none.
        builder: Overrides of the experiment's; null for none.
        verifier: Overrides of the experiment's.
        controller: Overrides of the experiment's.
        execution: Overrides of the experiment's.
        engine: Somebody else's engine instead of our decoder; with the experiment's drafter and builder it does not go.
        data: Overrides of the experiment's.
        generation: Overrides of the experiment's.
        pair: Overrides of the experiment's.
        grid: Values by dotted key: one arm for each.
        preload: Overrides of ``data``, naming other prompts. They are decoded before the run; the arm's Token
            Recycling or phrase cache then starts every prompt from what they taught it, and its controller the run.
        reference: Hugging Face's own generate instead of our decoder, with the arguments below.
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
    grid: dict[str, list[Any]] = field(default_factory=dict)
    preload: dict[str, Any] | None = None
    reference: Literal["hf-eager", "hf-assisted", "hf-prompt-lookup"] | None = None
    num_assistant_tokens: Count = 4
    assistant_confidence_threshold: Annotated[float, Field(ge=0, le=1)] = 0.0
    prompt_lookup_num_tokens: Count = 8
    max_matching_ngram_size: Count = 2


OVERRIDES = ("drafter", "builder", "verifier", "controller", "execution", "engine", "data", "generation",
             "pair")  # fmt: skip
"""What an arm may override."""

REFERENCE_KEYS = {
    "hf-eager": (),
    "hf-assisted": ("num_assistant_tokens", "assistant_confidence_threshold"),
    "hf-prompt-lookup": ("prompt_lookup_num_tokens", "max_matching_ngram_size"),
}
"""Arguments of each reference loop."""


@dataclass(frozen=True)
class TableExport:
    """The artifact that fitting a controller leaves.

    Args:
        to: Folder of the artifact.
        kind: Kind of the artifact.
    """

    to: str
    kind: ControllerKind = "q-table"


@dataclass(frozen=True)
class Fit:
    """How ``specexp.fit`` lets a controller learn on the prompts of ``data``.

    Args:
        epochs: How often every prompt is decoded.
        checkpoint_every: Prompts between two checkpoints.
        export: Where the learned table is written.
    """

    epochs: Count = 1
    checkpoint_every: Count = 8
    export: TableExport | None = None


@dataclass(frozen=True)
class Experiment:
    """A whole file. ``data`` is :class:`specexp.data.Workload`, the four parts are any of their family.

    Args:
        name: Name of the run and of its folder; that of the file if not given.
        question: What the experiment answers, in a sentence.
        paper: Where its figures can be compared with.
        pair: The models.
        data: Which prompts are decoded.
        drafter: What guesses the next tokens; null for plain decoding.
        builder: What grows the tree of a step.
        verifier: What accepts drafted tokens.
        controller: What limits a step's draft; null for the builder's own limits.
        generation: How much is generated.
        trainer: Arguments of Lightning's Trainer.
        output: Folder of the results.
        tracking: Where W&B runs go.
        verify: How much ``specexp.verify`` tests.
        profile: What ``specexp.profile`` measures.
        record: What ``specexp.record`` asks the models.
        what_if: Which devices ``specexp.what_if`` compares.
        arms: Named compositions beside each other; each is what differs from the file's own.
        baselines: What arms are compared with: plain decoding by our engine, by Hugging Face's generate, or both. If
            null both, where Hugging Face's can emit the tokens of the verifier.
        sweep: What ``specexp.sweep`` searches.
        artifact: Artifact whose drafter, builder, verifier and controller take the place of the file's own, and of its
            arms and search, without what they had learned: to prove it, or to compare it on other prompts.
        trust: Installed packages whose classes that artifact's parts may be.
        execution: How several sequences are decoded for a prompt: an item of ``TaskItems`` as a tree of thoughts, any
            other prompt with ``generation.samples`` continuations as one group. None decodes one sequence at a time;
            of a group, or of arms some of which have an execution, it is ``SerialSpeculative``. Plain decoding is then
            ``Serial``, and the only baseline: Hugging Face's loops decode no groups.
        reasoning: How items of ``TaskItems`` are searched.
        engine: Somebody else's engine, whose settings ``specexp.sweep`` searches instead of the four parts.
        latency: Costs of another device, or of other models, by which the run's seconds are modelled; measured if null.
        backend: ``live`` runs the models; ``replay`` answers from a recording, in seconds of the latency profile.
        recording: Folder that ``specexp.record`` wrote, for replay; ``record.to`` if null.
        published: Rows of the paper's table that are not run here: a ``method`` and its figures.
        figure: Which figure ``specexp.run`` draws; its default if null.
        float32_prompts: How many prompts ``specexp.run`` and the confirmation of a sweep decode once more with a
            float32 copy of a 16-bit target, outside the clock and within 15 seconds, where outputs part at near ties:
            in float32 they must be equal. 0 leaves it out.
        analyses: What ``specexp.run`` looks for in every step.
        fit: How ``specexp.fit`` lets the controller learn.
    """

    name: str
    question: str | None = None
    paper: str | None = None
    pair: Pair = field(default_factory=Pair)
    data: Annotated[Any, CallOf("specexp.data.Workload")] = field(
        default_factory=lambda: {"prompts": {"class_path": "StdlibFunctions"}}
    )
    drafter: Annotated[Any, PartOf("specexp.core.contracts.Drafter")] | None = None
    builder: Annotated[Any, PartOf("specexp.core.contracts.TreeBuilder")] | None = None
    verifier: Annotated[Any, PartOf("specexp.core.contracts.Verifier")] = field(
        default_factory=lambda: {"class_path": "Greedy"}
    )
    controller: Annotated[Any, PartOf("specexp.core.contracts.Controller")] | None = field(
        default_factory=lambda: {"class_path": "Fixed"}
    )
    artifact: str | None = None
    trust: str | list[str] = field(default_factory=list)
    execution: Annotated[Any, PartOf("specexp.scheduling.Execution")] | None = None
    reasoning: Reasoning = field(default_factory=Reasoning)
    generation: Generation = field(default_factory=Generation)
    engine: Annotated[Any, PartOf("specexp.engines.engine.ForeignEngine")] | None = None
    latency: Annotated[Any, CallOf("specexp.core.latency.LatencyProfile")] | None = None
    trainer: dict[str, Any] = field(default_factory=dict)
    output: str = "runs"
    tracking: Tracking = field(default_factory=Tracking)
    verify: Verify = field(default_factory=Verify)
    profile: Profile = field(default_factory=Profile)
    record: Record = field(default_factory=Record)
    backend: Literal["live", "replay"] = "live"
    recording: str | None = None
    what_if: WhatIf | None = None
    arms: dict[str, ArmSection | None] = field(default_factory=dict)
    baselines: list[Literal["engine", "hf-eager"]] | None = None
    published: list[dict[str, str | float | None]] = field(default_factory=list)
    figure: str | None = None
    float32_prompts: Annotated[int, Field(ge=0)] = 8
    analyses: list[Annotated[Any, PartOf("specexp.bench.analysis.Analysis")]] = field(default_factory=list)
    fit: Fit | None = None
    sweep: Sweep | None = None
