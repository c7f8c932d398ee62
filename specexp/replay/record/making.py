"""Making a recording as an experiment file describes it.

Every file of turns is written whole before the manifest names it, so that a recording cut off anywhere goes on after
its last file. Shards are recordings in folders of their own; put together they are the files that one machine writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from io import BytesIO
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specexp.artifacts.atomic_write import atomic_write, held
from specexp.bench.arm import eos_of, sequence_name
from specexp.bench.experiment import check_prompts, use_threads
from specexp.cluster.shard import Shard, forget_shards, shards_in
from specexp.config import (
    Config,
    ConfigError,
    apply_overrides,
    build_generation,
    build_pair,
    build_parts,
    build_workload,
    prompts_error,
)
from specexp.core.messages import counted, first_line, size_of, type_and_line
from specexp.data import Prompt, PromptSetError
from specexp.replay.format.recorded_turn import RecordedTurn
from specexp.replay.format.recording import (
    MANIFEST,
    Recording,
    RecordingManifest,
    check_file,
    difference,
    hash_of,
    parquet,
    read_turns,
    recording_fingerprint,
    write_turns,
)
from specexp.replay.format.trie import RecordingError, TrieWriter
from specexp.replay.play.fidelity import scoring_of
from specexp.replay.record.plan import RecordingPlan, plan_recording, refusal

if TYPE_CHECKING:
    from specexp.bench.progress import StageBar
    from specexp.models.pair import ModelPair
    from specexp.replay.record.recorder import Recorder

_ELSEWHERE = "name another folder in record.to"


class NotRecordableError(RuntimeError):
    """A prompt failed while it was recorded: one sentence with prompt, reason and what is kept."""


class Making:
    """A recording being made, or continued after its last complete file of turns.

    Args:
        config: The experiment file.
        tell: Prints a line about the progress.
        bar: Shows the progress of the stages.
        pair: Loaded models; the file's own if None.
        shard: The part of the prompts that is recorded, in a folder of its own; all if None.

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
        self.manifest = _manifest_of(self.plan, self.pair, self.prompts)
        if shard is not None:
            check_sharded(self.plan)
            self.prompts = shard.of(self.prompts)
            if self._missing():  # else another worker has put the whole together already
                self.plan = replace(self.plan, folder=shard.folder(self.plan.folder))
                self.manifest = _manifest_of(self.plan, self.pair, self.prompts)

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
            with locked(folder):
                self._save(complete=False)
                self._record(missing)
                self._save(complete=True)
        if sampled:
            self._sample_live(sampled)
        return Recording(folder)

    def _save(self, complete: bool) -> None:
        self.manifest.complete = complete
        self.manifest.save(self.plan.folder)

    def _missing(self) -> list[tuple[Prompt, int]]:
        """Prompts and samples that are in no whole file. Files that are not whole are dropped from the manifest."""
        files = self.manifest.files
        for name, entry in list(files.items()):
            try:
                check_file(self.plan.folder / name, entry)
            except RecordingError:
                del files[name]
        known = _conversations(files)
        every = [(prompt, sample) for prompt in self.prompts for sample in range(self.generation.samples)]
        return [(prompt, sample) for prompt, sample in every if (prompt.prompt_id, sample) not in known]

    def _put_together(self) -> None:
        """Merge the shards, once each is whole. One that was killed is recorded to its end here."""
        whole = self.plan.folder
        shards = [] if self.shard is not None else shards_in(whole)
        if shards and self._missing():
            for shard in shards:
                Making(self.config, self.tell, self.bar, self.pair, shard).run()
            parts = [part for shard in shards if is_recorded(part := shard.folder(whole))]
            with locked(whole):
                self._merge(parts)
                self._save(complete=True)
            self.tell(f"{whole} is put together from {counted(len(shards), 'shard')}.")
        if shards:
            forget_shards(whole)

    def _merge(self, parts: Sequence[Path]) -> None:
        """Write the turns of the parts, in their order, in files as large as one machine writes."""
        known = _conversations(self.manifest.files)
        kept: list[RecordedTurn] = []
        for part in parts:
            for name, entry in RecordingManifest.load(part).files.items():
                for turn in read_turns(part / name, entry):
                    if (turn.prompt_id, turn.sample) not in known:
                        kept.append(turn)
                        if turn.turn == turn.turns - 1 and len(kept) >= self._turns_per_file:
                            self._write(kept)
        if kept:
            self._write(kept)

    @property
    def _turns_per_file(self) -> int:
        return int(self.plan.config.get("record.turns_per_file"))

    def _write(self, kept: list[RecordedTurn]) -> None:
        """Write turns into a file of an unused name, and empty the list."""
        files = self.manifest.files
        name = next(name for number in count() if (name := f"turns-{number:05d}.parquet") not in files)
        files[name] = write_turns(self.plan.folder / name, kept)
        kept.clear()

    def _record(self, missing: Sequence[tuple[Prompt, int]]) -> None:
        """Record conversations, file by file."""
        plan, pair, generation = self.plan, self.pair, self.generation
        recorder = self._recorder()
        _load_learned(recorder, plan.folder, self.manifest)
        most = self._turns_per_file
        eos = eos_of(pair.tokenizer, pair.target) if generation.stop_at_eos else frozenset()
        kept: list[RecordedTurn] = []
        for number, (prompt, sample) in enumerate(missing):

            def context_of(turn: int, before: list[int], prompt: Prompt = prompt) -> list[int]:
                return prompt.turn_ids(pair.tokenizer, turn, before)

            try:
                kept += recorder.conversation(
                    prompt.prompt_id,
                    prompt.category,
                    prompt.index,
                    sample,
                    context_of,
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
                self._write(kept)
                _save_learned(recorder, plan.folder, self.manifest)
                self.manifest.save(plan.folder)

    def _recorder(self) -> Recorder:
        from specexp.drafters.draft_source import ModelSource
        from specexp.replay.record.recorder import Coverage, Recorder, RecordingSource

        plan, config = self.plan, self.plan.config
        candidates = config.get("record.candidates")
        source, draft = None, self.pair.draft_runtime()
        if draft is not None and scoring_of(plan.drafter()) is not None:
            source = RecordingSource(ModelSource(draft), 1, spine_width=candidates)
        # controllers take no part, and seconds decide nothing
        without = apply_overrides(
            config, {"controller": {"class_path": "Fixed"}, "latency": None}, config.file
        )
        drafter = build_parts(without, source).drafter
        model = self.pair.target_runtime()
        if drafter is not None:
            drafter.check_vocabulary(model.vocab_size)
        return Recorder(model, plan.verifier, drafter, Coverage(plan.coverage, candidates, plan.target_top_k))

    def _unsampled(self) -> Sequence[Prompt]:
        """Prompts of the live sample; none if it holds so many of every composition already."""
        from specexp.replay.record.live_sample import compositions

        sampled = [] if self.shard is not None else self.prompts[: self.plan.config.get("record.live_sample")]
        rows = self.manifest.live_sample
        known = {row["composition"]: row.get("prompts", len(sampled)) for row in rows}
        lacking = any(known.get(name, 0) < len(sampled) for name, _ in compositions(self.plan))
        return sampled if lacking else []

    def _sample_live(self, prompts: Sequence[Prompt]) -> None:
        """Compare the first prompts with live ones, and keep the result."""
        from specexp.replay.record.live_sample import compositions, sample_live

        self.bar.stage("live sample", len(prompts) * len(list(compositions(self.plan))))
        recording = Recording(self.plan.folder)
        self.manifest.live_sample = sample_live(self.plan, self.pair, recording, prompts, self.bar.prompt)
        self.manifest.save(self.plan.folder)


def is_recorded(folder: Path) -> bool:
    """Whether a folder holds a recording with all of its prompts."""
    try:
        return RecordingManifest.load(folder).complete
    except RecordingError:  # or it is gone, since another worker has put all together
        return False


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes away. The lock of a killed process is gone with it.

    Raises:
        ConfigError: Another process holds the lock.
    """
    with held(folder / ".lock") as mine:
        if not mine:
            raise ConfigError(
                f"recording: {folder} is being recorded by another process: wait for it, or {_ELSEWHERE}"
            )
        yield


def answers_held(plan: RecordingPlan) -> int:
    """Number of answers in the folder, as far as is known without models and prompts.

    Raises:
        ConfigError: Another recording lies there.
    """
    manifest = _known(plan, plan.made_of())
    return 0 if manifest is None else sum(entry["turns"] for entry in manifest.files.values())


def _manifest_of(plan: RecordingPlan, pair: ModelPair, prompts: Sequence[Prompt]) -> RecordingManifest:
    """The manifest of the recording that lies there already, or of a new one."""
    from specexp.artifacts.environment import complete_provenance
    from specexp.core.language_model import placement

    made_of, marks = plan.made_of(), recording_fingerprint(pair)
    hashes = {prompt.prompt_id: hash_of(prompt) for prompt in prompts}
    manifest = _known(plan, made_of, marks, hashes)
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
    command = "python -m specexp.record"
    device, config = placement(pair.target), plan.config.to_dict()
    provenance = complete_provenance({"command": command, "device": device, "config": config})
    made_of["prompts"] = hashes
    return RecordingManifest(marks, made_of, int(texts["target"].vocab_size), limits, provenance=provenance)


def _known(
    plan: RecordingPlan,
    made_of: Mapping[str, Any],
    marks: Mapping[str, Any] | None = None,
    hashes: Mapping[str, str] | None = None,
) -> RecordingManifest | None:
    """The manifest of the recording that lies there already; None where there is no answer yet."""
    folder = plan.folder
    if not (folder / MANIFEST).exists():
        check_own(folder)
        return None
    try:
        manifest = RecordingManifest.load(folder)
    except RecordingError as error:
        raise ConfigError(f"{first_line(error)}: remove it, or {_ELSEWHERE}") from error
    if not manifest.files:
        return None
    other = difference(manifest.fingerprint, marks or {}) or _first_other(manifest.made_of, made_of)
    prompts = manifest.made_of.get("prompts", {})
    changed = [name for name, one in (hashes or {}).items() if prompts.get(name, one) != one]
    if other is None and changed:
        other = f"a prompt {changed[0]!r} of other text or tokens"
    if other is not None:
        raise ConfigError(
            f"recording: {folder} holds a recording that was made with {other}: remove it, or {_ELSEWHERE}"
        )
    return manifest


def _first_other(recorded: Mapping[str, Any], given: Mapping[str, Any]) -> str | None:
    """The first difference, as a clause. More samples of the same make no other recording."""
    for section, value in given.items():
        known = recorded[section]
        if not isinstance(value, Mapping) or not isinstance(known, Mapping):
            if known != value:
                return f"{section} {known!r}, and the configuration says {value!r}"
            continue
        for key in sorted({*known, *value}):
            if known.get(key) != value.get(key) and (section, key) != ("generation", "samples"):
                name = f"{'verifier' if section == 'law' else section}.{key}"
                return f"{name} {known.get(key)!r}, and the configuration says {value.get(key)!r}"
    return None


def check_own(folder: Path) -> None:
    """Refuse a folder with files of something else, among which a recording would be lost.

    Raises:
        ConfigError: It names one of them.
    """
    found = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    other = next((name for name in found if not name.startswith((".", "turns-", MANIFEST))), None)
    if other is not None:
        raise ConfigError(f"recording: {folder} holds {other}, which belongs to no recording: {_ELSEWHERE}")


def _conversations(files: Mapping[str, Mapping[str, Any]]) -> set[tuple[str, int]]:
    return {tuple(one) for entry in files.values() for one in entry["conversations"]}


def _learned(folder: Path, manifest: RecordingManifest) -> Path:
    """The state of drafters that carry what they learned, after the files so far."""
    return folder / f"drafters-{len(manifest.files):05d}.pt"


def _save_learned(recorder: Recorder, folder: Path, manifest: RecordingManifest) -> None:
    import torch

    if not recorder.shares_state:
        return
    content = BytesIO()
    torch.save(recorder.state_dict(), content)
    atomic_write(_learned(folder, manifest), content.getvalue())
    for older in sorted(folder.glob("drafters-*.pt"))[:-2]:  # the manifest may still be of one file less
        older.unlink()


def _load_learned(recorder: Recorder, folder: Path, manifest: RecordingManifest) -> None:
    import torch

    path = _learned(folder, manifest)
    if recorder.shares_state and path.exists():
        recorder.load_state_dict(torch.load(path, weights_only=True))


def check_sharded(plan: RecordingPlan) -> None:
    """Refuse to split prompts where the recording of one depends on those before.

    Raises:
        ConfigError: The drafter carries its state.
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
    """Refuse a coverage with trees larger than a context.

    Raises:
        ConfigError: It names the builder.
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
    """A sentence about the size of a recording, by its first turns.

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
    file = len(parquet([blank]))  # an empty file
    each = (len(parquet(first)) - file) / tokens
    size = each * turns * max_new_tokens + file * files
    return (
        f"The first prompt took {each:.0f} bytes a token of output ({counted(round(nodes / tokens), 'node')}): "
        f"{counted(turns, 'answer')} of up to {counted(max_new_tokens, 'token')} will take up to {size_of(size)}."
    )
