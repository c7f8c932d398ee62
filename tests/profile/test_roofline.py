"""The limits of passes are figures that one can compute by hand, and the verdict names what binds."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from specexp.artifacts.kinds.latency_profile import Measured, MeasuredPass, Roofline
from specexp.core.latency import LatencyProfile
from specexp.profile import roofline
from specexp.profile.report import report
from specexp.profile.roofline import changed, limit_samples, multiplied, roofline_of, verdict

pytestmark = pytest.mark.unit

# 100 M parameters in bfloat16 at 20 GB/s: 10 ms; each row 0.2 GFLOP at 100 GFLOP/s: 2 ms
MADE = Roofline(100_000_000, 200_000_000, 20e9, 20e9, 100e9)
ROWS = LatencyProfile("made", {1: 11.0, 2: 11.0, 4: 12.0, 8: 22.0, 16: 44.0}, source="measured")


def test_a_pass_reads_the_weights_or_multiplies_whichever_is_longer():
    assert [MADE.least_ms(rows) for rows in (1, 5, 6, 16)] == pytest.approx([10, 10, 12, 32])


@pytest.mark.parametrize(("flops", "nodes"), [(100e9, 5), (50e9, 2), (1e9, 0), (10e12, 624)])
def test_nodes_are_free_at_the_limits_up_to_a_quarter_more_than_one_token(flops, nodes):
    made = Roofline(100_000_000, 200_000_000, 20e9, 20e9, flops)
    assert made.free_nodes == nodes
    assert made.least_ms(nodes + 1) <= 1.25 * made.least_ms(1) < made.least_ms(nodes + 2)


def test_nodes_are_free_up_to_the_last_measured_size_that_costs_a_quarter_more():
    assert ROWS.free_nodes == 3  # 5 rows, interpolated, take 14.5 ms of the 13.75
    assert LatencyProfile("steep", {1: 10.0, 2: 13.0}).free_nodes == 0
    assert LatencyProfile("flat", {1: 10.0, 16: 10.0}).free_nodes == 15


def test_the_verdict_is_one_sentence_on_rows_their_cause_and_free_nodes():
    assert verdict(ROWS, MADE) == (
        "8 rows cost 2.0 passes here; the weights (200 MB) do not fit the cache (20 GB/s), so drafting is nearly free "
        "up to 3 nodes, and at the machine's limits up to 5."
    )
    cached = Roofline(100_000_000, 200_000_000, 40e9, 20e9, 100e9)
    assert "(200 MB) fit the cache (read at 40 GB/s, memory at 20 GB/s), so" in verdict(ROWS, cached)
    assert "limits up to 2." in verdict(ROWS, cached)


def test_the_report_has_the_limit_of_each_number_of_rows():
    points = [MeasuredPass(rows, 64, ms, ms, ms) for rows, ms in ROWS.target_ms.items()]
    measured = Measured("made", 2, "bfloat16", None, points, [], replace(MADE, bandwidths=(10e9, 20e9)))
    experts = {"model": {"num_experts": 128, "num_experts_per_tok": 8}}
    artifact = SimpleNamespace(metrics={}, folder="made", name="made", kind="latency-profile", fingerprint=experts)
    found = report(ROWS, measured, [], artifact)
    assert found.sentences[0] == verdict(ROWS, MADE)
    assert found.sentences[1].startswith("The bandwidth changed between 10 and 20 GB/s")
    assert found.sentences[2].startswith("Each row uses 8 of 128 experts")
    rows = {row[0]: row[1:] for row in found.tables["rows"].rows}
    assert rows[8] == pytest.approx([22.0, 2.0, 16.0, 22 / 16])
    assert rows[1] == pytest.approx([11.0, 1.0, 10.0, 1.1])


def test_the_limits_are_medians_of_bytes_and_products_by_time(monkeypatch):
    monkeypatch.setattr(roofline, "_BEYOND", 2**16)
    linear = torch.nn.Linear(1024, 8, bias=False)
    linear.get_input_embeddings = linear.get_output_embeddings = lambda: linear
    samples = limit_samples(linear)
    milliseconds = ([1000.0, 2000.0, 9000.0], [4000.0] * 3, [500.0] * 3, [700.0] * 3)
    samples.milliseconds = {(0, job): taken for job, taken in enumerate(milliseconds)}
    found = roofline_of(samples)
    spread = pytest.approx((32768 / 7.6, 32768 / 1.2))  # by the 90th and 10th percentile of 1, 2 and 9 s
    assert found.bandwidths == spread
    expected = Roofline(8192, 32768, 32768 / 2, 2**16 / 4, 2 * 1024**3 / 0.5)
    assert replace(found, bandwidths=None) == expected


@pytest.mark.parametrize(
    ("slow", "fast", "sentence"),
    [
        (33e9, 41e9, ""),
        (
            33e9,
            61e9,
            "The bandwidth changed between 33 and 61 GB/s during the run, so times of rows are not comparable: "
            "measure again.",
        ),
    ],
)
def test_a_bandwidth_that_changes_during_the_run_is_one_sentence(slow, fast, sentence):
    assert changed(replace(MADE, bandwidths=(slow, fast))) == sentence
    assert changed(MADE) == ""  # a profile of before


@pytest.mark.slow
def test_limits_are_measured_like_passes(monkeypatch):
    monkeypatch.setattr(roofline, "_BEYOND", 2**16)
    linear = torch.nn.Linear(1024, 8, dtype=torch.bfloat16)
    linear.get_input_embeddings = linear.get_output_embeddings = lambda: linear
    samples = limit_samples(linear)
    for block in samples.blocks(0):
        block()
    assert roofline_of(samples).weight_bytes == 16384
    assert limit_samples("a file of another engine") is None


@pytest.mark.parametrize("tied", [True, False])
def test_an_embedding_table_is_multiplied_only_if_it_is_the_output_layer(tied):
    model = torch.nn.Module()
    model.table, model.head = torch.nn.Embedding(5, 3), torch.nn.Linear(3, 5)  # the bias is no matrix
    if tied:
        model.head.weight = model.table.weight
    model.get_input_embeddings, model.get_output_embeddings = lambda: model.table, lambda: model.head
    assert [id(one) for one in multiplied(model)] == [id(model.head.weight)]
