"""Making a recording as an experiment file describes it.

Every file of turns is written whole before the manifest names it, so that a recording cut off anywhere goes on after
its last file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from specexp.bench.arm import eos_of, sequence_name
from specexp.bench.experiment import check_prompts
from specexp.config import (
    Config,
    ConfigError,
    apply_overrides,
    build_generation,
    build_pair,
    build_parts,
    build_workload,
)
from specexp.core.messages import counted
from specexp.data import PromptSetError
from specexp.record.folder import alone_in, go_on, keep_learned, manifest_of, missing_in, next_file
from specexp.record.plan import Plan, plan_recording, refusal
from specexp.record.size import estimate
from specexp.replay.format.recording import Manifest, Recording, write_turns
from specexp.replay.play.fidelity import scoring_of

if TYPE_CHECKING:
    from specexp.data import Prompt
    from specexp.pairs.pair import ModelPair
    from specexp.record.recorder import Recorder
    from specexp.replay.format.recorded_turn import RecordedTurn


def make(
    config: Config, pair: ModelPair | None = None, tell: Callable[[str], None] = print, bar: Any = None
) -> Recording:
    """Record what a file describes, going on after the last complete file of turns.

    Args:
        config: of the file.
        pair: models loaded already; the file's own if None.
        tell: takes a line about the progress.
        bar: a :class:`~specexp.bench.progress.StageBar`; None shows none.

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
    manifest = manifest_of(planned, pair, prompts)
    missing = missing_in(manifest, planned.folder, prompts, generation.samples)
    whole = len(prompts) * generation.samples
    sampled = _unsampled(planned, manifest, prompts)
    if not missing and not sampled:
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
        with alone_in(planned.folder):
            manifest.complete = False
            manifest.save(planned.folder)
            _record(planned, pair, manifest, missing, tell, bar)
            manifest.complete = True
            manifest.save(planned.folder)
    if sampled:
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
    go_on(recorder, planned.folder, manifest)
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
            name = next_file(manifest)
            manifest.files[name] = write_turns(planned.folder / name, kept)
            keep_learned(recorder, planned.folder, manifest)
            manifest.save(planned.folder)
            kept = []


def _unsampled(planned: Plan, manifest: Manifest, prompts: Sequence[Prompt]) -> Sequence[Prompt]:
    """Prompts of the live sample, if it is not known yet of so many and of every composition."""
    from specexp.record.live_sample import compositions

    sampled = prompts[: planned.config.get("record.live_sample")]
    known = {row["composition"]: row.get("prompts", len(sampled)) for row in manifest.live_sample}
    lacking = any(known.get(name, 0) < len(sampled) for name, _ in compositions(planned))
    return sampled if lacking else []


def _sample_live(
    planned: Plan, pair: ModelPair, manifest: Manifest, prompts: Sequence[Prompt], bar: Any
) -> None:
    """Compare the first prompts with live ones, and keep what was found."""
    from specexp.record.live_sample import compositions, sample_live

    if bar is not None:
        bar.stage("live sample", len(prompts) * len(list(compositions(planned))))
    decoded = (lambda: None) if bar is None else bar.prompt
    manifest.live_sample = sample_live(planned, pair, Recording(planned.folder), prompts, decoded)
    manifest.save(planned.folder)


def _recorder(planned: Plan, pair: ModelPair) -> Recorder:
    from specexp.core.language_model import LanguageModel
    from specexp.drafters.draft_source import ModelSource
    from specexp.record.recorder import Coverage, Recorder
    from specexp.record.recording_source import RecordingSource

    config = planned.config
    candidates = config.get("record.candidates")
    source = None
    if scoring_of(planned.drafter()) is not None and pair.draft is not None:
        source = RecordingSource(ModelSource(LanguageModel(pair.draft)), 1, spine_width=candidates)
    # controllers take no part, and seconds decide nothing
    plain = apply_overrides(config, {"controller": {"class_path": "Fixed"}, "latency": None}, config.file)
    drafter = build_parts(plain, source).drafter
    model = LanguageModel(pair.target)
    if drafter is not None:
        drafter.check_vocabulary(model.vocab_size)
    coverage = Coverage(planned.coverage, candidates, planned.target_top_k)
    return Recorder(model, planned.verifier, drafter, source, coverage)
