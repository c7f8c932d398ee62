"""Making a recording as an experiment file describes it.

Every file of turns is written whole before the manifest names it, so that a recording cut off anywhere goes on after
its last file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specexp.config import (
    Config,
    ConfigError,
    apply_overrides,
    build_generation,
    build_pair,
    build_parts,
    build_workload,
)
from specexp.data import PromptSetError
from specexp.drafters import DraftModel
from specexp.evaluation.arm import eos_of, sequence_name
from specexp.evaluation.experiment import check_prompts
from specexp.replay.errors import RecordingError
from specexp.replay.fidelity import drafters_in
from specexp.replay.plan import Plan, plan_recording, refusal
from specexp.replay.recording import (
    MANIFEST,
    Manifest,
    Recording,
    check_file,
    difference,
    hash_of,
    parquet,
    write_turns,
)
from specexp.replay.trie import TrieWriter
from specexp.whole_file import write_whole
from specexp.wording import counted, first_line

if TYPE_CHECKING:
    from specexp.data import Prompt
    from specexp.models.pair import ModelPair
    from specexp.replay.recorder import Recorder
    from specexp.replay.turn import RecordedTurn

_MEGABYTE = 1e6
_LOCK = ".lock"


def make(
    config: Config, pair: ModelPair | None = None, tell: Callable[[str], None] = print, bar: Any = None
) -> Recording:
    """Record what a file describes, going on after the last complete file of turns.

    Args:
        config: of the file.
        pair: models loaded already; the file's own if None.
        tell: takes a line about the progress.
        bar: a :class:`~specexp.search.progress.StageBar`; None shows none.

    Raises:
        ConfigError: the file cannot be recorded, or its folder holds another recording; nothing was changed then.
        OSError: the recording cannot be written.
    """
    import torch

    planned = plan_recording(config)
    pair = pair or build_pair(planned.config)
    _check_context(planned, pair)
    generation = build_generation(planned.config)
    if generation.threads is not None:
        torch.set_num_threads(generation.threads)
    prompts = load_prompts(planned, pair)
    manifest = _manifest(planned, pair, prompts)
    missing = _missing(manifest, planned.folder, prompts, generation.samples)
    whole = len(prompts) * generation.samples
    sampled = prompts[: planned.config.get("record.live_sample") if planned.drafter() is not None else 0]
    if not missing and (manifest.live_sample or not sampled):
        tell(
            f"{planned.folder} holds {whole} of {counted(whole, 'answered prompt')}: nothing is left to record."
        )
        return Recording(planned.folder)
    for line in planned.lines():
        tell(line)
    if missing:
        if len(missing) < whole:
            tell(
                f"{planned.folder} holds {whole - len(missing)} of {counted(whole, 'answered prompt')}: going on."
            )
        if bar is not None:
            bar.stage("recording", whole, whole - len(missing))
        planned.folder.mkdir(parents=True, exist_ok=True)
        with _alone(planned.folder):
            manifest.complete = False
            manifest.save(planned.folder)
            _record(planned, pair, manifest, missing, tell, bar)
            manifest.complete = True
            manifest.save(planned.folder)
    if sampled and not manifest.live_sample:
        _sample_live(planned, pair, manifest, sampled, bar)
    return Recording(planned.folder)


def load_prompts(planned: Plan, pair: ModelPair) -> list[Prompt]:
    """The prompts of all stages, each once.

    Raises:
        ConfigError: a set cannot be read, a prompt does not fit the target, or two share an id.
    """
    found: dict[str, Prompt] = {}
    for config in planned.prompts.values():
        try:
            prompts = build_workload(config).load(pair.tokenizer)
        except PromptSetError as error:
            raise ConfigError(f"{config.source_of(('data', *error.key))}: data: {error}") from error
        check_prompts(config, prompts, pair)
        for prompt in prompts:
            known = found.setdefault(prompt.prompt_id, prompt)
            if known.token_ids != prompt.token_ids:
                raise ConfigError(
                    f"{config.source_of(('data',))}: data: two prompts are called {prompt.prompt_id!r}, and a "
                    "recording finds them by that name: record their sets one by one"
                )
    return list(found.values())


def _check_context(planned: Plan, pair: ModelPair) -> None:
    models = {"target": pair.target, "draft": pair.draft}
    for role, model in models.items():
        limit = None if model is None else int(model.config.get_text_config().max_position_embeddings)
        for number, builder in enumerate(planned.coverage):
            if limit is not None and builder.max_nodes >= limit:
                raise refusal(
                    planned.config,
                    f"coverage.{number}",
                    f"makes trees of up to {counted(builder.max_nodes, 'node')} and the {role}'s context holds "
                    f"{counted(limit, 'token')}: lower its budget",
                )


def _manifest(planned: Plan, pair: ModelPair, prompts: Sequence[Prompt]) -> Manifest:
    """Of the recording that lies there already, or of a new one.

    Raises:
        ConfigError: another recording lies there.
    """
    from specexp.artifacts.provenance import complete_provenance
    from specexp.replay.weights import recording_fingerprint

    made_of, marks = planned.made_of(), recording_fingerprint(pair)
    hashes = {prompt.prompt_id: hash_of(prompt) for prompt in prompts}
    manifest = _known(planned.folder)
    if manifest is None or not manifest.files:
        limits = {
            role: int(model.config.get_text_config().max_position_embeddings)
            for role, model in (("target", pair.target), ("draft", pair.draft))
            if model is not None
        }
        vocab_size = int(pair.target.config.get_text_config().vocab_size)
        provenance = complete_provenance(
            {
                "command": "python -m specexp.record",
                "device": str(pair.target.device),
                "config": planned.config.to_dict(),
            }
        )
        return Manifest(marks, {**made_of, "prompts": hashes}, vocab_size, limits, provenance=provenance)
    other = difference(manifest.fingerprint, marks) or _first_other(manifest.made_of, made_of)
    if other is None:
        changed = [name for name, one in hashes.items() if manifest.made_of["prompts"].get(name, one) != one]
        if changed:
            other = f"a prompt {changed[0]!r} of other text or tokens"
    if other is not None:
        raise ConfigError(
            f"recording: {planned.folder} holds a recording that was made with {other}: remove it, or name another "
            "folder in record.to"
        )
    manifest.made_of["prompts"] |= hashes
    recorded = manifest.made_of["generation"]
    recorded["samples"] = max(recorded["samples"], made_of["generation"]["samples"])
    return manifest


def _known(folder: Path) -> Manifest | None:
    """Of the recording that lies there already."""
    if not (folder / MANIFEST).exists():
        return None
    try:
        return Manifest.load(folder)
    except RecordingError as error:
        raise ConfigError(f"{first_line(error)}: remove it, or name another folder in record.to") from error


def _first_other(recorded: Mapping[str, Any], given: Mapping[str, Any]) -> str | None:
    """What another recording was made with, as a clause; more samples of the same are no other recording."""
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


def _missing(
    manifest: Manifest, folder: Path, prompts: Sequence[Prompt], samples: int
) -> list[tuple[Prompt, int]]:
    """Prompts and samples that no whole file holds; files that are not whole are forgotten."""
    for name, entry in list(manifest.files.items()):
        try:
            check_file(folder / name, entry)
        except RecordingError:
            del manifest.files[name]
    known = {
        (prompt_id, sample)
        for entry in manifest.files.values()
        for prompt_id, sample in entry["conversations"]
    }
    return [
        (prompt, sample)
        for prompt in prompts
        for sample in range(samples)
        if (prompt.prompt_id, sample) not in known
    ]


def _record(
    planned: Plan,
    pair: ModelPair,
    manifest: Manifest,
    missing: Sequence[tuple[Prompt, int]],
    tell: Callable[[str], None],
    bar: Any,
) -> None:
    """Record conversations, file by file."""
    recorder = _recorder(planned, pair)
    _go_on(recorder, planned.folder, manifest)
    generation = build_generation(planned.config)
    most = planned.config.get("record.turns_per_file")
    eos = eos_of(pair.tokenizer, pair.target) if generation.stop_at_eos else frozenset()
    kept: list[RecordedTurn] = []
    for number, (prompt, sample) in enumerate(missing):

        def asked(turn: int, before: list[int], prompt: Prompt = prompt) -> list[int]:
            return prompt.turn_ids(pair.tokenizer, turn, before)

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
        if number == 0:
            turns = sum(len(prompt.turns) for prompt, _ in missing)
            tell(estimate(kept, turns, generation.max_new_tokens, files=-(-turns // most)))
        if bar is not None:
            bar.prompt()
        if len(kept) >= most or number == len(missing) - 1:
            name = next(name for name in _names() if name not in manifest.files)
            manifest.files[name] = write_turns(planned.folder / name, kept)
            _keep_learned(recorder, planned.folder, manifest)
            manifest.save(planned.folder)
            kept = []


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep other processes away; the lock of one that was killed is gone with it."""
    try:
        import fcntl
    except ImportError:  # no such locks on this system
        yield
        return
    with (folder / _LOCK).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConfigError(
                f"recording: {folder} is being recorded by another process: wait for it, or name another folder in "
                "record.to"
            ) from error
        yield


def _learned(folder: Path, manifest: Manifest) -> Path:
    """Where drafters that carry what they learned stood after the files so far."""
    return folder / f"drafters-{len(manifest.files):05d}.pt"


def _keep_learned(recorder: Recorder, folder: Path, manifest: Manifest) -> None:
    import torch

    if not recorder.carries:
        return
    content = BytesIO()
    torch.save(recorder.state_dict(), content)
    write_whole(_learned(folder, manifest), content.getvalue())
    for older in sorted(folder.glob("drafters-*.pt"))[:-2]:  # the manifest may still be of one file less
        older.unlink()


def _go_on(recorder: Recorder, folder: Path, manifest: Manifest) -> None:
    import torch

    path = _learned(folder, manifest)
    if recorder.carries and path.exists():
        recorder.load_state_dict(torch.load(path, weights_only=True))


def _sample_live(
    planned: Plan, pair: ModelPair, manifest: Manifest, prompts: Sequence[Prompt], bar: Any
) -> None:
    """Compare the first prompts with live ones, and keep what was found."""
    from specexp.replay.live_sample import compositions, sample_live

    if bar is not None:
        bar.stage("live sample", len(prompts) * len(list(compositions(planned))))
    decoded = (lambda: None) if bar is None else bar.prompt
    manifest.live_sample = sample_live(planned, pair, Recording(planned.folder), prompts, decoded)
    manifest.save(planned.folder)


def estimate(first: Sequence[RecordedTurn], turns: int, max_new_tokens: int, files: int) -> str:
    """How large a recording will be, told from its first turns.

    Args:
        first: turns recorded.
        turns: of the whole recording.
        max_new_tokens: of each.
        files: of the whole recording.
    """
    tokens = sum(turn.answer.size for turn in first)
    nodes = sum(len(turn.trie) for turn in first)
    file = len(parquet([_blank(first[0])]))
    each = (len(parquet(first)) - file) / tokens
    size = (each * turns * max_new_tokens + file * files) / _MEGABYTE
    return (
        f"The first prompt took {each:.0f} bytes a token of output ({counted(round(nodes / tokens), 'node')}): "
        f"{counted(turns, 'answer')} of up to {counted(max_new_tokens, 'token')} will take up to {size:.1f} MB."
    )


def _blank(turn: RecordedTurn) -> RecordedTurn:
    """A turn in which nothing was said."""
    nothing = TrieWriter(0, ())
    return replace(
        turn,
        prompt=turn.prompt[:1],
        answer=turn.answer[:0],
        asked=turn.asked[:0],
        asked_logits=turn.asked_logits[:0],
        trie=nothing.finish(),
        target_log_probs=turn.target_log_probs[:0],
        draft_log_probs=turn.draft_log_probs[:0],
    )


def _names() -> Iterator[str]:
    number = 0
    while True:
        yield f"turns-{number:05d}.parquet"
        number += 1


def _recorder(planned: Plan, pair: ModelPair) -> Recorder:
    from specexp.drafters._draft_source import ModelSource
    from specexp.models.language_model import LanguageModel
    from specexp.replay.recorder import Coverage, Recorder
    from specexp.replay.source import RecordingSource

    config = planned.config
    candidates = config.get("record.candidates")
    source = None
    if any(isinstance(one, DraftModel) for one in drafters_in(planned.drafter())) and pair.draft is not None:
        source = RecordingSource(ModelSource(LanguageModel(pair.draft)), 1, spine_width=candidates)
    # controllers take no part, and seconds decide nothing
    plain = apply_overrides(config, {"controller": {"class_path": "Fixed"}, "latency": None}, config.file)
    drafter = build_parts(plain, source).drafter
    model = LanguageModel(pair.target)
    if drafter is not None:
        drafter.check_vocabulary(model.vocab_size)
    coverage = Coverage(planned.coverage, candidates, planned.target_top_k)
    return Recorder(model, planned.verifier, drafter, source, coverage)
