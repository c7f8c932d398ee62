"""Sections of an experiment file. Parts are not here: their constructors are their schema."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator
from typing_extensions import override

from specexp.artifacts import ControllerKind
from specexp.config.sweep import Sweep
from specexp.core.checked import CallOf, PartOf, Section, keys_below, refusal

Count = Annotated[int, Field(ge=1)]
Dtype = Literal["bfloat16", "float16", "float32"]


class Pair(Section):
    """The models.

    Attributes:
        target: ``stdlib`` for the embedded pair, otherwise hub id, folder, or GGUF file for llama.cpp.
        draft: hub id, folder or GGUF file; null for the embedded pair's own, and for none beside other
            targets.
        target_dtype: Precision of the target; of a GGUF file's keys and values.
        draft_dtype: Precision of the draft; of a GGUF file's keys and values.
        device: As torch names it.
        device_map: Where the target's modules stand, for one that a device alone does not hold: ``auto`` and
            the like, or a mapping of modules to devices, ``cpu`` or ``disk``; the draft stands on ``device``.
            Needs accelerate.
        offload_folder: Where what is mapped to ``disk`` is written if it cannot be read from the model's own
            files.
        attn_implementation: How attention is computed; other implementations take no tree mask.
        mode: How both are run: ``eager`` by their own code as it is, ``compiled`` by passes compiled for this
            machine (models of the Llama family on a CPU), ``auto`` compiled where that can be.
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
    """How much is generated, the same for every arm.

    Attributes:
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


class Reasoning(Section):
    """How items of reasoning tasks are searched.

    Attributes:
        search: Which states of the tree of thoughts are expanded.
        max_new_tokens: Most tokens of one generation, where a task allows more; null for the task's own
            limits.
    """

    search: Annotated[Any, PartOf("specexp.data.searches.search.Search")] = Field(
        default={"class_path": "BreadthFirst"}
    )
    max_new_tokens: Count | None = None


class Tracking(Section):
    """W&B.

    Attributes:
        project: Where runs go.
        mode: How they go there; null is online if logged in, else offline.
        entity: Whose project it is; the user's own if null.
        tags: Labels of the runs.
    """

    project: str = "specexp"
    mode: Literal["online", "offline", "disabled"] | None = None
    entity: str | None = None
    tags: list[str] = Field(default=[])


class Verify(Section):
    """How much ``specexp.verify`` tests.

    Attributes:
        level: Probability with which a composition that is exact is refused.
        total_variation: Deviation of the joint of three tokens on the toy targets that is to be found or
            excluded.
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


class Profile(Section):
    """What ``specexp.profile`` measures, and where it goes.

    Attributes:
        to: Folder of the ``latency-profile`` artifact.
        max_tokens: Most tokens of a pass, the root among them.
        prefixes: Tokens in the cache before a pass; the context must hold them, the deepest row of the
            largest pass, and 15 tokens, since the cache grows over a block of passes.
        lanes: Numbers of sequences, from 2, that one pass answers together: such passes are measured, too,
            behind the middle prefix.
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
    """What ``specexp.record`` asks the models, and where the answers go.

    Attributes:
        to: Folder of the recording; ``recordings/<name>`` if null.
        coverage: Builders run once at every root: what they ask is what replayed builders may ask. If null a
            chain of 24, or for a drafter that learns from what it drafts the experiment's builder.
        candidates: Candidates of the draft kept after every token of the output, at least: the widest static
            tree.
        target_top_k: Best tokens of the target kept after every recorded token, for drafters that learn from
            them; as many as the drafter learns, or 8, if null.
        turns_per_file: Answered turns of a Parquet file; a recording that was cut off goes on after the last
            one.
        live_sample: Prompts that the composition also decodes live, to compare with what replay says of them.
    """

    to: str | None = None
    coverage: list[Annotated[Any, PartOf("specexp.core.contracts.TreeBuilder")]] | None = None
    candidates: Annotated[int, Field(ge=1, le=4096)] = 32
    target_top_k: Annotated[int, Field(ge=1, le=256)] | None = None
    turns_per_file: Count = 8
    live_sample: Annotated[int, Field(ge=0)] = 4


class WhatIf(Section):
    """Which static tree ``specexp.what_if`` finds for each of several devices.

    Attributes:
        profiles: Latency profiles: their arguments, or an ``artifact`` to take them from.
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
        title: What tables say; the arm's name if null.
        drafter: Overrides of the experiment's; null for none.
        builder: Overrides of the experiment's; null for none.
        engine: Somebody else's engine instead of our decoder; with the experiment's drafter and builder it
            does not go.
        grid: Values by dotted key: one arm for each.
        preload: Overrides of ``data``, naming other prompts. They are decoded before the run; the arm's Token
            Recycling or phrase cache then starts every prompt from what they taught it, and its controller
            the run.
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
                raise refusal((key,), f" does not go with reference {reference!r}, which takes {allowed}")
        return given


OVERRIDES = ("drafter", "builder", "verifier", "controller", "execution", "engine", "data", "generation",
             "pair")  # fmt: skip
"""What an arm may override."""

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
    """How ``specexp.fit`` lets a controller learn on the prompts of ``data``.

    Attributes:
        epochs: How often every prompt is decoded.
        checkpoint_every: Prompts between two checkpoints.
        export: Where the learned table is written.
    """

    epochs: Count = 1
    checkpoint_every: Count = 8
    export: TableExport | None = None


class Experiment(Section):
    """A whole file. ``data`` is :class:`specexp.data.Workload`, the four parts are any of their family.

    Attributes:
        name: Name of the run and of its folder; that of the file if not given.
        question: What the experiment answers, in a sentence.
        paper: Where its figures can be compared with.
        pair: The models.
        data: Which prompts are decoded.
        drafter: What guesses the next tokens; null for plain decoding.
        builder: What grows the tree of a step.
        verifier: What accepts drafted tokens.
        controller: What limits a step's draft; null for the builder's own limits.
        artifact: Artifact whose drafter, builder, verifier and controller take the place of the file's own,
            and of its arms and search, without what they had learned: to prove it, or to compare it on other
            prompts.
        trust: Installed packages whose classes that artifact's parts may be.
        execution: How several sequences are decoded for a prompt: an item of ``TaskItems`` as a tree of
            thoughts, any other prompt with ``generation.samples`` continuations as one group. None decodes
            one sequence at a time; of a group, or of arms some of which have an execution, it is
            ``SerialSpeculative``. Plain decoding is then ``Serial``, and the only baseline: Hugging Face's
            loops decode no groups.
        reasoning: How items of ``TaskItems`` are searched.
        generation: How much is generated.
        engine: Somebody else's engine, whose settings ``specexp.sweep`` searches instead of the four parts.
        latency: Costs of another device, or of other models, by which the run's seconds are modelled;
            measured if null.
        trainer: Arguments of Lightning's Trainer.
        output: Folder of the results.
        tracking: Where W&B runs go.
        verify: How much ``specexp.verify`` tests.
        profile: What ``specexp.profile`` measures.
        record: What ``specexp.record`` asks the models.
        backend: ``live`` runs the models; ``replay`` answers from a recording, in seconds of the latency
            profile.
        recording: Folder that ``specexp.record`` wrote, for replay; ``record.to`` if null.
        what_if: Which devices ``specexp.what_if`` compares.
        arms: Named compositions beside each other; each is what differs from the file's own.
        baselines: What arms are compared with: plain decoding by our engine, by Hugging Face's generate, or
            both. If null both, where Hugging Face's can emit the tokens of the verifier.
        published: Rows of the paper's table that are not run here: a ``method`` and its figures.
        figure: Which figure ``specexp.run`` draws; its default if null.
        float32_prompts: How many prompts ``specexp.run`` and the confirmation of a sweep decode once more
            with a float32 copy of a 16-bit target, outside the clock and within 15 seconds, where outputs
            part at near ties: in float32 they must be equal. 0 leaves it out.
        analyses: What ``specexp.run`` looks for in every step.
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

    @override
    @classmethod
    def known_keys(cls) -> Iterable[str]:
        return keys_below(cls)
