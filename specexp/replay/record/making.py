"""Making a recording as an experiment file describes it.

Every file of turns is written whole before the manifest names it, so that a recording cut off anywhere goes on after
its last file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from specexp.bench.arm import eos_of, sequence_name
from specexp.bench.experiment import check_prompts, use_threads
from specexp.cluster.shard import Shard, forget_shards, shards_in
from specexp.config import (
    Config,
    apply_overrides,
    build_generation,
    build_pair,
    build_parts,
    build_workload,
    prompts_error,
)
from specexp.core.messages import counted, size_of, type_and_line
from specexp.data import Prompt, PromptSetError
from specexp.replay.format.recorded_turn import RecordedTurn
from specexp.replay.format.recording import Recording, parquet, write_turns
from specexp.replay.format.trie import TrieWriter
from specexp.replay.play.fidelity import scoring_of
from specexp.replay.record.folder import alone_in, go_on, keep_learned, manifest_of, missing_in, next_file
from specexp.replay.record.plan import RecordingPlan, plan_recording, refusal
from specexp.replay.record.shards import is_recorded, merge

if TYPE_CHECKING:
    from specexp.bench.progress import StageBar
    from specexp.models.pair import ModelPair
    from specexp.replay.record.recorder import Recorder


class NotRecordableError(RuntimeError):
    """A prompt failed while it was recorded; one sentence with prompt, reason and what is kept."""


class Making:
    """A recording being made, or gone on with after its last complete file of turns.

    Args:
        config: The experiment file.
        tell: Takes a line about the progress.
        bar: Shows how far the stages are.
        pair: Models that are loaded already; the file's own if None.
        shard: Which part of the prompts is recorded, in a folder of its own; all if None.

    Raises:
        ConfigError: The file cannot be recorded, or its folder holds another recording; nothing was changed then.
    """

    def __init__(
        self,
        config: Config,
        tell: Callable[[str], None],
        bar: StageBar,
        pair: ModelPair | None = None,
        shard: Shard | None = None,
    ) -> None:
        self.config = config
        self.plan = plan_recording(config)
        self.shard = shard
        self.tell = tell
        self.bar = bar
        self.pair = pair or build_pair(self.plan.config)
        check_context(self.plan, self.pair)
        self.generation = build_generation(self.plan.config)
        use_threads(self.plan.config)
        self.prompts = load_prompts(self.plan, self.pair)
        self.manifest = manifest_of(self.plan, self.pair, self.prompts)
        if shard is not None:
            check_sharded(self.plan)
            self.prompts = shard.of(self.prompts)
            if self._missing():  # else another worker has put the whole together already
                self.plan = replace(self.plan, folder=shard.folder(self.plan.folder))
                self.manifest = manifest_of(self.plan, self.pair, self.prompts)

    def run(self) -> Recording:
        """Record what is missing, then compare some prompts with live ones.

        Raises:
            ConfigError: Another process records into the folder.
            NotRecordableError: A prompt failed; complete files are kept.
            OSError: The recording cannot be written.
        """
        folder = self.plan.folder
        self._put_together()
        missing = self._missing()
        whole = len(self.prompts) * self.generation.samples
        sampled = self._unsampled()
        answered = counted(whole, "answered prompt")
        if not missing and not sampled:
            self.tell(f"{folder} holds {whole} of {answered}: nothing is left to record.")
            return Recording(folder)
        for line in self.plan.lines():
            self.tell(line)
        if missing:
            if len(missing) < whole:
                self.tell(f"{folder} holds {whole - len(missing)} of {answered}: going on.")
            self.bar.stage("recording", whole, whole - len(missing))
            folder.mkdir(parents=True, exist_ok=True)
            with alone_in(folder):
                self.manifest.complete = False
                self.manifest.save(folder)
                self._record(missing)
                self.manifest.complete = True
                self.manifest.save(folder)
        if sampled:
            self._sample_live(sampled)
        return Recording(folder)

    def _put_together(self) -> None:
        """Take over what shards recorded, once each is whole; one that was killed is recorded to its end here."""
        whole = self.plan.folder
        shards = [] if self.shard is not None else shards_in(whole)
        if shards and self._missing():
            for shard in shards:
                Making(self.config, self.tell, self.bar, self.pair, shard).run()
            parts = [part for shard in shards if is_recorded(part := shard.folder(whole))]
            with alone_in(whole):
                merge(self.manifest, whole, parts, self.plan.config.get("record.turns_per_file"))
                self.manifest.complete = True
                self.manifest.save(whole)
            self.tell(f"{whole} is put together from {counted(len(shards), 'shard')}.")
        if shards:
            forget_shards(whole)

    def _missing(self) -> list[tuple[Prompt, int]]:
        return missing_in(self.manifest, self.plan.folder, self.prompts, self.generation.samples)

    def _record(self, missing: Sequence[tuple[Prompt, int]]) -> None:
        """Record conversations, file by file."""
        plan, pair, generation, manifest = self.plan, self.pair, self.generation, self.manifest
        recorder = self._recorder()
        go_on(recorder, plan.folder, manifest)
        most = plan.config.get("record.turns_per_file")
        eos = eos_of(pair.tokenizer, pair.target) if generation.stop_at_eos else frozenset()
        kept: list[RecordedTurn] = []
        for number, (prompt, sample) in enumerate(missing):

            def asked(turn: int, before: list[int], prompt: Prompt = prompt) -> list[int]:
                return prompt.turn_ids(pair.tokenizer, turn, before)

            try:
                kept += recorder.conversation(
                    prompt.prompt_id,
                    prompt.category,
                    prompt.index,
                    sample,
                    asked,
                    len(prompt.turns),
                    sequence=sequence_name(prompt, sample),
                    seed=generation.seed,
                    max_new_tokens=generation.max_new_tokens,
                    eos_token_ids=eos,
                )
            except Exception as error:
                raise NotRecordableError(
                    f"prompt {prompt.prompt_id!r}, {number + 1} of {len(missing)}, could not be recorded: "
                    f"{type_and_line(error)}; complete files stay in {plan.folder}, which replay refuses until every "
                    "prompt is there"
                ) from error
            if number == 0:
                turns = sum(len(prompt.turns) for prompt, _ in missing)
                self.tell(estimate(kept, turns, generation.max_new_tokens, files=-(-turns // most)))
            self.bar.prompt()
            if len(kept) >= most or number == len(missing) - 1:
                name = next_file(manifest)
                manifest.files[name] = write_turns(plan.folder / name, kept)
                keep_learned(recorder, plan.folder, manifest)
                manifest.save(plan.folder)
                kept = []

    def _recorder(self) -> Recorder:
        from specexp.drafters.draft_source import ModelSource
        from specexp.replay.record.recorder import Coverage, Recorder
        from specexp.replay.record.recording_source import RecordingSource

        plan, config = self.plan, self.plan.config
        candidates = config.get("record.candidates")
        source, draft = None, self.pair.draft_runtime()
        if draft is not None and scoring_of(plan.drafter()) is not None:
            source = RecordingSource(ModelSource(draft), 1, spine_width=candidates)
        # controllers take no part, and seconds decide nothing
        plain = apply_overrides(config, {"controller": {"class_path": "Fixed"}, "latency": None}, config.file)
        drafter = build_parts(plain, source).drafter
        model = self.pair.target_runtime()
        if drafter is not None:
            drafter.check_vocabulary(model.vocab_size)
        coverage = Coverage(plan.coverage, candidates, plan.target_top_k)
        return Recorder(model, plan.verifier, drafter, coverage)

    def _unsampled(self) -> Sequence[Prompt]:
        """Prompts of the live sample, if it is not known yet of so many and of every composition."""
        from specexp.replay.record.live_sample import compositions

        sampled = [] if self.shard is not None else self.prompts[: self.plan.config.get("record.live_sample")]
        rows = self.manifest.live_sample
        known = {row["composition"]: row.get("prompts", len(sampled)) for row in rows}
        lacking = any(known.get(name, 0) < len(sampled) for name, _ in compositions(self.plan))
        return sampled if lacking else []

    def _sample_live(self, prompts: Sequence[Prompt]) -> None:
        """Compare the first prompts with live ones, and keep what was found."""
        from specexp.replay.record.live_sample import compositions, sample_live

        self.bar.stage("live sample", len(prompts) * len(list(compositions(self.plan))))
        recording = Recording(self.plan.folder)
        self.manifest.live_sample = sample_live(self.plan, self.pair, recording, prompts, self.bar.prompt)
        self.manifest.save(self.plan.folder)


def check_sharded(plan: RecordingPlan) -> None:
    """Refuse to split prompts where what is recorded of one depends on those before.

    Raises:
        ConfigError: One sentence with the drafter.
    """
    drafter = plan.drafter()
    if drafter is not None and drafter.shares_state:
        raise plan.config.checker.error(
            ("drafter",),
            f": {type(drafter).__name__} carries what it learned from prompt to prompt, so shards would record "
            "something else than one machine: record it on one, or set its state to reset",
        )


def load_prompts(plan: RecordingPlan, pair: ModelPair) -> list[Prompt]:
    """The prompts of all stages, each once.

    Raises:
        ConfigError: A set cannot be read, a prompt does not fit the target, or two share an id.
    """
    found: dict[str, Prompt] = {}
    for config in plan.prompts.values():
        try:
            prompts = build_workload(config).load(pair.tokenizer)
        except PromptSetError as error:
            raise prompts_error(config, error) from error
        check_prompts(config, prompts, pair)
        for prompt in prompts:
            known = found.setdefault(prompt.prompt_id, prompt)
            if known.token_ids != prompt.token_ids:
                raise config.checker.error(
                    ("data",),
                    f": two prompts are called {prompt.prompt_id!r}, and a recording finds them by that name: record "
                    "their sets one by one",
                )
    return list(found.values())


def check_context(plan: RecordingPlan, pair: ModelPair) -> None:
    """Refuse coverage that no context holds.

    Raises:
        ConfigError: One sentence with the builder.
    """
    for role, model in (("target", pair.target), ("draft", pair.draft)):
        limit = None if model is None else int(model.config.get_text_config().max_position_embeddings)
        for number, builder in enumerate(plan.coverage):
            if limit is not None and builder.max_nodes >= limit:
                raise refusal(
                    plan.config,
                    f"coverage.{number}",
                    f"makes trees of up to {counted(builder.max_nodes, 'node')} and the {role}'s context holds "
                    f"{counted(limit, 'token')}: lower its budget",
                )


def estimate(first: Sequence[RecordedTurn], turns: int, max_new_tokens: int, files: int) -> str:
    """How large a recording will be, told from its first turns.

    Args:
        first: Turns that are recorded.
        turns: Turns of the whole recording.
        max_new_tokens: Most tokens of a turn.
        files: Files of the whole recording.
    """
    tokens = sum(turn.answer.size for turn in first)
    nodes = sum(len(turn.trie) for turn in first)
    nothing = {name: getattr(first[0], name)[:0] for name in ("prompt", "answer", "asked", "asked_logits")}
    blank = replace(first[0], trie=TrieWriter(0, ()).finish(), **nothing)
    file = len(parquet([blank]))  # what a file takes for itself
    each = (len(parquet(first)) - file) / tokens
    size = each * turns * max_new_tokens + file * files
    return (
        f"The first prompt took {each:.0f} bytes a token of output ({counted(round(nodes / tokens), 'node')}): "
        f"{counted(turns, 'answer')} of up to {counted(max_new_tokens, 'token')} will take up to {size_of(size)}."
    )
