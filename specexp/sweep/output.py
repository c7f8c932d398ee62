"""The outputs of a study: W&B runs, and artifacts with the winner."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from optuna.trial import FrozenTrial

from specexp.artifacts import ArtifactError, kind_named
from specexp.artifacts.kinds.compositions import SETTINGS, ConfirmedSetting
from specexp.artifacts.parts import PARTS, state_payloads
from specexp.artifacts.store import BEST, BEST_TREE
from specexp.base.messages import counted, size_of
from specexp.bench import clock
from specexp.bench.record import MEASURED, PromptRecord
from specexp.bench.statistics import Speedup, metric_interval, paired_speedup
from specexp.config.artifacts import LoadedArtifact, save_artifact
from specexp.config.next_step import packages_in
from specexp.config.sweep import Export
from specexp.core.parts import Parts
from specexp.engines.loads import LENGTH, forms_of, lengths_by_load
from specexp.report.publish import parts_label
from specexp.sweep.bench import Bench
from specexp.sweep.confirmation import Confirmation, cold_figures
from specexp.sweep.study_config import StudyConfig
from specexp.sweep.trials import Confirmed, trial_row
from specexp.tracking.names import MODELLED, SPEEDUP, TOKENS_PER_SECOND, TOKENS_PER_STEP
from specexp.tracking.tracker import Tracker


def track_trial(tracker: Tracker, trial: FrozenTrial, setting: Mapping[str, Any], objectives: Sequence[str]) -> None:
    """Log a finished trial as a W&B run, with one history step per prompt and the trial's row as the summary.

    Args:
        setting: See :func:`~specexp.report.publish.tracked_config`.
    """
    attributes = trial.user_attrs.get("attributes", {})
    speedup = f"{MODELLED if 'clock' in attributes else ''}{SPEEDUP}"
    config = {**setting, **attributes.get("resolved", {})}
    config["parts"] = parts_label(config)
    with tracker.trial(trial.number, trial.params, config, what_trial(trial)) as run:
        for prompt, log_speedup in trial.intermediate_values.items():
            run.log({speedup: math.exp(log_speedup)}, step=prompt)
        row = trial_row(trial, objectives)
        run.summary({key: value for key, value in row.items() if value is not None})


def what_trial(trial: FrozenTrial) -> str:
    """Return a label for a trial: its known configuration or the parts chosen for it, and its number of nodes."""
    chosen = [value for value in trial.params.values() if isinstance(value, str)]
    nodes = trial.user_attrs.get("attributes", {}).get("nodes")
    named = [str(trial.user_attrs["known"])] if "known" in trial.user_attrs else chosen
    return ", ".join([*named, *([] if nodes is None else [counted(nodes, "node")])])


def summary_of(winner: Confirmed) -> dict[str, Any]:
    """Return the winner's confirmed figures, keyed by name, for comparing studies in W&B."""
    modelled = "" if winner.over_plain.clock == MEASURED else MODELLED
    return {
        "winner": winner.label,
        "winner_trial": winner.trial,
        f"{modelled}confirmed_{SPEEDUP}": winner.over_plain.ratio,
        f"{modelled}confirmed_{SPEEDUP}_low": winner.over_plain.low,
        f"{modelled}confirmed_{SPEEDUP}_high": winner.over_plain.high,
        f"{modelled}{TOKENS_PER_SECOND}": winner.tokens_per_second,
        TOKENS_PER_STEP: winner.tokens_per_step,
    }


@dataclass(frozen=True)
class Deployed:
    """The artifact version to which a study's alias ``best-tree`` points, and ``best`` if the verdict is *faster*."""

    trial: int | None  # the trial in ``best``; None if there is no ``best``
    tree: int  # the trial in ``best-tree``
    folder: str


class Exported(NamedTuple):
    """The result of an export."""

    sentences: Sequence[str] = ()
    now: Deployed | None = None  # the current aliases; None if no candidate fits the configured kind
    written: Sequence[LoadedArtifact] = ()


def payloads_of(
    kind: str, own: Mapping[str, Any], attributes: Mapping[str, Any], state: Mapping[str, Any] | None
) -> dict[str, Any] | None:
    """Return the payloads of a candidate's artifact, or None if the candidate cannot be exported as this kind.

    Args:
        own: The file's specifications of parts, for those that the candidate does not set.
        attributes: See :class:`~specexp.sweep.trials.Candidate`.
        state: State of the controller and drafter; None if the study has no ``learn`` stage.
    """
    learned = {} if state is None else {"learned": state}
    specs = {family: attributes["resolved"].get(family, own[family]) for family in Parts._fields}
    return kind_named(kind).payloads_of(specs, {**attributes, **learned})


def packages_of(own: Mapping[str, Any], attributes: Mapping[str, Any]) -> list[str]:
    """Return the packages outside specexp that a candidate's artifact imports. Arguments: see :func:`payloads_of`."""
    specs = {**own, **attributes["resolved"]}
    return packages_in([specs.get(section) for section in (*Parts._fields, "execution")])


def confirmed_settings(own: Mapping[str, Any], confirmation: Confirmation) -> list[ConfirmedSetting]:
    """Return the confirmed candidates that are compositions, fastest first, for exports to engines."""
    found, winner = [], confirmation.winner
    for one in confirmation.confirmed:
        payloads = payloads_of("composition", own, one.attributes, None)
        if payloads is None:
            continue
        sentence = f"{one.label}: {one.over_plain} over plain decoding"
        if not one.over_plain.is_faster:
            sentence += ", not shown to be faster"
        if one is not winner:
            paired = paired_speedup(confirmation.records, winner.name, one.name)
            sentence += f"; the fastest, {winner.label}, is {paired} as fast as it"
        found.append(ConfirmedSetting(one.label, payloads[PARTS], sentence))
    return found


def by_load(config: StudyConfig, confirmation: Confirmation) -> dict[str, Any] | None:
    """Return the winner's draft lengths by load in the forms of engines; None if it has none, or for a single load."""
    if not config.of_engine or len(loads := config.engine.loads) == 1:
        return None
    settings = {one.name: one.attributes["engine"]["settings"] for one in confirmation.confirmed}
    given = settings[confirmation.winner.name]
    if LENGTH not in given or f"{LENGTH}_per_batch_size" in given:
        return None
    lengths = lengths_by_load(confirmation.records, settings, confirmation.winner.name, loads)
    return forms_of(lengths, max(loads))


class Exporter:
    """Writes the artifacts of a study.

    The alias ``best-tree`` points to the fastest composition found. ``best`` points to the version to deploy, and
    exists only if the verdict on it is *faster*.
    """

    def __init__(self, export: Export, confirmation: Confirmation, bench: Bench, command: str) -> None:
        self.export = export
        self.confirmation = confirmation
        self.bench = bench
        self.command = command
        self.folder = Path(export.to)
        self.candidates = [one for one in confirmation.confirmed if self._payloads(one) is not None]
        self.best = next((one for one in self.candidates if one.over_plain.is_faster), None)

    def run(self) -> Exported:
        """Write the artifacts."""
        winner, kind, best_alias = self.confirmation.winner, self.export.kind, f"{self.folder}/{BEST}"
        if not self.candidates:
            return Exported([f"Nothing was exported, because no candidate, such as {winner.label}, is a {kind}."])
        best = self.best
        tree = best or self.candidates[0]
        artifact, sentences = self._write(tree, (BEST_TREE, *(() if best is None else (BEST,))))
        if best is None:
            (self.folder / f"{BEST}.json").unlink(missing_ok=True)  # of an earlier confirmation
            sentences.append(
                f"{best_alias} is not written, because no {kind} is shown to be faster than plain decoding; "
                f"{self.folder}/{BEST_TREE} is the fastest found."
            )
        elif self._payloads(winner) is None:
            sentences.append(
                f"The winner, {winner.label}, is not a {kind}; {best.label} is the fastest that is shown to be faster."
            )
        trial = None if best is None else best.trial
        return Exported(sentences, Deployed(trial, tree.trial, str(artifact.folder)), [artifact])

    def _payloads(self, one: Confirmed) -> dict[str, Any] | None:
        state = self._state(one) if self.bench.warm_start_prompts else None
        return payloads_of(self.export.kind, self.bench.config.specs, one.attributes, state)

    def _state(self, one: Confirmed) -> dict[str, Any]:
        """Return the state of a candidate's parts before the first prompt of the confirmation."""
        arm = self.confirmation.arms[one.name]
        return {"controller": arm.controller_state, "drafter": arm.drafter_state}

    def _write(self, best: Confirmed, aliases: Sequence[str]) -> tuple[LoadedArtifact, list[str]]:
        kind, payloads = self.export.kind, self._payloads(best) or {}
        if kind == "engine-settings" and (forms := by_load(self.bench.config, self.confirmation)):
            payloads[SETTINGS]["settings"] |= forms.get(payloads[SETTINGS]["engine"], {})
        metrics = _metrics(best, self.confirmation.records)
        learns = self.confirmation.arms[best.name].parts.keeps_learning and kind_named(kind).holds_state
        why, artifact, about_cold = "as configured", None, list[str]()
        if learns and not self.export.cold:
            try:
                artifact = self._save(payloads | state_payloads(self._state(best)), best, metrics, aliases)
            except ArtifactError as error:
                why = f"because its learned state cannot be saved ({error})"
        if artifact is None:
            if learns:
                rate, speedup = cold_figures(best, self.bench.confirming, self.bench.config.folder / "cold.jsonl")
                metrics["cold_tokens_per_step"] = rate
                metrics |= _speedups({"cold_speedup_over_plain": speedup})
                about_cold = [
                    f"It starts cold, {why}: a first request has {rate:.2f} tokens per step, {speedup} over plain "
                    f"decoding. Once it has learned, it has {best.tokens_per_step:.2f} tokens per step, "
                    f"{best.over_plain} over plain decoding."
                ]
            artifact = self._save(payloads, best, metrics, aliases)
        size = artifact.content.state_bytes
        warm = f", with its learned state ({size_of(size)})" if size else ""
        return artifact, [f"{best.label} is in {artifact.folder}{warm}.", *about_cold]

    def _save(self, payloads: dict[str, Any], one: Confirmed, metrics: Any, aliases: Sequence[str]) -> LoadedArtifact:
        config, kind = self.bench.config, self.export.kind
        provenance = {
            "study": config.name,
            "trial": one.trial,
            "command": self.command,
            "device": self.bench.device,
            "config": {**config.values, **one.attributes["resolved"]},
            "metrics": self.bench.exported_metrics(one, metrics),
            **self.bench.provenance(one),
        }
        fingerprint = self.bench.confirming.backend.fingerprint()
        return save_artifact(self.folder, kind, payloads, provenance, fingerprint, name=config.name, aliases=aliases)


def _metrics(best: Confirmed, records: Sequence[PromptRecord]) -> dict[str, Any]:
    speedups = {"speedup_over_plain": best.over_plain}
    if best.over_eager is not None:
        speedups["speedup_over_hf_eager"] = best.over_eager
    interval = metric_interval(records, best.name, "tokens_per_step")
    ends = {} if interval is None else dict(zip(("low", "high"), interval, strict=True))
    return {
        "tokens_per_step": {"value": best.tokens_per_step, **ends},
        f"{clock.metric_prefix(best.over_plain.clock)}tokens_per_second": best.tokens_per_second,
        **_speedups(speedups),
    }


def _speedups(speedups: dict[str, Speedup]) -> dict[str, Any]:
    found = {}
    for name, speedup in speedups.items():
        if speedup.refused is None:
            interval = {"low": speedup.low, "high": speedup.high} if speedup.has_interval else {}
            found[f"{clock.metric_prefix(speedup.clock)}{name}"] = {"value": speedup.ratio, **interval}
    return found
