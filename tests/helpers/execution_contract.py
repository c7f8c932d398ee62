"""Conformance tests for execution strategies, to be inherited by the tests of any implementation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

from helpers.pauses import Pause, PausingDrafter
from specexp.builders import Chain, DySpecGreedy, Graft, KConfig, StaticTree
from specexp.controllers import QLearning
from specexp.core.contracts import Verifier
from specexp.core.language_model import LanguageModel
from specexp.core.loop import Decoder
from specexp.core.outcome import Outcome
from specexp.core.parts import Parts
from specexp.drafters import DraftModel, PhraseCache, PromptLookup, TokenRecycling, Union
from specexp.scheduling import Execution, Executor, Job, Run, SerialSpeculative
from specexp.scheduling.timeline import TARGET
from specexp.testing.fakes import FakeCausalLM, FakeDrafter, hashed_model
from specexp.verifiers import Greedy, KeyedSampling, RejectionSampling

VOCABULARY = 12
EOS = (6,)
TREE = [[0], [1], [0, 0], [0, 1], [1, 0]]


_BIGRAMS = 2.5 * np.random.default_rng(2).standard_normal((VOCABULARY, VOCABULARY))  # logits after each token
_NOISE = hashed_model(VOCABULARY, seed=2)


def two_in_a_row(tokens: Sequence[int]) -> bool:
    """Return whether an output ends with the same token twice."""
    return len(tokens) > 1 and tokens[-1] == tokens[-2]


JOBS = (
    Job((1, 2, 3, 1, 2), "a", max_new_tokens=12),
    Job((1, 2, 3, 1, 2), "b", max_new_tokens=12),  # shares the prefill of "a"
    Job((7,), 0, max_new_tokens=1),
    Job((4, 5, 6, 7, 8, 9, 4, 5), "c", max_new_tokens=14, stop=two_in_a_row),
    Job((9, 8), "d", max_new_tokens=5),
    Job((1, 2, 3, 1, 2), "e", max_new_tokens=12),
    Job((9, 9, 3, 5), "f", max_new_tokens=9),
)
"""Jobs with shared and distinct prompts. One has a one-token prompt and output; another has a stop condition."""


def target_model(pause: Callable[[], None] = lambda: None) -> FakeCausalLM:
    """Return a target with logits that depend mostly on the last token; ``pause`` is called before each row."""

    def next_logits(tokens: tuple[int, ...]) -> list[float]:
        pause()
        return _logits_of(_BIGRAMS, 0.6, _NOISE, tokens)

    return FakeCausalLM(next_logits, VOCABULARY)


def draft_model() -> FakeCausalLM:
    """Return a draft model that shares the part of the target's logits that depends only on the last token."""
    # right often enough that drafts are accepted, and wrong often enough that some are rejected
    return FakeCausalLM(partial(_logits_of, _BIGRAMS, 0.8, hashed_model(VOCABULARY, seed=3)), VOCABULARY)


def _logits_of(bigrams: NDArray[np.float64], share: float, noise: FakeCausalLM, tokens: tuple[int, ...]) -> list[float]:
    logits: list[float] = (bigrams[tokens[-1]] + share * np.array(noise.next_logits(tokens))).tolist()
    return logits


def _phrases() -> Parts:
    drafter = PhraseCache(DraftModel(draft_model()), phrase_length=3, state="carry", initialisation="prompt")
    return Parts(drafter, Graft(Chain(3), 2, 2, 3), None, QLearning(warm_up=10, calibrate=6))


COMPOSITIONS: dict[str, Callable[[], Parts]] = {
    "chain": lambda: Parts(DraftModel(draft_model()), Chain(3)),
    "k-config": lambda: Parts(DraftModel(draft_model()), KConfig([2, 2, 1])),
    "dynamic tree": lambda: Parts(DraftModel(draft_model()), DySpecGreedy(6, candidates="top-k")),
    "coupled": lambda: Parts(DraftModel(draft_model(), coupled=True), Chain(3)),
    "recycling, cold": lambda: Parts(TokenRecycling(k=2), StaticTree(TREE)),
    "recycling, carry": lambda: Parts(TokenRecycling(k=2, state="carry"), StaticTree(TREE)),
    "phrases and Q-learning, carry": _phrases,
    "lookup": lambda: Parts(PromptLookup(), Chain(3)),
    "union": lambda: Parts(Union([PromptLookup(), TokenRecycling(k=2)]), StaticTree(TREE)),
}
"""Compositions, keyed by name. Those with *carry* in the name share learned state between sequences."""
DRAWN: dict[str, Callable[[], Parts]] = {
    "chain, drawn": lambda: Parts(DraftModel(draft_model()), Chain(3, candidates="drawn")),
    "k-config, drawn": lambda: Parts(DraftModel(draft_model()), KConfig([2, 2, 1], candidates="drawn")),
    "dynamic tree, drawn": lambda: Parts(DraftModel(draft_model()), DySpecGreedy(6)),
}
VERIFIERS: dict[str, Callable[[], Verifier]] = {"greedy": Greedy, "keyed": lambda: KeyedSampling(0.9)}


@cache
def plain_outputs(verifier: str) -> tuple[tuple[int, ...], ...]:
    """Return plain decoding's outputs for :data:`JOBS`."""
    decoder = Decoder(target_model(), verifier=VERIFIERS[verifier]())
    outputs = []
    for job in JOBS:
        tokens = decoder.generate(
            job.prompt, max_new_tokens=job.max_new_tokens, eos_token_id=EOS, seed=0, sequence=job.sequence
        ).token_ids
        ends = [end for end in range(1, len(tokens) + 1) if job.stop is not None and job.stop(tokens[:end])]
        outputs.append(tuple(tokens[: min(ends, default=len(tokens))]))
    return tuple(outputs)


@cache
def rejection_sampled(composition: str) -> tuple[tuple[int, ...], ...]:
    """Return a composition's outputs with rejection sampling, when sequences are decoded one at a time."""
    parts = DRAWN[composition]()._replace(verifier=RejectionSampling(1.0))
    with SerialSpeculative().open(LanguageModel(target_model()), parts) as executor:
        return outputs_of(executor.run(JOBS, eos_token_ids=EOS))


def outputs_of(run: Run) -> tuple[tuple[int, ...], ...]:
    """Return the output tokens of each sequence in a run."""
    return tuple(tuple(result.token_ids) for result in run.results)


def opened(execution: Execution, parts: Parts) -> Executor:
    """Return an executor for these parts and a new target."""
    return execution.open(LanguageModel(target_model()), parts)


class ExecutionContract:
    """Base class for execution strategy tests. Subclasses define the fixture ``execution``.

    Attributes:
        concurrent: whether several sequences are decoded at once, so that the order in which they update shared state
            depends on timing.
    """

    concurrent: ClassVar[bool] = True

    @pytest.mark.parametrize("composition", COMPOSITIONS)
    def test_tokens_are_those_of_plain_decoding(self, execution: Execution, composition: str) -> None:
        """The second run starts with the state learned in the first run."""
        parts = COMPOSITIONS[composition]()
        for name, verifier in VERIFIERS.items():
            with opened(execution, parts._replace(verifier=verifier())) as executor:
                assert outputs_of(executor.run(JOBS, eos_token_ids=EOS)) == plain_outputs(name)
                if name == "keyed" and "carry" in composition:
                    assert outputs_of(executor.run(JOBS[::-1], eos_token_ids=EOS)) == plain_outputs(name)[::-1]

    @pytest.mark.parametrize("composition", ["recycling, carry", "phrases and Q-learning, carry"])
    def test_what_is_drawn_must_not_depend_on_timing(self, execution: Execution, composition: str) -> None:
        """Rejection sampling must not share learned state across sequences, because its draws depend on the draft."""
        parts = COMPOSITIONS[composition]()._replace(verifier=RejectionSampling(1.0))
        if not self.concurrent:
            execution.check(parts)
            pytest.skip("sequences run one after the other, so shared state does not depend on timing")
        with pytest.raises(ValueError, match="shares what it learns between the sequences"):
            execution.check(parts)
        with pytest.raises(ValueError, match="shares what it learns between the sequences"):
            opened(execution, parts)

    @pytest.mark.parametrize("composition", ["k-config", "recycling, cold"])
    def test_counts_and_seconds_add_up(self, execution: Execution, composition: str) -> None:
        """A result's tokens are its accepted drafts and bonus tokens. The time line includes all steps and nodes."""
        with opened(execution, COMPOSITIONS[composition]()) as executor:
            run = executor.run(JOBS, eos_token_ids=EOS)
        for job, result in zip(JOBS, run.results, strict=True):
            assert len(result.token_ids) == result.accepted_drafts + result.bonus_tokens <= job.max_new_tokens
            assert result.bonus_tokens <= result.steps
            assert result.accepted_drafts <= result.drafted_nodes
            assert min(result.seconds.values()) >= 0
            decided = [span for span in run.timeline if span.what in ("verify", "resample")]
            own = [span for span in decided if span.sequence == str(job.sequence)]
            assert len(own) == result.steps
            assert sum(span.tokens for span in own) == result.accepted_drafts
        fed = sum(span.tokens for span in run.timeline if span.what == "target")
        assert fed == sum(result.steps + result.drafted_nodes for result in run.results)
        drafted = any(result.drafted_nodes for result in run.results)
        assert drafted == isinstance(self, DraftingExecutionContract)  # strategies that draft inherit it

        timeline = run.timeline
        assert run.prefill_seconds + run.decode_seconds == pytest.approx(timeline.seconds)
        assert min(run.seconds.values()) >= -1e-9
        assert 0 < run.prefill_seconds < timeline.seconds
        assert 0 < timeline.utilisation() <= 1
        assert timeline.start is not None
        assert timeline.end is not None
        for who in {span.who for span in timeline}:  # a worker's spans do not overlap, and lie within the run
            own = sorted((span for span in timeline if span.who == who), key=lambda span: span.start)
            ends = [timeline.start, *(span.end for span in own)]
            assert all(end <= span.start <= span.end for end, span in zip(ends, own, strict=False))
            assert ends[-1] <= timeline.end
        rounds = [span.round for span in timeline if span.who == TARGET and span.what == "target"]
        assert rounds == list(range(len(rounds)))

    def test_results_have_the_order_of_the_jobs(self, execution: Execution) -> None:
        jobs = [Job((1, 2, 3), number, max_new_tokens=20 - 3 * number) for number in range(6)]
        with opened(execution, COMPOSITIONS["chain"]()) as executor:
            results = executor.run(jobs).results
            assert [len(result.token_ids) for result in results] == [job.max_new_tokens for job in jobs]
            assert [executor.finished[job.sequence] for job in jobs] == [*results]

    @pytest.mark.parametrize("composition", ["dynamic tree", "recycling, cold", "recycling, carry"])
    def test_after_a_reset_a_run_repeats_the_first(self, execution: Execution, composition: str) -> None:
        """A reset clears the learned state. If sequences do not share state, the steps are the same too."""
        with opened(execution, COMPOSITIONS[composition]()) as executor:
            runs = [executor.run(JOBS)]
            executor.reset()
            runs.append(executor.run(JOBS))
        assert outputs_of(runs[0]) == outputs_of(runs[1])
        if "carry" not in composition or not self.concurrent:
            first, again = ([(one.steps, one.drafted_nodes, one.draft_passes) for one in run.results] for run in runs)
            assert first == again

    def test_saved_state_is_continued_from(self, execution: Execution) -> None:
        drafter = TokenRecycling(k=2, state="carry")
        drafter.check_vocabulary(VOCABULARY)
        with opened(execution, Parts(drafter, StaticTree(TREE))) as executor:
            executor.reset(drafter.state_dict())
            assert outputs_of(executor.run(JOBS, eos_token_ids=EOS)) == plain_outputs("greedy")

    def test_observers_see_every_step(self, execution: Execution) -> None:
        seconds: list[float] = []
        observed: dict[int | str, list[int]] = {job.sequence: [] for job in JOBS}

        def look(outcome: Outcome) -> None:
            observed[outcome.context.sequence] += outcome.new_token_ids
            seconds.append(outcome.seconds["target"])

        with opened(execution, DRAWN["chain, drawn"]()) as executor:
            run = executor.run(JOBS, eos_token_ids=EOS, observers=[look])
            with pytest.raises(PermissionError, match="enough"):
                executor.run(JOBS, observers=[_refuse])
            assert executor.closed
        assert tuple(map(tuple, observed.values())) == outputs_of(run)
        assert len(seconds) == sum(result.steps for result in run.results)
        assert min(seconds) > 0

    def test_wrong_jobs_are_refused_before_any_is_run(self, execution: Execution) -> None:
        refused: list[tuple[list[Job], str]] = [
            ([], "there is no job to run"),
            ([Job((1,), 3), Job((2,), 3)], "two jobs are of sequence 3"),
            ([Job((1,), "a"), Job((), "b")], "sequence 'b': the prompt is empty"),
            ([Job((1,) * 600, "a")], "sequence 'a': the prompt has 600 tokens"),
            ([Job((VOCABULARY,), "a")], "sequence 'a': the prompt holds token id 12"),
            ([Job((1,), "a", max_new_tokens=0)], "sequence 'a': max_new_tokens must be an integer >= 1, got 0"),
        ]
        with opened(execution, COMPOSITIONS["lookup"]()) as executor:
            for jobs, message in refused:
                with pytest.raises(ValueError, match=message):
                    executor.run(jobs)
            assert outputs_of(executor.run(JOBS, eos_token_ids=EOS)) == plain_outputs("greedy")

    def test_parts_that_do_not_go_together_are_refused(self, execution: Execution) -> None:
        with pytest.raises(ValueError, match="asks for 2 candidates a node"):
            opened(execution, Parts(PromptLookup(), StaticTree([[0], [1]])))

    def test_a_closed_executor_is_not_used(self, execution: Execution) -> None:
        executor = opened(execution, COMPOSITIONS["chain"]())
        executor.close()
        executor.close()  # closing twice is allowed
        for use in (lambda: executor.run(JOBS), executor.reset, executor.memory):
            with pytest.raises(RuntimeError, match="was closed"):
                use()

    def test_a_target_that_fails_ends_the_run_with_its_own_error(self, execution: Execution) -> None:
        def fail_once_a_sequence_has_ended() -> None:
            if started and started[0].finished:
                raise RuntimeError("the target was to fail")

        started: list[Executor] = []  # filled below: the model is created before its executor
        broken = LanguageModel(target_model(fail_once_a_sequence_has_ended))
        with execution.open(broken, COMPOSITIONS["chain"]()) as executor:
            started.append(executor)
            with pytest.raises(RuntimeError, match="was to fail"):
                executor.run(JOBS, eos_token_ids=EOS)
            assert executor.closed
            assert 0 < len(executor.finished) < len(JOBS)
            for job, tokens in zip(JOBS, plain_outputs("greedy"), strict=True):
                if job.sequence in executor.finished:
                    assert tuple(executor.finished[job.sequence].token_ids) == tokens

    def test_pauses_change_nothing(self, execution: Execution) -> None:
        for number, (draft_ms, target_ms) in enumerate([(1.0, 0.0), (0.0, 0.3), (0.5, 0.2)]):
            parts = COMPOSITIONS["lookup"]()
            drafter = PausingDrafter(PromptLookup(), Pause(draft_ms, seed=number))
            model = LanguageModel(target_model(Pause(target_ms, seed=number)))
            with execution.open(model, parts._replace(drafter=drafter)) as executor:
                assert outputs_of(executor.run(JOBS, eos_token_ids=EOS)) == plain_outputs("greedy")


class DraftingExecutionContract(ExecutionContract):
    """Additional tests for strategies that use the drafter."""

    @pytest.mark.parametrize("composition", DRAWN)
    def test_rejection_sampling_gives_the_same_tokens(self, execution: Execution, composition: str) -> None:
        parts = DRAWN[composition]()._replace(verifier=RejectionSampling(1.0))
        with opened(execution, parts) as executor:
            assert outputs_of(executor.run(JOBS, eos_token_ids=EOS)) == rejection_sampled(composition)

    def test_a_drafter_that_fails_ends_the_run_with_its_own_error(self, execution: Execution) -> None:
        """A note on the error names the sequence. The closed executor keeps the results of finished sequences."""
        jobs = [Job((3,), "long", max_new_tokens=60), *JOBS]
        drafter = FakeDrafter(partial(_no_more_than, 50))
        with opened(execution, Parts(drafter, Chain(2))) as executor:
            with pytest.raises(LookupError, match="nothing after 50 tokens") as raised:
                executor.run(jobs)
            assert executor.closed
            assert "raised while drafting for sequence 'long'" in raised.value.__notes__
            assert "long" not in executor.finished

    def test_a_state_that_a_part_does_not_take_is_refused(self, execution: Execution) -> None:
        drafter = TokenRecycling(k=2, state="carry")
        drafter.check_vocabulary(VOCABULARY)
        parts = Parts(drafter, StaticTree(TREE))
        with opened(execution, parts) as executor, pytest.raises(ValueError, match="'matrix'"):
            executor.reset({"nothing": 1})


def _refuse(outcome: Outcome) -> None:
    raise PermissionError("enough was seen")


def _no_more_than(most: int, tokens: tuple[int, ...]) -> list[int]:
    if len(tokens) > most:
        raise LookupError(f"nothing after {most} tokens")
    return [tokens[-1]]
