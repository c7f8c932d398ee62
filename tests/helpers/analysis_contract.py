"""Conformance tests for analyses, to be inherited by the tests of any implementation."""

import io
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache, lru_cache, partial
from types import SimpleNamespace
from typing import Any, cast

import pytest
from transformers import PreTrainedTokenizerBase

from specexp.bench.arm import Generation
from specexp.bench.live import DecoderArm
from specexp.bench.record import PromptRecord, Role, SequenceGroup
from specexp.builders import DySpecGreedy, KConfig
from specexp.core.language_model import LanguageModel
from specexp.core.loop import Decoder
from specexp.core.outcome import Outcome
from specexp.data import Prompt
from specexp.drafters import DraftModel
from specexp.report.analysis import Analysis
from specexp.report.publish import Report
from specexp.scheduling.timeline import BUSY, TARGET, TimeLine
from specexp.testing.fakes import FakeDrafter, hashed_model
from specexp.tracking.names import PLAIN
from specexp.verifiers import RejectionSampling

VOCABULARY = 13
PROMPTS = [Prompt(f"p{number}", "made", ("only",), (number + 1, 2, 3), number) for number in range(2)]


class AnalysisContract(ABC):
    """Base class for analysis tests. Subclasses define :meth:`make_analysis`; pytest then collects the tests."""

    @abstractmethod
    def make_analysis(self) -> Analysis:
        """Return a new analysis, identical on every call."""

    @pytest.fixture
    def analysis(self) -> Analysis:
        return self.make_analysis()

    @pytest.fixture
    def watched(self) -> tuple[Analysis, list[PromptRecord], Report]:
        return _watched(type(self))

    def test_reports_tables_pictures_and_files_of_its_own_name(
        self, watched: tuple[Analysis, list[PromptRecord], Report]
    ) -> None:
        """The run covers drawn trees, trees without probabilities, and plain decoding."""
        analysis, _, report = watched
        assert report.tables
        for name in (*report.tables, *report.figures, *report.files):
            assert name.startswith(analysis.name)
            assert name.replace("_", "").replace(".", "").isalnum()
        for table in report.tables.values():
            assert table.rows
            assert "nan" not in table.to_csv()  # missing measurements are left out
            assert table.to_markdown()
        for figure in report.figures.values():
            figure.savefig(io.BytesIO(), format="png")
        for name, content in report.files.items():
            assert not name.endswith(".json") or json.loads(content)

    def test_watching_changes_nothing(self, analysis: Analysis) -> None:
        observed = [record.token_ids for record in watch(analysis, make_arms(), check_outcomes=True)]
        assert observed == _unwatched()

    def test_the_same_run_gives_the_same_report(
        self, analysis: Analysis, watched: tuple[Analysis, list[PromptRecord], Report]
    ) -> None:
        """Given the same records, a report must not depend on the clock, a global random generator or earlier runs."""
        used, records, report = watched
        for one in (analysis, used):
            watch(one, make_arms())
            assert texts(one.report(records)) == texts(report)

    def test_a_run_without_drafts_or_steps_has_a_report_too(self, analysis: Analysis) -> None:
        assert analysis.report(watch(analysis, make_arms()[:1])).tables
        analysis.begin({arm.name: arm.decoder.parts for arm in make_arms()})
        assert analysis.report([]).tables


def make_arms() -> list[DecoderArm]:
    """Return arms for plain decoding, wide drawn trees from a similar draft model, and trees without probabilities."""
    model = LanguageModel(cast(Any, hashed_model(VOCABULARY)))
    tokenizer = cast(PreTrainedTokenizerBase, SimpleNamespace(eos_token_id=None))
    draft = hashed_model(VOCABULARY, spread=1.6)  # the target's ranking, but a flatter distribution
    guess = FakeDrafter(lambda tokens: [(tokens[-1] + step) % VOCABULARY for step in range(8)], max_candidates=8)
    decoders = {
        PLAIN: Decoder(model, verifier=RejectionSampling()),
        "drawn": Decoder(model, DraftModel(draft), DySpecGreedy(40), RejectionSampling()),
        "guessed": Decoder(model, guess, KConfig([8, 2]), RejectionSampling()),
    }
    return [DecoderArm(name, decoder, tokenizer, Generation(max_new_tokens=16)) for name, decoder in decoders.items()]


def watch(analysis: Analysis | None, arms: Sequence[DecoderArm], check_outcomes: bool = False) -> list[PromptRecord]:
    """Decode two prompts with each arm and return the records.

    An analysis that does not watch steps receives groups of one sequence and time lines, both built from the records.
    """
    if analysis is not None:
        analysis.begin({arm.name: arm.decoder.parts for arm in arms})
        for arm in arms:
            look = partial(analysis.observe, arm.name)
            arm.observers = [partial(_look_only, look) if check_outcomes else look]
    records = []
    for prompt in PROMPTS:
        for arm in arms:
            record = arm.decode(prompt)
            if analysis is not None and not analysis.watches_steps:
                timeline = made_time_line(record)
                before = list(timeline)
                analysis.observe_run(arm.name, prompt.prompt_id, timeline)
                assert list(timeline) == before, "an analysis must not change a time line"
                record = replace(record, group=made_group(record, timeline))
            records.append(record)
    return records


@lru_cache(maxsize=1)  # the tests of a class run one after another
def _watched(contract: type[AnalysisContract]) -> tuple[Analysis, list[PromptRecord], Report]:
    analysis = contract().make_analysis()
    records = watch(analysis, make_arms())
    return analysis, records, analysis.report(records)


@cache
def _unwatched() -> list[tuple[int, ...]]:
    return [record.token_ids for record in watch(None, make_arms())]


def made_time_line(record: PromptRecord) -> TimeLine:
    """Return a time line with a prefill, then a draft, target pass and decision per step. Drafts overlap prior work."""
    line, at, length = TimeLine(), 0.002, 0.001  # seconds
    line.start = 0.0
    line.add(TARGET, "prefill", 0.0, at, "only", record.prompt_tokens)
    for step in range(round(record.steps)):
        if record.drafted_nodes:
            line.add("draft 1", "draft", at - length / 2, at, "only", 4)
        line.add(TARGET, "target", at, at + length, "only", 5, step)
        line.add(TARGET, "resample" if step % 2 else "verify", at + length, at + 1.1 * length, "only", 1, step)
        at += 1.5 * length
    line.end = at
    return line


def made_group(record: PromptRecord, timeline: TimeLine) -> SequenceGroup:
    """Return a single-sequence group built from a record and its time line."""
    role = Role(
        sequences=1,
        tokens=record.new_tokens,
        steps=round(record.steps),
        accepted_drafts=round(record.accepted_drafts),
        drafted_nodes=round(record.drafted_nodes),
        draft_passes=round(record.draft_passes),
        prefill_seconds=record.prefill_seconds,
        decode_seconds=record.decode_seconds,
    )
    return SequenceGroup(1, timeline.seconds, timeline.busy(TARGET, BUSY), {"generator": role}, correct=False)


def _look_only(look: Any, outcome: Outcome) -> None:
    """Observe a step and check that the arrays in its outcome remain unchanged."""
    before = [array.copy() for array in _arrays(outcome)]
    look(outcome)
    assert all((one == other).all() for one, other in zip(before, _arrays(outcome), strict=True))


def _arrays(outcome: Outcome) -> Iterator[Any]:
    tree = outcome.tree
    yield outcome.logits.numpy(force=True)
    yield from (tree.tokens, tree.shape.parents, tree.shape.ranks)
    yield from (array for array in (tree.log_probs, tree.kinds) if array is not None)
    yield from (tree.q or {}).values()


def texts(report: Report) -> dict[str, str]:
    """Return all tables and files of a report as text, keyed by name."""
    return {**{name: table.to_csv() for name, table in report.tables.items()}, **report.files}
