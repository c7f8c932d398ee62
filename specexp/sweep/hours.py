"""The plan of a study: which of its stages need a device, and for how long."""

from __future__ import annotations

from specexp.bench.device_hours import Prompts, Stage
from specexp.config import build_latency, build_outline, build_workload
from specexp.config.stages import with_prompts_of
from specexp.config.sweep import Sweep
from specexp.sweep.drift import EVERY
from specexp.sweep.study_config import StudyConfig

CONFIRMED_BESIDE = 2
"""Arms that the candidates are confirmed beside: plain decoding and Hugging Face's."""


def stages_of(study_config: StudyConfig, settings: Sweep) -> list[Stage]:
    """Searching and confirming, with the hours that each takes; nothing where no profile says what passes cost.

    Args:
        study_config: The experiment.
        settings: Its sweep section.

    Raises:
        PromptSetError: Prompts cannot be read.
    """
    latency = build_latency(study_config.config)
    if latency is None:
        return []
    trials, searched = settings.n_trials, _prompts(study_config, None)
    answers = trials * searched.answers
    if study_config.replayed:
        found = [Stage("search", answers, 0.0, f"{trials} trials, replayed on any machine's CPUs")]
    else:
        runs = 1 + trials * (1 + 1 / EVERY)  # plain decoding is measured first, and again among the trials'
        hours = runs * searched.hours(latency)
        found = [Stage("search", answers, hours, f"{trials} trials; fewer where some are pruned")]
    if settings.confirm is not None:
        prompts, arms = _prompts(study_config, "confirm"), settings.confirm.best + CONFIRMED_BESIDE
        why = f"{settings.confirm.best} candidates and what they are held against, on one device"
        found.append(Stage("confirmation", arms * prompts.answers, arms * prompts.hours(latency), why))
    return found


def _prompts(study_config: StudyConfig, stage: str | None) -> Prompts:
    config = with_prompts_of(study_config.config, stage)
    generation = study_config.generation
    found = build_workload(config).load(build_outline(config).tokenizer)
    lengths = [len(prompt.token_ids) for prompt in found]
    return Prompts(lengths, generation.max_new_tokens, generation.samples)
