"""The end of a sweep: the best few measured again on other prompts, held against what was known, and exported."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from optuna import Study
from optuna.trial import FrozenTrial

from specexp.artifacts.atomic_write import write_whole
from specexp.bench.arm import EngineArm
from specexp.bench.progress import StageBar
from specexp.bench.record import PromptRecord
from specexp.bench.table import Table
from specexp.sweep.bench import CompositionBench
from specexp.sweep.confirm import Confirmed, confirm, select, sentences, table
from specexp.sweep.export import draw_winner, draw_winners_time_line, export_best
from specexp.sweep.live_bench import LiveBench
from specexp.sweep.objective import confirmable
from specexp.sweep.prediction import Predicted, compared, graded
from specexp.sweep.replay_bench import ReplayBench
from specexp.sweep.study import StudyError
from specexp.sweep.trial_table import name_of_trial, speedups_of, trial_row
from specexp.sweep.yardstick import write_yardstick, yardstick_of

if TYPE_CHECKING:
    from specexp.data.prompts import PromptDataModule
    from specexp.sweep.session import Session


class Conclusion:
    """What follows the search.

    Args:
        session: of the sweep.
        study: searched.
        bench: that searched.
        data: the prompts of the confirmation.
    """

    def __init__(
        self, session: Session, study: Study, bench: CompositionBench, data: PromptDataModule
    ) -> None:
        self.session = session
        self.study = study
        self.bench = bench
        self.data = data

    def reach(self) -> None:
        """Do all of it.

        Raises:
            StudyError: no trial can be confirmed.
            OSError: something cannot be written.
        """
        session, data = self.session, self.data
        confirming = self._confirming()
        confirmed, records = self._confirm(confirming)
        predicted_ar = None
        if session.replay is not None and confirming is not session.replay:
            confirmed = [self._predict(one) for one in confirmed]
            predicted_ar = session.replay.predict({}, data.prompts)
        shown = table(session.name, session.composition.question, confirmed, records, predicted_ar)
        said = sentences(confirmed, records)
        if session.replay is not None:
            said += self._what_replay_was_worth(confirmed)
        session.console.print(shown.to_rich())
        for sentence in said:
            session.console.print(sentence, highlight=False, soft_wrap=True)
        text = shown.to_markdown() + "\n" + "\n".join(f"{sentence}  " for sentence in said) + "\n"
        write_whole(session.folder / "confirm.md", text)
        write_whole(session.folder / "confirm.csv", shown.to_csv())
        winner = confirmed[0]
        pictures = [
            draw_winner(winner, confirming, data.prompts, session.folder / "tree.png"),
            draw_winners_time_line(winner, confirming, data.prompts[0], session.folder),
        ]
        if session.replay is not None:
            pictures += self._hold_against_yardstick(winner, session.replay)
        artifact = export_best(session, confirmed, confirming)
        self._track(shown, pictures, artifact)

    def _confirming(self) -> CompositionBench:
        """The models, where they are at hand; otherwise the bench that searched."""
        session = self.session
        if session.replay is None or session.pair is None:
            return self.bench
        latency = session.composition.live_latency()
        live = LiveBench(session.composition, session.pair, self.data, session.folder, latency)
        live.lessons = self.bench.lessons
        return live

    def _predict(self, one: Confirmed) -> Confirmed:
        """With what replay says of it: on the same prompts, or else on the search's."""
        assert self.session.replay is not None
        found = self.session.replay.predict(one.attributes["resolved"], self.data.prompts)
        metrics = self.study.get_trials(deepcopy=False)[one.trial].user_attrs["metrics"]
        return replace(one, predicted=found or Predicted.of_search(metrics))

    def _what_replay_was_worth(self, confirmed: Sequence[Confirmed]) -> list[str]:
        assert self.session.recording is not None
        winner = confirmed[0]
        said = [compared(one) for one in confirmed[:1] if one.predicted is not None]
        said.append(graded(winner, self.session.recording.manifest))
        if self.session.pair is None:
            said.append(
                f"Nothing was confirmed live, for the models are not here ({self.session.no_models}): these figures "
                "are replayed too."
            )
        return said

    def _hold_against_yardstick(self, winner: Confirmed, bench: ReplayBench) -> list[Path | None]:
        """How near a fixed tree of the draft model comes to the best known without a search; the picture's path."""
        found = yardstick_of(winner.attributes["resolved"], bench)
        if found is None:
            return []
        goodputs = {
            trial.number: float(trial.user_attrs["metrics"]["modelled_tokens_per_second"])
            for trial in confirmable(self.study)
        }
        goodput, highest = goodputs[winner.trial], max(goodputs.values())
        said = found.sentences(winner.label, goodput)
        if highest > goodput:
            said.append(
                f"The highest goodput of the search's {len(goodputs)} trees is {highest:.1f} tokens/s, "
                f"{100 * found.share(highest):.1f} % of the yardstick; what was promoted was faster on other prompts."
            )
        for sentence in said:
            self.session.console.print(sentence, highlight=False, soft_wrap=True)
        return [write_yardstick(found, said, winner, goodput, self.session.folder)]

    def _confirm(self, bench: CompositionBench) -> tuple[list[Confirmed], list[PromptRecord]]:
        stage = self.session.settings.confirm
        assert stage is not None
        trials = select(self.study, stage.best, stage.of_each)
        if not trials:
            raise StudyError(
                "no trial was measured on every prompt within the constraints, so none can be confirmed"
            )
        arms = [self._arm(trial, bench) for trial in trials]
        eager = bench.eager() if isinstance(bench, LiveBench) else None
        with StageBar(self.session.console) as bar:
            bar.stage(
                f"confirming {len(arms)} candidates on other prompts",
                len(self.data.prompts) * bench.samples,
            )
            confirmed, records = confirm(
                trials,
                arms,
                bench.engine,
                eager,
                self.data,
                bench.trainer,
                self.session.folder / "confirm.jsonl",
                bench.samples,
                bar.prompt,
                stage.of_each,
            )
        return confirmed, records

    def _arm(self, trial: FrozenTrial, bench: CompositionBench) -> EngineArm:
        candidate = bench.prepare(trial.user_attrs["attributes"]["resolved"])
        return bench.taught(bench.arm(name_of_trial(trial), candidate.parts))

    def _track(self, shown: Table, pictures: Sequence[Path | None], artifact: Path | None) -> None:
        rows = [
            trial_row(trial, list(self.session.settings.directions))
            for trial in self.study.get_trials(deepcopy=False)
        ]
        with self.session.tracker.study(config=self.session.composition.to_dict()) as run:
            run.table("trials", [{**row, **speedups_of(row)} for row in rows])
            run.table("confirm", shown.records())
            for path in [*pictures, *sorted((self.session.folder / "plots").glob("*.png"))]:
                if path is not None:
                    run.picture(path.stem, path)
            if artifact is not None and self.session.settings.export is not None:
                run.artifact(artifact, self.session.name, self.session.settings.export.kind)
