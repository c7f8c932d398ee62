"""Drafting and verifying really happen at the same time, and the draft model's weights are there once."""

from pathlib import Path

import pytest
import torch
from helpers.pauses import Pause
from helpers.toy_schedules import PARTS, PausingTarget, pausing
from transformers import LlamaConfig, LlamaForCausalLM

from specexp.builders import Chain
from specexp.core.language_model import LanguageModel
from specexp.core.parts import Parts
from specexp.drafters import DraftModel
from specexp.scheduling import Batched, Job, Scheduled, SerialSpeculative
from specexp.scheduling.timeline import BUSY, TARGET

JOBS = [Job((1, 2), number, 12) for number in range(4)]
pytestmark = pytest.mark.timeout(120)


def hidden(timeline):
    """Sequences whose draft was under way during a target pass, and whose pass it was."""
    passes = [span for span in timeline if span.who == TARGET and span.what == "target"]
    drafts = [span for span in timeline if span.what == "draft"]
    return [
        (one.sequence, other.sequence)
        for one in passes
        for other in drafts
        if one.start < other.end and other.start < one.end
    ]


def run_of(execution, ms=3):
    parts = pausing(PARTS["lookup"](), Pause(ms, ms))
    with execution.open(PausingTarget(Pause(ms, ms)), parts) as executor:
        return executor.run(JOBS)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, "thread"])
def test_drafts_are_made_while_the_target_verifies_others(workers):
    run = run_of(Scheduled(3, workers=workers))
    pairs = hidden(run.timeline)
    assert pairs
    assert all(verified != drafted for verified, drafted in pairs)
    assert 0 < run.timeline.busy(TARGET, BUSY) <= run.timeline.seconds


@pytest.mark.parametrize("execution", [SerialSpeculative(), Batched(3)], ids=lambda one: type(one).__name__)
def test_nothing_overlaps_in_one_thread(execution):
    run = run_of(execution, ms=0)
    assert hidden(run.timeline) == []


def large_draft():
    """Random, 60 MB of weights; a cache of 256 rows takes 1 MB."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=6, hidden_size=512, intermediate_size=2048, num_hidden_layers=4, num_attention_heads=8,
        num_key_value_heads=2, max_position_embeddings=512,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def private_bytes(pid):
    """What a process holds for itself alone."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="looks into /proc")
def test_lanes_cost_caches_and_no_weights():
    known, held, draft = [], [], large_draft()
    prompt = tuple(number % 5 for number in range(240))
    for n in (1, 6):
        parts = Parts(DraftModel(LanguageModel(draft, self_check=False).model), Chain(2))
        with Scheduled(n).open(PausingTarget(Pause(0)), parts) as executor:
            executor.run([Job(prompt, number, 3) for number in range(6)])
            known.append(executor.memory())
            held.append(private_bytes(executor.workers[0]._process.pid))
    weights = sum(parameter.nbytes for parameter in draft.parameters())
    assert known[0]["weights"] == known[1]["weights"] == pytest.approx(weights, rel=0.01)
    assert known[1]["caches"] == 6 * known[0]["caches"]
    assert held[1] - held[0] < known[1]["caches"] - known[0]["caches"] + weights / 2
