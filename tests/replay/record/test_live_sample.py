"""What replay is held against live, and what that says of what was not."""

from specexp.builders import DySpecGreedy, ParametricTree, StaticTree
from specexp.replay.format.recording import RecordingManifest
from specexp.replay.play.fidelity import fidelity_note
from specexp.replay.record.live_sample import trees_between


def test_between_two_recorded_trees_stands_one_of_nodes_of_the_larger():
    builders = [
        ParametricTree(nodes=36, depth=5),
        DySpecGreedy(8, candidates="top-k"),
        ParametricTree(nodes=4),
    ]

    (small, _), (large, name) = trees_between(builders)

    assert len(small) == 2
    assert len(large) == 12
    assert name == "12 of the 36 nodes, not recorded"
    wide = ParametricTree(nodes=36, depth=5).rank_paths
    assert all(path in wide for path in StaticTree(large).rank_paths)


def test_the_sample_speaks_for_compositions_of_its_own_fidelity_alone():
    row = {"composition": "Chain", "fidelity": "exact", "relative_error": -0.03}
    manifest = RecordingManifest({}, {"pair": {"target_dtype": "bfloat16"}}, 7, {}, live_sample=[row])

    assert fidelity_note("exact", manifest).endswith("was at most -3.00 % tokens per step")
    assert fidelity_note("approximate (it learns)", manifest).endswith("has no such composition")
