"""The winner of a study as an artifact, or plain decoding if nothing beats it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specexp.artifacts import ArtifactError, kind_named
from specexp.artifacts.kinds.compositions import VERDICT, PlainDecodingArtifact
from specexp.artifacts.parts import PARTS, state_payloads
from specexp.bench import clock
from specexp.bench.statistics import metric_interval
from specexp.config.artifacts import LoadedArtifact, save_artifact
from specexp.config.sweep import Export
from specexp.core.messages import size_of
from specexp.core.parts import Parts
from specexp.sweep.confirmation import Confirmation, about_plain, cold_figures, noun_of, promoted
from specexp.sweep.output import BEST_TREE, StudyOutput
from specexp.sweep.study import Study
from specexp.sweep.study_config import digest_of
from specexp.sweep.trials import Confirmed

if TYPE_CHECKING:
    from specexp.bench.record import PromptRecord
    from specexp.bench.statistics import Speedup


@dataclass(frozen=True)
class Deployed:
    """The aliases of a study's artifact."""

    asked: str  # digest of the export's settings: the kind, the folder, whether it starts cold
    trial: int | None  # trial that ``best`` decodes with; None if it decodes plainly
    tree: int  # trial that ``best-tree`` decodes with
    folder: str


@dataclass(frozen=True)
class Exported:
    """The exported artifacts of a study."""

    said: Sequence[str]
    gain: bool
    deployed: Deployed | None = None  # the current aliases; None if no candidate is of the wanted kind
    written: Sequence[LoadedArtifact] = field(default=())  # new artifacts; empty if the earlier ones stay


class Exporter:
    """Writes the artifacts of a study.

    The alias ``best-tree`` names the fastest composition found. ``best`` is for deployments: it names the same version,
    or one that decodes plainly and holds the reason.

    Args:
        export: Kind and folder of the artifact, and whether it starts cold.
    """

    def __init__(self, export: Export, confirmation: Confirmation, study: Study, output: StudyOutput) -> None:
        self.export, self.confirmation, self.study, self.output = export, confirmation, study, output
        self.folder = Path(export.to)

    def run(self, before: Deployed | None) -> Exported:
        """Write artifacts unless the aliases of an earlier confirmation stay.

        Raises:
            ArtifactError: One cannot be written.
        """
        winner, kind, folder = self.confirmation.winner, self.export.kind, self.folder
        candidates = [one for one in self.confirmation.confirmed if self._payloads(one) is not None]
        if not candidates:
            nothing = f"{winner.label} is no {kind}, nor is another one, so nothing was exported."
            return Exported([nothing], winner.over_ar.is_faster)
        asked = digest_of(self.export.model_dump())
        if before is not None and (before.asked != asked or not Path(before.folder).is_dir()):
            before = None
        deployed = None if before is None else before.trial
        best = promoted(candidates, self.confirmation.records, deployed)
        if before is not None and deployed == (None if best is None else best.trial):
            plainly = f"{folder}/best still decodes plainly ({before.folder})."
            said = [plainly if best is None else f"{best.label} stays {folder}/best ({before.folder})."]
            return Exported(said, best is not None, before)
        tree = best or candidates[0]
        aliases = ("latest", BEST_TREE) if best is None else ("latest", "best", BEST_TREE)
        artifact, said = self._write(tree, aliases)
        written = [artifact]
        if best is None:
            written.insert(0, self._write_plain(tree, artifact))
            said.append(
                f"Speculating does not pay here, so {folder}/best decodes plainly ({written[0].folder}); "
                f"{folder}/{BEST_TREE} is the best that was found."
            )
        elif self._payloads(winner) is None:
            said.append(f"The winner, {winner.label}, is no {kind}; {best.label} is the best that is.")
        trial = None if best is None else best.trial
        now = Deployed(asked, trial, tree.trial, str(written[0].folder))
        return Exported(said, best is not None, now, written)

    def _payloads(self, one: Confirmed) -> dict[str, Any] | None:
        learned = {"learned": self._learned(one)} if self.study.warm_start_prompts else {}
        return kind_named(self.export.kind).payloads_of(self._specs(one), {**one.attributes, **learned})

    def _specs(self, one: Confirmed) -> dict[str, Any]:
        config, resolved = self.study.config.config, one.attributes["resolved"]
        return {family: resolved.get(family, config.get(family)) for family in Parts._fields}

    def _learned(self, one: Confirmed) -> dict[str, Any]:
        """The state of a candidate's drafter and controller before the first prompt of the confirmation."""
        arm = self.confirmation.arms[one.name]
        return {"controller": arm.controller_state, "drafter": arm.drafter_state}

    def _write(self, best: Confirmed, aliases: Sequence[str]) -> tuple[LoadedArtifact, list[str]]:
        payloads, metrics = self._payloads(best), _metrics(best, self.confirmation.records)
        assert payloads is not None
        learns = self.confirmation.arms[best.name].parts.keeps_learning
        learns = learns and kind_named(self.export.kind).holds_state
        why = "as asked for"
        if learns and not self.export.cold:
            try:
                return self._written(best, payloads | state_payloads(self._learned(best)), metrics, aliases)
            except ArtifactError as error:
                why = f"for what it learned cannot be kept ({error})"
        said: list[str] = []
        if learns and (cold := cold_figures(best, self.study.confirming, self.output.folder / "cold.jsonl")):
            tokens_per_step, speedup = cold
            metrics |= {
                "cold_tokens_per_step": tokens_per_step,
                **_speedups({"cold_speedup_over_engine": speedup}),
            }
            said = [
                f"It starts cold, {why}: a first request takes {tokens_per_step:.2f} tokens per step, {speedup} over "
                f"plain decoding, and {best.tokens_per_step:.2f}, {best.over_ar}, once it has learned."
            ]
        artifact, about = self._written(best, payloads, metrics, aliases)
        return artifact, [*about, *said]

    def _written(
        self, best: Confirmed, payloads: dict[str, Any], metrics: dict[str, Any], aliases: Sequence[str]
    ) -> tuple[LoadedArtifact, list[str]]:
        metrics = self.study.exported_metrics(best, metrics)
        artifact = self._save(self.export.kind, payloads, best, metrics, aliases)
        size = artifact.content.state_bytes
        warm = f", with what it learned ({size_of(size)})" if size else ""
        return artifact, [f"{best.label} is in {artifact.folder}{warm}."]

    def _write_plain(self, tree: Confirmed, found: LoadedArtifact) -> LoadedArtifact:
        verdict = {
            "reason": about_plain(tree, noun_of(self.confirmation.confirmed, self.confirmation.records)),
            "best_found": found.folder.name,
            "several_sequences": self.study.config.multi_sequence,
        }
        payloads = {VERDICT: verdict, PARTS: {"verifier": self._specs(tree)["verifier"]}}
        metrics = {f"best_tree_{name}": value for name, value in found.metrics.items()}
        return self._save(PlainDecodingArtifact.kind, payloads, tree, metrics, ("latest", "best"))

    def _save(
        self, kind: str, payloads: dict[str, Any], one: Confirmed, metrics: Any, aliases: Sequence[str]
    ) -> LoadedArtifact:
        config = self.study.config
        return save_artifact(
            self.folder,
            kind,
            payloads,
            provenance={
                "study": config.name,
                "trial": one.trial,
                "command": self.output.command,
                "device": self.study.device,
                "config": {**config.config.to_dict(), **one.attributes["resolved"]},
                "confirmations": self.confirmation.confirmations,
                "metrics": metrics,
                **self.study.provenance(one),
            },
            fingerprint=self.study.confirming.backend.fingerprint(),
            name=config.name,
            aliases=aliases,
        )


def _metrics(best: Confirmed, records: Sequence[PromptRecord]) -> dict[str, Any]:
    before = clock.metric_prefix(best.over_ar.clock)
    speedups = {"speedup_over_engine": best.over_ar}
    if best.over_eager is not None:
        speedups["speedup_over_hf_eager"] = best.over_eager
    interval = metric_interval(records, best.name, "tokens_per_step")
    ends = {} if interval is None else dict(zip(("low", "high"), interval, strict=True))
    return {
        "tokens_per_step": {"value": best.tokens_per_step, **ends},
        f"{before}tokens_per_second": best.tokens_per_second,
        **_speedups(speedups),
    }


def _speedups(speedups: dict[str, Speedup]) -> dict[str, Any]:
    found = {}
    for name, speedup in speedups.items():
        if speedup.refused is None:
            interval = {"low": speedup.low, "high": speedup.high} if speedup.has_interval else {}
            found[f"{clock.metric_prefix(speedup.clock)}{name}"] = {"value": speedup.ratio, **interval}
    return found
