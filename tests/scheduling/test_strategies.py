"""Every strategy keeps the promises of its family; :mod:`test_schedules` shows them for all policies and sizes."""

import os
from time import monotonic, sleep

import pytest
from helpers.execution_contract import DraftingExecutionContract, ExecutionContract
from helpers.pauses import Pause
from helpers.small_models import small_model
from helpers.toy_schedules import PARTS, PausingTarget, pausing

from specexp.builders import Chain
from specexp.core.language_model import LanguageModel, runtime_for
from specexp.core.parts import Parts
from specexp.drafters import PromptLookup, TokenRecycling
from specexp.scheduling import Batched, Job, LeastProgress, Scheduled, Serial, SerialSpeculative
from specexp.scheduling.timeline import TARGET
from specexp.testing.fakes import counting_model
from specexp.verifiers import KeyedSampling


def contract_of(contract, make, concurrent=True):
    fixture = pytest.fixture(lambda self: make(), name="execution")
    return type(contract.__name__, (contract,), {"execution": fixture, "concurrent": concurrent})


TestSerial = contract_of(ExecutionContract, Serial, concurrent=False)
TestSerialSpeculative = contract_of(DraftingExecutionContract, lambda: SerialSpeculative(threads=1), concurrent=False)
TestBatched = contract_of(DraftingExecutionContract, lambda: Batched(3))
TestScheduledOverAThread = contract_of(
    DraftingExecutionContract, lambda: Scheduled(8, LeastProgress(), verify_batch=4, workers="thread", threads=1)
)
TestScheduledOverAProcess = contract_of(DraftingExecutionContract, lambda: Scheduled(3))
TestScheduledOverSeveralProcesses = pytest.mark.slow(
    contract_of(DraftingExecutionContract, lambda: Scheduled(3, verify_batch=2, workers=2))
)
STRATEGIES = [Serial(), SerialSpeculative(), Batched(2), Scheduled(2, workers="thread")]


@pytest.mark.parametrize("execution", STRATEGIES, ids=lambda one: type(one).__name__)
def test_a_sequence_ends_where_it_begins_to_repeat(execution):
    parts = Parts() if isinstance(execution, Serial) else Parts(PromptLookup(), Chain(5))
    jobs = [Job((0, 1, 2), name, 40, stop_at_repetition=name != "c") for name in "abc"]
    with execution.open(LanguageModel(counting_model(4), self_check=False), parts) as executor:
        found = executor.run(jobs).results
    assert [one.finish_reason for one in found] == ["repetition", "repetition", "length"]
    assert [one.token_ids for one in found] == [[3, 0, 1, 2] * 6, [3, 0, 1, 2] * 6, [3, 0, 1, 2] * 10]


class Meeting:
    """A pause that ends once ``parties`` processes are in it at the same moment; each is a file in ``folder``."""

    def __init__(self, folder, parties):
        self.folder, self.parties = folder, parties

    def __call__(self):
        (self.folder / str(os.getpid())).touch()
        until = monotonic() + 60
        while len(list(self.folder.iterdir())) < self.parties:
            assert monotonic() < until, "no other worker drafted while this one did"
            sleep(0.001)


@pytest.mark.variants(1)
@pytest.mark.parametrize("workers", [1, 2])
def test_every_worker_drafts_for_its_share_of_the_sequences_at_the_same_time(workers, tmp_path):
    """No draft ends before every worker is in one, so workers that drafted in turn would never get past the first."""
    parts = pausing(PARTS["chain"](), Meeting(tmp_path, workers))
    jobs = [Job((0, 1, 2), number, 8) for number in range(4)]
    with Scheduled(4, workers=workers).open(PausingTarget(Pause(0)), parts) as executor:
        found = executor.run(jobs)
    assert len(found.results) == 4
    processes = {path.name for path in tmp_path.iterdir()}
    assert len(processes) == workers
    assert str(os.getpid()) not in processes


HEAD = tuple(range(20, 50))
BRANCHES = [Job((*HEAD, *tail), number, 8) for number, tail in enumerate(((1, 2), (1, 3), (4,), (1, 2)))]
EXECUTIONS = {
    "serial": (Serial(), [31, 0, 0, 1]),
    "serial speculative": (SerialSpeculative(), [31, 0, 0, 1]),
    "batched": (Batched(2), [31, 0, 0, 0]),  # the last prompt is still held
    "scheduled": (Scheduled(2, workers="thread"), [31, 0, 0, 0]),
}


@pytest.mark.variants(2)
@pytest.mark.parametrize("name", EXECUTIONS)
def test_prompts_share_the_prefill_of_what_they_have_in_common_and_give_the_same_tokens(name):
    execution, fed = EXECUTIONS[name]
    parts, target = PARTS["recycling"]()._replace(verifier=KeyedSampling()), runtime_for(small_model("Llama"))
    parts = parts._replace(drafter=TokenRecycling(k=2, prefill_update=False))
    target.independent_rows = True  # otherwise only equal prompts share

    def run(executor, jobs):
        found = executor.run(jobs)
        spans = [span.tokens for span in found.timeline if span.what == "prefill" and span.who == TARGET]
        return [tuple(result.token_ids) for result in found.results], spans

    alone = []
    for job in BRANCHES:
        with execution.open(target, parts) as executor:
            (tokens,), (rows,) = run(executor, [job])
            alone.append(tokens)
            assert rows == len(job.prompt) - 1
    with execution.open(target, parts) as executor:
        assert run(executor, BRANCHES) == (alone, fed)
        assert run(executor, BRANCHES) == (alone, fed)  # the weights may have changed between two runs
