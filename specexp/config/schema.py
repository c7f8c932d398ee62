"""Sections of an experiment file. Parts are not here: their constructors are their schema."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import Field
from typing_extensions import override

from specexp.artifacts import ControllerKind
from specexp.config.sweep import Sweep
from specexp.core.checked import CallOf, PartOf, Section, keys_below

Count = Annotated[int, Field(ge=1)]
Dtype = Literal["bfloat16", "float16", "float32"]


class Pair(Section):
    """The models."""

    target: str = "stdlib"
    """``stdlib`` for the embedded pair, otherwise hub id, folder, or GGUF file for llama.cpp."""
    draft: str | None = None
    """hub id, folder or GGUF file; null for the embedded pair's own, and for none beside other targets."""
    target_dtype: Dtype = "bfloat16"
    """Precision of the target; of a GGUF file's keys and values."""
    draft_dtype: Dtype = "float32"
    """Precision of the draft; of a GGUF file's keys and values."""
    device: str = "cpu"
    """As torch names it."""
    device_map: Literal["auto", "balanced", "balanced_low_0", "sequential"] | dict[str, str | int] | None = (
        None
    )
    """Where the target's modules stand, for one that a device alone does not hold: ``auto`` and the like, or
    a mapping of modules to devices, ``cpu`` or ``disk``; the draft stands on ``device``. Needs accelerate.
    """
    offload_folder: str | None = None
    """Where what is mapped to ``disk`` is written if it cannot be read from the model's own files."""
    attn_implementation: Literal["sdpa", "eager"] = "sdpa"
    """How attention is computed; other implementations take no tree mask."""
    mode: str = "auto"
    """How both are run: ``eager`` by their own code as it is, ``compiled`` by passes compiled for this
    machine (models of the Llama family on a CPU), ``auto`` compiled where that can be.
    """


class Generation(Section):
    """How much is generated, the same for every arm."""

    max_new_tokens: Count = 128
    """Most tokens of a turn; never exceeded."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Seed of verifiers and drafters that draw."""
    samples: Count = 1
    """Continuations of every prompt."""
    stop_at_eos: bool = True
    """Whether EOS ends an answer."""
    threads: Count | None = None
    """CPU threads of torch; null leaves them as they are."""


class Reasoning(Section):
    """How items of reasoning tasks are searched."""

    search: Annotated[Any, PartOf("specexp.data.searches.search.Search")] = Field(
        default={"class_path": "BreadthFirst"}
    )
    """Which states of the tree of thoughts are expanded."""
    max_new_tokens: Count | None = None
    """Most tokens of one generation, where a task allows more; null for the task's own limits."""


class Tracking(Section):
    """W&B."""

    project: str = "specexp"
    """Where runs go."""
    mode: Literal["online", "offline", "disabled"] | None = None
    """How they go there; null is online if logged in, else offline."""
    entity: str | None = None
    """Whose project it is; the user's own if null."""
    tags: list[str] = Field(default=[])
    """Labels of the runs."""


class Verify(Section):
    """How much ``specexp.verify`` tests."""

    level: Annotated[float, Field(gt=0, lt=1)] = 0.001
    """Probability with which a composition that is exact is refused."""
    total_variation: Annotated[float, Field(ge=0.001, lt=1)] = 0.05
    """Deviation of the joint of three tokens on the toy targets that is to be found or excluded."""
    toy_triples: Count | None = None
    """Triples of tokens on each toy target at most; as many as a decision needs if null."""
    toy_tokens: Count = 8000
    """Tokens on the toy targets that are compared with what a deterministic verifier has to say."""
    prompts: Count = 2
    """How many prompts' first tokens are tested on the configured models."""
    samples: Count = 400
    """Continuations of each of those prompts."""
    first_tokens: Annotated[int, Field(ge=1, le=4)] = 3
    """How many tokens are tested jointly there."""
    workers: Count | None = None
    """Processes that decode on the toy targets; as many as cores if null."""


class Profile(Section):
    """What ``specexp.profile`` measures, and where it goes."""

    to: str = "artifacts/profile"
    """Folder of the ``latency-profile`` artifact."""
    max_tokens: Count = 128
    """Most tokens of a pass, the root among them."""
    prefixes: list[Count] = Field(default=[64, 256, 448])
    """Tokens in the cache before a pass; the context must hold them, the deepest row of the largest pass, and
    15 tokens, since the cache grows over a block of passes.
    """
    lanes: list[Annotated[int, Field(ge=2)]] = Field(default=[])
    """Numbers of sequences, from 2, that one pass answers together: such passes are measured, too, behind the
    middle prefix.
    """
    repeats: Annotated[int, Field(ge=2)] = 30
    """Blocks of passes of every size; each block gives one measurement."""
    prompts: Count = 4
    """How many prompts of ``data`` are decoded by every composition."""
    max_new_tokens: Annotated[int, Field(ge=8)] = 48
    """Most tokens of each of those answers."""


class Record(Section):
    """What ``specexp.record`` asks the models, and where the answers go."""

    to: str | None = None
    """Folder of the recording; ``recordings/<name>`` if null."""
    coverage: list[Annotated[Any, PartOf("specexp.core.contracts.TreeBuilder")]] | None = None
    """Builders run once at every root: what they ask is what replayed builders may ask. If null a chain of
    24, or for a drafter that learns from what it drafts the experiment's builder.
    """
    candidates: Annotated[int, Field(ge=1, le=4096)] = 32
    """Candidates of the draft kept after every token of the output, at least: the widest static tree."""
    target_top_k: Annotated[int, Field(ge=1, le=256)] | None = None
    """Best tokens of the target kept after every recorded token, for drafters that learn from them; as many
    as the drafter learns, or 8, if null.
    """
    turns_per_file: Count = 8
    """Answered turns of a Parquet file; a recording that was cut off goes on after the last one."""
    live_sample: Annotated[int, Field(ge=0)] = 4
    """Prompts that the composition also decodes live, to compare with what replay says of them."""


class WhatIf(Section):
    """Which static tree ``specexp.what_if`` finds for each of several devices."""

    profiles: list[Annotated[Any, CallOf("specexp.core.latency.LatencyProfile")]] = Field(default=[])
    """Latency profiles: their arguments, or an ``artifact`` to take them from."""
    files: list[str] = Field(default=[])
    """Further profiles: YAML files with a ``latency:`` section each, such as
    ``experiments/replay/devices/a100_7b.yaml``.
    """
    max_nodes: Annotated[int, Field(ge=1, le=512)] = 64
    """Most nodes of a tree."""
    max_depth: Annotated[int, Field(ge=1, le=32)] = 10
    """Depth of the deepest node."""


class ArmSection(Section):
    """A named arm: overrides of the composition, or one of Hugging Face's own loops."""

    title: str | None = None
    """What tables say; the arm's name if null."""
    drafter: Any = None
    """Overrides of the experiment's; null for none."""
    builder: Any = None
    """Overrides of the experiment's; null for none."""
    verifier: Any = None
    controller: Any = None
    execution: Any = None
    engine: Any = None
    """Somebody else's engine instead of our decoder; with the experiment's drafter and builder it does not
    go.
    """
    data: dict[str, Any] | None = None
    generation: dict[str, Any] | None = None
    pair: dict[str, Any] | None = None
    grid: dict[str, list[Any]] = Field(default={})
    """Values by dotted key: one arm for each."""
    preload: dict[str, Any] | None = None
    """Overrides of ``data``, naming other prompts. They are decoded before the run; the arm's Token Recycling
    or phrase cache then starts every prompt from what they taught it, and its controller the run.
    """
    reference: Literal["hf-eager", "hf-assisted", "hf-prompt-lookup"] | None = None
    """Hugging Face's own generate instead of our decoder, with the arguments below."""
    num_assistant_tokens: Count = 4
    """Tokens that ``hf-assisted`` drafts."""
    assistant_confidence_threshold: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Probability below which ``hf-assisted`` stops drafting."""
    prompt_lookup_num_tokens: Count = 8
    """Tokens that ``hf-prompt-lookup`` drafts."""
    max_matching_ngram_size: Count = 2
    """Longest n-gram that ``hf-prompt-lookup`` looks for."""


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
    """The artifact that fitting a controller leaves."""

    to: str
    """Folder of the artifact."""
    kind: ControllerKind = "q-table"
    """Kind of the artifact."""


class Fit(Section):
    """How ``specexp.fit`` lets a controller learn on the prompts of ``data``."""

    epochs: Count = 1
    """How often every prompt is decoded."""
    checkpoint_every: Count = 8
    """Prompts between two checkpoints."""
    export: TableExport | None = None
    """Where the learned table is written."""


class Experiment(Section):
    """A whole file. ``data`` is :class:`specexp.data.Workload`, the four parts are any of their family."""

    name: str
    """Name of the run and of its folder; that of the file if not given."""
    question: str | None = None
    """What the experiment answers, in a sentence."""
    paper: str | None = None
    """Where its figures can be compared with."""
    pair: Pair = Field(default_factory=Pair)
    """The models."""
    data: Annotated[Any, CallOf("specexp.data.Workload")] = Field(
        default={"prompts": {"class_path": "StdlibFunctions"}}
    )
    """Which prompts are decoded."""
    drafter: Annotated[Any, PartOf("specexp.core.contracts.Drafter")] | None = None
    """What guesses the next tokens; null for plain decoding."""
    builder: Annotated[Any, PartOf("specexp.core.contracts.TreeBuilder")] | None = None
    """What grows the tree of a step."""
    verifier: Annotated[Any, PartOf("specexp.core.contracts.Verifier")] = Field(
        default={"class_path": "Greedy"}
    )
    """What accepts drafted tokens."""
    controller: Annotated[Any, PartOf("specexp.core.contracts.Controller")] | None = Field(
        default={"class_path": "Fixed"}
    )
    """What limits a step's draft; null for the builder's own limits."""
    artifact: str | None = None
    """Artifact whose drafter, builder, verifier and controller take the place of the file's own, and of its
    arms and search, without what they had learned: to prove it, or to compare it on other prompts.
    """
    trust: str | list[str] = Field(default=[])
    """Installed packages whose classes that artifact's parts may be."""
    execution: Annotated[Any, PartOf("specexp.scheduling.Execution")] | None = None
    """How several sequences are decoded for a prompt: an item of ``TaskItems`` as a tree of thoughts, any
    other prompt with ``generation.samples`` continuations as one group. None decodes one sequence at a time;
    of a group, or of arms some of which have an execution, it is ``SerialSpeculative``. Plain decoding is
    then ``Serial``, and the only baseline: Hugging Face's loops decode no groups.
    """
    reasoning: Reasoning = Field(default_factory=dict)  # type: ignore[assignment]
    """How items of ``TaskItems`` are searched."""
    generation: Generation = Field(default_factory=Generation)
    """How much is generated."""
    engine: Annotated[Any, PartOf("specexp.engines.engine.ForeignEngine")] | None = None
    """Somebody else's engine, whose settings ``specexp.sweep`` searches instead of the four parts."""
    latency: Annotated[Any, CallOf("specexp.core.latency.LatencyProfile")] | None = None
    """Costs of another device, or of other models, by which the run's seconds are modelled; measured if null.
    """
    trainer: dict[str, Any] = Field(default={})
    """Arguments of Lightning's Trainer."""
    output: str = "runs"
    """Folder of the results."""
    tracking: Tracking = Field(default_factory=Tracking)
    """Where W&B runs go."""
    verify: Verify = Field(default_factory=Verify)
    """How much ``specexp.verify`` tests."""
    profile: Profile = Field(default_factory=Profile)
    """What ``specexp.profile`` measures."""
    record: Record = Field(default_factory=Record)
    """What ``specexp.record`` asks the models."""
    backend: Literal["live", "replay"] = "live"
    """``live`` runs the models; ``replay`` answers from a recording, in seconds of the latency profile."""
    recording: str | None = None
    """Folder that ``specexp.record`` wrote, for replay; ``record.to`` if null."""
    what_if: WhatIf | None = None
    """Which devices ``specexp.what_if`` compares."""
    arms: dict[str, ArmSection | None] = Field(default={})
    """Named compositions beside each other; each is what differs from the file's own."""
    baselines: list[Literal["engine", "hf-eager"]] | None = None
    """What arms are compared with: plain decoding by our engine, by Hugging Face's generate, or both. If null
    both, where Hugging Face's can emit the tokens of the verifier.
    """
    published: list[dict[str, str | float | None]] = Field(default=[])
    """Rows of the paper's table that are not run here: a ``method`` and its figures."""
    figure: str | None = None
    """Which figure ``specexp.run`` draws; its default if null."""
    float32_prompts: Annotated[int, Field(ge=0)] = 8
    """How many prompts ``specexp.run`` and the confirmation of a sweep decode once more with a float32 copy
    of a 16-bit target, outside the clock and within 15 seconds, where outputs part at near ties: in float32
    they must be equal. 0 leaves it out.
    """
    analyses: list[Annotated[Any, PartOf("specexp.bench.analysis.Analysis")]] = Field(default=[])
    """What ``specexp.run`` looks for in every step."""
    fit: Fit | None = None
    """How ``specexp.fit`` lets the controller learn."""
    sweep: Sweep | None = None
    """What ``specexp.sweep`` searches."""

    @override
    @classmethod
    def known_keys(cls) -> Iterable[str]:
        return keys_below(cls)
