"""A profile is held against live decoding, and what is off comes first."""

from types import SimpleNamespace

import numpy as np
import pytest

from specexp.core.latency import LatencyProfile, Overhead
from specexp.profile.check import check_live, check_table, checks_of, headline

PROFILE = LatencyProfile("made", {1: 2.0, 16: 8.0}, overheads={"plain": Overhead(token_ms=1.0)})


class LiveArm:
    """Takes 2 ms per token; notes when it was decoded."""

    def __init__(self, name, nodes, notes, composition="plain"):
        self.arm = SimpleNamespace(name=name, reset=lambda: None)
        self.composition, self.notes = composition, notes
        self.steps = [SimpleNamespace(tokens=nodes + 1)] * 3

    def priced(self, prompt, max_new_tokens, profile):
        self.notes.append((prompt, self.arm.name))
        return 1e3 * profile.of(self.composition).step_seconds(1), 2.0


def test_plain_decoding_and_the_trees_nearest_to_4_and_16_nodes_are_decoded_prompt_by_prompt():
    notes = []
    names = {"plain": 0, "2 nodes": 2, "5 nodes": 5, "14 nodes": 14, "64 nodes": 64}
    timed = SimpleNamespace(name="", arms=[LiveArm(name, nodes, notes) for name, nodes in names.items()])
    checks = check_live(timed, PROFILE, ["first", "second"], 8)
    chosen = ["plain", "5 nodes", "14 nodes"]
    assert notes == [(prompt, name) for prompt in ("first", "second") for name in chosen]
    assert [check.arm for check in checks] == chosen
    assert checks[0].off.ratio == pytest.approx(1.5)
    assert checks[0].error == pytest.approx(0.5)


def test_a_profile_of_cold_passes_is_said_to_be_off_first_with_both_speedups():
    """Plain decoding at twice its price, and a tree within 2 %: the speedup is what is wrong."""
    noise = np.array([[0.9], [1.0], [1.1]])
    live = noise * [0.43, 0.62]
    ms = np.stack((noise * [0.84, 0.63], live), axis=2)
    checks = checks_of(["plain decoding", "a chain"], ms)
    said = headline(checks)
    assert said.startswith(
        "The profile is off live decoding by more than 10 %: it prices plain decoding at 1.95x"
    )
    assert (
        "a chain at 1.02x [1.02, 1.02] of its live time (speedup 1.33x [1.33, 1.33] predicted, 0.69x" in said
    )
    table = check_table(checks)
    assert table.title == "The profile is off live decoding by more than 10 %"
    assert [row[0] for row in table.rows] == ["plain decoding", "a chain"]


def test_a_profile_within_the_tolerance_is_said_to_be():
    checks = checks_of(["plain decoding", "a chain"], np.array([[[1.05, 1.0], [2.0, 2.0]]] * 2))
    assert headline(checks) == "The profile is within 10 % of live decoding."
    opposite = checks_of(["plain decoding", "a chain"], np.array([[[1.06, 1.0], [1.88, 2.0]]] * 2))
    assert "a chain at 0.94x" in headline(opposite)
    assert "plain decoding at" not in headline(opposite)
