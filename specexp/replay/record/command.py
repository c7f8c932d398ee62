"""``python -m specexp.record CONFIG.yaml [--key value]``: record a target's answers and both models' predictions.

Writes ``recording.json`` and ``turns-*.parquet`` into ``recordings/<name>``, or into ``record.to``. Each file of turns
is written atomically before the manifest lists it, so the same command resumes a killed recording after its last
complete file. Each shard is a recording in its own folder. Merging the shards yields the same files as one machine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from io import BytesIO
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specexp.artifacts.atomic_write import atomic_write
from specexp.artifacts.environment import complete_provenance, device_name
from specexp.artifacts.fingerprint import Fingerprint
from specexp.base.messages import counted, first_line, restated, size_of, type_and_line
from specexp.bench.arm import eos_of
from specexp.cluster.launch import ClusterOptions
from specexp.cluster.shard import Shard, ends_last, forget_shards, run_sharded, run_shards, shards_in
from specexp.config import (
    CommandError,
    Config,
    ConfigError,
    build_pair,
    build_parts,
    check_rows,
    prompt_errors,
)
from specexp.config.command import GOES_ON, check_here, current_result
from specexp.config.next_step import command_line, experiment_again
from specexp.data import Prompt
from specexp.replay.format.recording import (
    MANIFEST,
    FileEntry,
    RecordedTurn,
    Recording,
    RecordingManifest,
    check_file,
    difference,
    different_setting,
    hash_of,
    read_turns,
    recording_fingerprint,
    write_turns,
)
from specexp.replay.format.trie import RecordingError
from specexp.replay.record.plan import RecordingPlan, plan_recording, refusal

if TYPE_CHECKING:
    from specexp.config.check import Checker
    from specexp.core.contracts import TreeBuilder
    from specexp.models.pair import ModelPair
    from specexp.replay.record.recorder import Recorder
    from specexp.report.progress import StageBar

USAGE = """usage: python -m specexp.record CONFIG.yaml [--dry-run] [--key value ...]

Records the target's output on the prompts of an experiment, or of all stages of a sweep. At every output token it also
records the candidates of draft and target that the builders in record.coverage need. With backend: replay, experiments
then decode without the models. The same command resumes an interrupted recording.
--dry-run checks the file and prints the plan; any other --dotted.key overrides the file,
e.g. --data.max_prompts 8 --record.to recordings/small --record.live_sample 0."""
_ELSEWHERE = "name another folder in record.to"
_WAIT = f"wait for it, or {_ELSEWHERE}"


class NotRecordableError(CommandError):
    """Raised if a prompt cannot be recorded. The message gives the prompt, the reason and the recording's folder."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    return run_sharded(USAGE, arguments, _act, GOES_ON)


def _act(
    config: Config, dry_run: bool, cluster: ClusterOptions | None, shard: Shard | None, typed: Sequence[str]
) -> int:
    check_here(config, "record.to")
    for remark in check_rows(config, "record.live_sample"):
        print(remark)
    if cluster is not None and not dry_run:
        plan = plan_recording(config)
        check_sharded(plan)
        return run_shards("specexp.record", typed, cluster, plan.folder, config.pair.device, config.generation.threads)
    if not dry_run:
        run(config, shard=shard)
        return 0
    plan = plan_recording(config)
    pair = build_pair(plan.config, weights=False)
    check_context(plan.coverage, pair, plan.config.checker)
    load_prompts(plan, pair)
    manifest = _existing(plan, plan.made_of())
    answers = 0 if manifest is None else manifest.answers
    there = f", which holds {counted(answers, 'answer')} already" if answers else ""
    print("\n".join([*plan.lines(), f"to {plan.folder}{there}"]))
    return 0


def run(config: Config, pair: ModelPair | None = None, shard: Shard | None = None) -> Recording:
    """Record the experiment described by ``config``, and compare its replay with live decoding on a few prompts.

    The last worker to finish merges the shards. If ``pair`` is given, its models are used and none are loaded.

    Raises:
        ConfigError: The file, its data or its models cannot be used, or the folder holds a different recording.
        NotRecordableError: A prompt could not be recorded.
        FolderBusyError: Another process writes to the folder.
        OSError: The recording cannot be written.
    """
    from specexp.bench.trainer import quiet_libraries
    from specexp.replay.record.live_sample import to_table
    from specexp.report.progress import StageBar
    from specexp.report.publish import terminal

    quiet_libraries()
    console = terminal(180)  # the live sample has many columns
    print_line = partial(console.print, highlight=False, markup=False)
    with StageBar(console) as bar:
        job = RecordingJob(config, print_line, bar, pair, shard)
        recording = job.run()
        if shard is not None:
            with ends_last(plan_recording(config).folder, is_recorded) as last:
                recording = RecordingJob(config, print_line, bar, job.pair).run() if last else recording
    if recording.manifest.live_sample:
        console.print(to_table(recording.manifest.live_sample).to_rich())
    print_line(f"{counted(recording.manifest.answers, 'answer')}, {size_of(recording.bytes)}, in {recording.folder}")
    result = current_result()
    result.folder = str(recording.folder)
    again = config.invocation
    if config.get("latency") is None:
        why = "measures the latency profile for the replay"
        result.next = command_line("profile", *experiment_again(again), why=why)
    else:
        replayed = experiment_again(again, {"backend": "replay", "recording": str(recording.folder)})
        result.next = command_line(again.measured_by, *replayed, why="decodes without the models")
    return recording


@dataclass(eq=False)
class RecordingJob:
    """Makes a recording, or resumes it after its last complete file of turns.

    If ``shard`` is given, only its prompts are recorded, in its own folder. Without ``loaded``, the models are loaded.
    Raises ConfigError, without changing any file, if the experiment cannot be recorded or the folder holds a different
    recording.
    """

    config: Config
    print_line: Callable[[str], None]
    bar: StageBar
    loaded: ModelPair | None = None
    shard: Shard | None = None

    def __post_init__(self) -> None:
        from specexp.bench.experiment import use_threads

        self.plan = plan_recording(self.config)
        self.pair = self.loaded or build_pair(self.plan.config)
        check_context(self.plan.coverage, self.pair, self.plan.config.checker)
        self.generation = self.plan.config.generation
        use_threads(self.generation.threads)
        self.prompts = load_prompts(self.plan, self.pair)
        self.manifest = _manifest_of(self.plan, self.pair, self.prompts)
        if self.shard is not None:
            check_sharded(self.plan)
            self.prompts = self.shard.of(self.prompts)
            if self._missing():  # otherwise another worker has already merged the shards
                self.plan = replace(self.plan, folder=self.shard.folder(self.plan.folder))
                self.manifest = _manifest_of(self.plan, self.pair, self.prompts)

    def run(self) -> Recording:
        """Record the missing prompts, then compare some replays with live runs. Raises the errors of :func:`run`."""
        from specexp.report.publish import sole_writer

        folder = self.plan.folder
        self._merge_shards()
        missing = self._missing()
        whole = len(self.prompts) * self.generation.samples
        sampled = self._unsampled()
        answered = counted(whole, "answered prompt")
        if not missing and not sampled:
            self.print_line(f"{folder} holds {whole} of {answered}: nothing is left to record.")
            return Recording(folder)
        self.print_line("\n".join(self.plan.lines()))
        if missing:
            if len(missing) < whole:
                self.print_line(f"{folder} holds {whole - len(missing)} of {answered}: resuming.")
            self.bar.stage("recording", whole, whole - len(missing))
            with sole_writer(folder, _WAIT):
                self._save(complete=False)
                self._record(missing)
                self._save(complete=True)
        if sampled:
            from specexp.replay.record.live_sample import compositions, sample_live

            self.bar.stage("live sample", len(sampled) * len(list(compositions(self.plan))))
            recording = Recording(folder)
            self.manifest.live_sample = sample_live(self.plan, self.pair, recording, sampled, self.bar.prompt)
            self.manifest.save(folder)
        return Recording(folder)

    def _save(self, complete: bool) -> None:
        self.manifest.complete = complete
        self.manifest.save(self.plan.folder)

    def _missing(self) -> list[tuple[Prompt, int]]:
        """Return the (prompt, sample) pairs that no intact file holds. Damaged files are dropped from the manifest."""
        files = self.manifest.files
        for name, entry in list(files.items()):
            try:
                check_file(self.plan.folder / name, entry)
            except RecordingError:
                del files[name]
        known = _conversations(files)
        every = [(prompt, sample) for prompt in self.prompts for sample in range(self.generation.samples)]
        return [(prompt, sample) for prompt, sample in every if (prompt.prompt_id, sample) not in known]

    def _merge_shards(self) -> None:
        """Record the prompts that killed workers left unfinished, then merge the shards."""
        from specexp.report.publish import sole_writer

        whole = self.plan.folder
        shards = [] if self.shard is not None else shards_in(whole)
        if shards and self._missing():
            for shard in shards:
                RecordingJob(self.config, self.print_line, self.bar, self.pair, shard).run()
            parts = [part for shard in shards if is_recorded(part := shard.folder(whole))]
            with sole_writer(whole, _WAIT):
                self._merge(parts)
                self._save(complete=True)
            self.print_line(f"{whole} is merged from {counted(len(shards), 'shard')}.")
        if shards:
            forget_shards(whole)

    def _merge(self, parts: Sequence[Path]) -> None:
        """Write the turns of the shard folders ``parts`` in order, split into files as a single machine would."""
        known = _conversations(self.manifest.files)
        kept: list[RecordedTurn] = []
        for part in parts:
            for name, entry in RecordingManifest.load(part).files.items():
                for turn in read_turns(part / name, entry):
                    if (turn.prompt_id, turn.sample) not in known:
                        kept.append(turn)
                        if turn.turn == turn.turns - 1 and len(kept) >= self.plan.config.record.turns_per_file:
                            self._write(kept)
        if kept:
            self._write(kept)

    def _write(self, kept: list[RecordedTurn]) -> None:
        files = self.manifest.files
        name = next(name for number in count() if (name := f"turns-{number:05d}.parquet") not in files)
        files[name] = write_turns(self.plan.folder / name, kept)
        kept.clear()

    def _record(self, missing: Sequence[tuple[Prompt, int]]) -> None:
        """Record the missing conversations, one file of turns at a time."""
        recorder = self._recorder()
        self._load_drafters(recorder)
        generation = self.generation
        tokenizer = self.pair.tokenizer
        eos = eos_of(tokenizer, self.pair.target) if generation.stop_at_eos else frozenset()
        kept: list[RecordedTurn] = []
        for number, (prompt, sample) in enumerate(missing):
            try:
                turn_ids = partial(prompt.turn_ids, tokenizer)
                kept += recorder.conversation(prompt, sample, turn_ids, generation, eos)
            except Exception as error:
                raise NotRecordableError(
                    f"prompt {prompt.prompt_id!r}, {number + 1} of {len(missing)}, could not be recorded: "
                    f"{type_and_line(error)}; complete files stay in {self.plan.folder}, which can be replayed once "
                    "every prompt is recorded"
                ) from error
            if number == 0:
                turns = sum(len(prompt.turns) for prompt, _ in missing)
                self.print_line(estimate(kept, turns, generation.max_new_tokens))
            self.bar.prompt()
            if len(kept) >= self.plan.config.record.turns_per_file or number == len(missing) - 1:
                self._write(kept)
                self._save_drafters(recorder)
                self.manifest.save(self.plan.folder)

    def _recorder(self) -> Recorder:
        from specexp.replay.play.fidelity import scoring_of
        from specexp.replay.record.recorder import Coverage, Recorder, RecordingSource

        plan = self.plan
        config = plan.config
        candidates = config.record.candidates
        draft = self.pair.draft_runtime()
        source = None
        if draft is not None and scoring_of(plan.drafter()) is not None:
            source = RecordingSource(draft, 1, spine_width=candidates)
        # A recording depends neither on the controller nor on a latency profile.
        without = config.with_overrides({"controller": {"class_path": "Fixed"}, "latency": None}, config.file)
        drafter = build_parts(without, source).drafter
        model = self.pair.target_runtime()
        if drafter is not None:
            drafter.check_vocabulary(model.vocab_size)
        return Recorder(model, plan.verifier, drafter, Coverage(plan.coverage, candidates, plan.target_top_k))

    def _drafters_file(self) -> Path:
        """Return the path for the drafters' state as of the latest file of turns."""
        return self.plan.folder / f"drafters-{len(self.manifest.files):05d}.pt"

    def _save_drafters(self, recorder: Recorder) -> None:
        import torch

        if recorder.shares_state:
            content = BytesIO()
            torch.save(recorder.state_dict(), content)
            atomic_write(self._drafters_file(), content.getvalue())
            # Keep two, since the manifest on disk may not list the newest file of turns yet.
            for older in sorted(self.plan.folder.glob("drafters-*.pt"))[:-2]:
                older.unlink()

    def _load_drafters(self, recorder: Recorder) -> None:
        import torch

        if recorder.shares_state and self._drafters_file().exists():
            recorder.load_state_dict(torch.load(self._drafters_file(), weights_only=True))

    def _unsampled(self) -> Sequence[Prompt]:
        """Return the prompts for the live sample; empty if the manifest already covers enough for every composition."""
        from specexp.replay.record.live_sample import compositions

        sampled = [] if self.shard is not None else self.prompts[: self.plan.config.record.live_sample]
        known = {row["composition"]: row.get("prompts", len(sampled)) for row in self.manifest.live_sample}
        lacking = any(known.get(name, 0) < len(sampled) for name, _ in compositions(self.plan))
        return sampled if lacking else []


def is_recorded(folder: Path) -> bool:
    """Return whether a folder contains a complete recording."""
    try:
        return RecordingManifest.load(folder).complete
    except RecordingError:  # another worker may have merged and removed it
        return False


def _manifest_of(plan: RecordingPlan, pair: ModelPair, prompts: Sequence[Prompt]) -> RecordingManifest:
    """Return the manifest of the existing recording, or of a new one."""
    from specexp.core.language_model import placement

    made_of = plan.made_of()
    marks = recording_fingerprint(pair)
    hashes = {prompt.prompt_id: hash_of(prompt) for prompt in prompts}
    manifest = _existing(plan, made_of, marks, hashes)
    if manifest is not None:
        manifest.made_of["prompts"] |= hashes
        recorded = manifest.made_of["generation"]
        recorded["samples"] = max(recorded["samples"], made_of["generation"]["samples"])
        return manifest
    texts = {
        role: model.config.get_text_config()
        for role, model in (("target", pair.target), ("draft", pair.draft))
        if model is not None
    }
    limits = {role: int(text.max_position_embeddings) for role, text in texts.items()}
    provenance = complete_provenance(
        {
            "command": "python -m specexp.record",
            "device": placement(pair.target),
            "device_name": device_name(plan.config.pair.device),
            "config": plan.config.to_dict(),
        }
    )
    made_of["prompts"] = hashes
    return RecordingManifest(marks, made_of, int(texts["target"].vocab_size), limits, provenance=provenance)


def _existing(
    plan: RecordingPlan,
    made_of: Mapping[str, Any],
    marks: Fingerprint | None = None,
    hashes: Mapping[str, str] | None = None,
) -> RecordingManifest | None:
    """Return the manifest in the folder, or None if it has no files. Raises ConfigError if it differs from the plan."""
    folder = plan.folder
    if not (folder / MANIFEST).exists():
        names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
        other = next((name for name in names if not name.startswith((".", "turns-", MANIFEST))), None)
        if other is not None:
            raise ConfigError(
                f"recording: {folder} must be empty or hold a recording, but it holds {other}: {_ELSEWHERE}"
            )
        return None
    with restated(RecordingError, lambda error: ConfigError(f"{first_line(error)}: remove it, or {_ELSEWHERE}")):
        manifest = RecordingManifest.load(folder)
    if not manifest.files:
        return None
    recorded = manifest.made_of
    same_samples = {"samples": recorded["generation"]["samples"]}  # more samples can be added
    made_of = {**made_of, "generation": {**made_of["generation"], **same_samples}}
    here = device_name(plan.config.pair.device)
    device = manifest.provenance.get("device_name") or here  # the first recordings have none
    others = [difference(manifest.fingerprint, marks or {})]
    others += [f"another device ({device}, and this one is {here})"] if device != here else []
    others += [different_setting(section, recorded[section], given) for section, given in made_of.items()]
    others += [
        f"another text or other tokens for prompt {name!r}"
        for name, mark in (hashes or {}).items()
        if recorded.get("prompts", {}).get(name, mark) != mark
    ]
    other = next(filter(None, others), None)
    if other is not None:
        raise ConfigError(
            f"recording: {folder} holds a recording that was made with {other}: remove it, or {_ELSEWHERE}"
        )
    return manifest


def _conversations(files: Mapping[str, FileEntry]) -> set[tuple[str, int]]:
    return {(name, sample) for entry in files.values() for name, sample in entry["conversations"]}


def check_sharded(plan: RecordingPlan) -> None:
    """Raise ConfigError if recording a prompt depends on earlier prompts, so that shards would differ."""
    drafter = plan.drafter()
    if drafter is not None and drafter.shares_state:
        raise plan.config.checker.error(
            ("drafter",),
            f": {type(drafter).__name__} carries its state from prompt to prompt, so shards would differ from a "
            "recording on one machine: record on one machine, or set its state to cold",
        )


def load_prompts(plan: RecordingPlan, pair: ModelPair) -> list[Prompt]:
    """Load the prompts of all stages, without duplicates.

    Raises ConfigError if a set cannot be read, a prompt does not fit the target's context, or two prompts share an id.
    """
    from specexp.bench.experiment import check_lengths

    found: dict[str, Prompt] = {}
    for config in plan.prompts.values():
        with prompt_errors(config):
            workload = config.workload
            prompts = workload.load(pair.tokenizer)
            check_lengths(prompts, pair, config.generation.max_new_tokens, config.checker)
        for sentence in workload.preparation.chat_template():
            print(sentence)
        for prompt in prompts:
            if prompt.structured_outputs is not None:
                why = "has structured_outputs, which a recording cannot hold: measure such prompts live"
                raise config.checker.error(("data",), f": prompt {prompt.prompt_id!r} {why}")
            known = found.setdefault(prompt.prompt_id, prompt)
            if known.token_ids != prompt.token_ids:
                raise config.checker.error(
                    ("data",),
                    f": two prompts are called {prompt.prompt_id!r}, but names must be unique in a recording: record "
                    "their sets one by one",
                )
    return list(found.values())


def check_context(coverage: Sequence[TreeBuilder], pair: ModelPair, checker: Checker) -> None:
    """Raise ConfigError if a builder of the coverage can make a tree that does not fit in a model's context."""
    for role, model in (("target", pair.target), ("draft", pair.draft)):
        limit = None if model is None else int(model.config.get_text_config().max_position_embeddings)
        for number, builder in enumerate(coverage):
            if limit is not None and builder.max_nodes >= limit:
                raise refusal(
                    checker,
                    f"coverage.{number}",
                    f"makes trees of up to {counted(builder.max_nodes, 'node')}, but the {role}'s context holds "
                    f"{counted(limit, 'token')}: lower its budget",
                )


def estimate(first: Sequence[RecordedTurn], turns: int, max_new_tokens: int) -> str:
    """Return a sentence that estimates the maximum size of ``turns`` answers from the first ones."""
    tokens = sum(turn.answer.size for turn in first)
    nodes = sum(len(turn.trie) for turn in first)
    values = (value for turn in first for value in turn.to_row().values())
    each = sum(getattr(value, "nbytes", 0) for value in values) / tokens
    return (
        f"The first prompt took {each:.0f} bytes and {counted(round(nodes / tokens), 'node')} per output token, so "
        f"{counted(turns, 'answer')} of up to {counted(max_new_tokens, 'token')} will take up to "
        f"{size_of(each * turns * max_new_tokens)}."
    )
