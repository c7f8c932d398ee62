"""The winner of a study as an artifact; where nothing beats plain decoding, that as an artifact."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specexp.artifacts import ArtifactError, kind_named
from specexp.artifacts.kinds.compositions import VERDICT, PlainDecodingArtifact
from specexp.artifacts.learned_state import state_payloads
from specexp.artifacts.parts import PARTS
from specexp.bench import clock
from specexp.bench.statistics import metric_interval
from specexp.config.artifacts import LoadedArtifact, save_artifact
from specexp.config.sweep import Export
from specexp.core.messages import size_of
from specexp.core.parts import Parts
from specexp.sweep.confirm import Confirmation, Confirmed, cold_figures, promoted
from specexp.sweep.confirmation_table import about_plain, noun_of
from specexp.sweep.session import BEST_TREE, StudyOutput
from specexp.sweep.study import Study
from specexp.sweep.study_config import digest_of

if TYPE_CHECKING:
    from specexp.bench.record import PromptRecord
    from specexp.bench.statistics import Speedup


@dataclass(frozen=True)
class Deployed:
    """The aliases of a study's artifact.

    Attributes:
        asked: Digest of the export's settings: the kind, the folder, whether it starts cold.
        trial: Trial that ``best`` decodes with; None where it decodes plainly.
        tree: Trial that ``best-tree`` decodes with.
        folder: Version that ``best`` names.
    """

    asked: str
    trial: int | None
    tree: int
    folder: str


@dataclass(frozen=True)
class Exported:
    """What a study leaves.

    Attributes:
        said: Sentences about it.
        gain: Whether ``best`` speculates.
        deployed: What the aliases name now; None where no candidate is of the kind asked for.
        written: Artifacts that were written, none where those of before stay.
    """

    said: Sequence[str]
    gain: bool
    deployed: Deployed | None = None
    written: Sequence[LoadedArtifact] = field(default=())


class Exporter:
    """Writes what a study leaves: the promoted candidate as ``best``, or plain decoding where there is none.

    ``best-tree`` is always the fastest composition found, ``best`` what a deployment should load: the same version, or
    one that says not to speculate, and why.

    Args:
        export: The kind of the artifact, the folder ``to`` which it goes, and whether it starts cold.
        confirmation: What was measured.
        study: Measured the trials.
        output: Where the results go.
    """

    def __init__(
        self,
        export: Export,
        confirmation: Confirmation,
        study: Study,
        output: StudyOutput,
    ) -> None:
        self.export = export
        self.confirmation = confirmation
        self.study = study
        self.output = output
        self.folder = Path(export.to)

    def run(self, before: Deployed | None) -> Exported:
        """Write what has changed since an earlier confirmation.

        Args:
            before: What that left; None without one.

        Raises:
            ArtifactError: It cannot be written.
        """
        winner = self.confirmation.winner
        candidates = [one for one in self.confirmation.confirmed if self._payloads(one) is not None]
        if not candidates:
            nothing = f"{winner.label} is no {self.export.kind}, nor is another one, so nothing was exported."
            return Exported([nothing], winner.over_ar.is_faster)
        asked = digest_of(asdict(self.export))
        if before is not None and (before.asked != asked or not Path(before.folder).is_dir()):
            before = None
        deployed = None if before is None else before.trial
        best = promoted(candidates, self.confirmation.records, deployed)
        if before is not None and best is not None and best.trial == before.trial:
            return Exported([f"{best.label} stays {self.folder}/best ({before.folder})."], True, before)
        if before is not None and best is None and before.trial is None:
            return Exported([f"{self.folder}/best still decodes plainly ({before.folder})."], False, before)
        if best is not None:
            artifact, said = self._write(best, ("latest", "best", BEST_TREE))
            now = Deployed(asked, best.trial, best.trial, str(artifact.folder))
            return Exported([*said, *self._other_kind(best)], True, now, [artifact])
        tree, said = self._write(candidates[0], ("latest", BEST_TREE))
        plain = self._write_plain(candidates[0], tree)
        now = Deployed(asked, None, candidates[0].trial, str(plain.folder))
        advice = (
            f"Speculating does not pay here, so {self.folder}/best decodes plainly ({plain.folder}); "
            f"{self.folder}/{BEST_TREE} is the best that was found."
        )
        return Exported([*said, advice], False, now, [plain, tree])

    def _payloads(self, one: Confirmed) -> dict[str, Any] | None:
        """What the kind asked for holds of a candidate, without what it carries; None where it is of another kind."""
        learned: dict[str, Any] = {}
        if self.study.warm_start_prompts:
            learned = {"learned": self._learned(one)}
        return kind_named(self.export.kind).payloads_of(self._specs(one), {**one.attributes, **learned})

    def _specs(self, one: Confirmed) -> dict[str, Any]:
        config, resolved = self.study.config.config, one.attributes["resolved"]
        return {family: resolved.get(family, config.get(family)) for family in Parts._fields}

    def _learned(self, one: Confirmed) -> dict[str, Any]:
        """What a candidate's drafter and controller knew before the first prompt of the confirmation."""
        arm = self.confirmation.arms[one.name]
        return {"controller": arm.controller_state, "drafter": arm.drafter_state}

    def _write(self, best: Confirmed, aliases: Sequence[str]) -> tuple[LoadedArtifact, list[str]]:
        """Write a candidate, with what it carries where that can be kept; and what is to be said of it."""
        payloads = self._payloads(best)
        assert payloads is not None
        metrics = _metrics(best, self.confirmation.records)
        learns = (
            kind_named(self.export.kind).holds_state
            and self.confirmation.arms[best.name].parts.keeps_learning
        )
        if learns and not self.export.cold:
            try:
                return self._written(best, payloads | state_payloads(self._learned(best)), metrics, aliases)
            except ArtifactError as error:
                why = f"for what it learned cannot be kept ({error})"
        else:
            why = "as asked for"
        said: list[str] = []
        if learns and (cold := self._cold(best)) is not None:
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

    def _cold(self, best: Confirmed) -> tuple[float, Speedup] | None:
        return cold_figures(best, self.study.confirming, self.output.folder / "cold.jsonl")

    def _written(
        self, best: Confirmed, payloads: dict[str, Any], metrics: dict[str, Any], aliases: Sequence[str]
    ) -> tuple[LoadedArtifact, list[str]]:
        artifact = self._save(
            self.export.kind, payloads, best, self.study.exported_metrics(best, metrics), aliases
        )
        size = artifact.content.state_bytes
        warm = f", with what it learned ({size_of(size)})" if size else ""
        return artifact, [f"{best.label} is in {artifact.folder}{warm}."]

    def _write_plain(self, tree: Confirmed, found: LoadedArtifact) -> LoadedArtifact:
        verdict = {
            "reason": about_plain(tree, noun_of(self.confirmation.confirmed, self.confirmation.records)),
            "best_found": found.folder.name,
            "several_sequences": self.study.config.multi_sequence,
        }
        parts = {"verifier": self._specs(tree)["verifier"]}
        metrics = {f"best_tree_{name}": value for name, value in found.metrics.items()}
        return self._save(
            PlainDecodingArtifact.kind, {VERDICT: verdict, PARTS: parts}, tree, metrics, ("latest", "best")
        )

    def _save(
        self, kind: str, payloads: dict[str, Any], one: Confirmed, metrics: Any, aliases: Sequence[str]
    ) -> LoadedArtifact:
        study_config = self.study.config
        return save_artifact(
            self.folder,
            kind,
            payloads,
            provenance={
                "study": study_config.name,
                "trial": one.trial,
                "command": self.output.command,
                "device": self.study.device,
                "config": {**study_config.config.to_dict(), **one.attributes["resolved"]},
                "confirmations": self.confirmation.confirmations,
                "metrics": metrics,
                **self.study.provenance(one),
            },
            fingerprint=self.study.confirming.backend.fingerprint(),
            name=study_config.name,
            aliases=aliases,
        )

    def _other_kind(self, best: Confirmed) -> list[str]:
        winner = self.confirmation.winner
        if self._payloads(winner) is not None:
            return []
        return [f"The winner, {winner.label}, is no {self.export.kind}; {best.label} is the best that is."]


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
    return {
        f"{clock.metric_prefix(speedup.clock)}{name}": {"value": speedup.ratio, **_interval(speedup)}
        for name, speedup in speedups.items()
        if speedup.refused is None
    }


def _interval(speedup: Speedup) -> dict[str, float]:
    return {"low": speedup.low, "high": speedup.high} if speedup.has_interval else {}
