"""Every row sees the committed tokens of its own slot and its ancestors, whatever was fed, kept and dropped before."""

from dataclasses import dataclass, field

import numpy as np
import pytest
from helpers.examples import examples
from hypothesis import given, strategies as st

from specexp.core.tree import TreeShape
from specexp.models.llama_cache import ANY, Branches, SlotIds

pytestmark = pytest.mark.unit


@dataclass
class Cell:
    name: object
    position: int
    ids: set[int]


@dataclass
class Cells:
    """llama.cpp's cache, as far as ids go, and what a row sees in it."""

    cells: list[Cell] = field(default_factory=list)
    lanes: list[SlotIds] = field(default_factory=list)
    calls: int = 0
    made: int = 0

    def remove(self, sequence, start):
        self.calls += 1
        for cell in self.cells:
            if cell.position >= start:
                cell.ids -= set(cell.ids) if sequence == ANY else {sequence}
        self.cells = [cell for cell in self.cells if cell.ids]

    def copy(self, source, target, start, end):
        self.calls += 1
        for cell in self.cells:
            if source in cell.ids and start <= cell.position < end:
                assert target not in cell.ids  # which llama.cpp asserts
                cell.ids.add(target)

    def new_ids(self, count):
        self.made += count
        return list(range(self.made - count, self.made))

    def others_are_empty(self, lane):
        return all(one is lane or not (one.length or one.rows) for one in self.lanes)

    def feed(self, names, positions, ids):
        """What each of the rows sees; llama.cpp demands that a sequence goes on where it ended."""
        for position, carried in zip(positions, ids, strict=True):
            for sequence in carried:
                ends = [cell.position for cell in self.cells if sequence in cell.ids]
                assert position <= max(ends, default=-1) + 1 + len(positions)
        for name, position, carried in zip(names, positions, ids, strict=True):
            for sequence in carried:
                held = [cell.position for cell in self.cells if sequence in cell.ids]
                assert position == max(held, default=-1) + 1
            self.cells.append(Cell(name, position, set(carried)))
        return [
            [
                cell.name
                for cell in sorted(self.cells, key=lambda cell: cell.position)
                if carried[0] in cell.ids and cell.position <= position
            ]
            for position, carried in zip(positions, ids, strict=True)
        ]


def two_lanes():
    cells = Cells()
    cells.lanes += [SlotIds(cells), SlotIds(cells)]
    return cells


def parts_of(branches, flat):
    ends = np.cumsum(branches.counts)
    return [flat[end - count : end].tolist() for end, count in zip(ends, branches.counts, strict=True)]


steps = st.lists(
    st.tuples(
        st.sampled_from(["prefill", "tree", "grow", "commit", "commit", "truncate", "fork"]),
        st.integers(0, 1),
        st.integers(0, 10**6),
    ),
    max_size=24,
)


@examples(80)
@given(steps)
def test_rows_see_what_they_should(steps):
    cells = two_lanes()
    texts, trees, fresh = [[], []], [[], []], iter(range(10**6))  # committed names; (name, parent) of rows
    for what, slot, seed in steps:
        lane, text, tree = cells.lanes[slot], texts[slot], trees[slot]
        random = np.random.default_rng(seed)

        def branch(row, text=text, tree=tree):
            above = []
            while row >= 0:
                name, row = tree[row]
                above.insert(0, name)
            return [*text, *above]

        if what == "prefill":
            lane.forget_rows()
            tree.clear()
            names = [next(fresh) for _ in range(random.integers(1, 5))]
            main = lane.extend(len(names))
            seen = cells.feed(names, range(len(text), len(text) + len(names)), [[main]] * len(names))
            text += names
            assert seen[-1] == text
        elif what in ("tree", "grow"):
            before = 0 if what == "tree" else len(tree)
            size = int(random.integers(1, 9))
            parents = [-1 if row == 0 else int(random.integers(0, row)) for row in range(before, before + size)]
            if what == "tree":
                shape = TreeShape(parents, [-1] + [0] * (size - 1))
                branches = Branches.of(shape)
                ids = parts_of(branches, lane.plant(branches))
                tree.clear()
            else:
                ids = lane.grow(parents)
            tree += [(next(fresh), parent) for parent in parents]
            expected = [branch(row) for row in range(before, before + size)]
            names = [name for name, _ in tree[before:]]
            assert cells.feed(names, [len(one) - 1 for one in expected], ids) == expected
        elif what == "commit" and tree:
            row, path = int(random.integers(0, len(tree))), []
            while row >= 0:
                path.insert(0, row)
                row = tree[row][1]
            lane.commit(path)
            text += [tree[row][0] for row in path]
            tree.clear()
        elif what == "truncate":
            kept = int(random.integers(0, len(text) + 2))
            lane.truncate(kept)
            del text[kept:]
            tree.clear()
        elif what == "fork":
            other = 1 - slot
            kept = int(random.integers(0, len(texts[other]) + 1))
            lane.share(cells.lanes[other], kept)
            text[:] = texts[other][:kept]
            tree.clear()
        assert lane.length == len(text)
        assert {cell.name for cell in cells.cells} == {
            name for slot in (0, 1) for name in (*texts[slot], *(name for name, _ in trees[slot]))
        }


def planted(parents):
    """The cache and a lane to which a tree of rows a, b, c, ... was fed."""
    cells = two_lanes()
    lane, shape = cells.lanes[0], TreeShape(parents, [-1, *range(len(parents) - 1)])
    branches = Branches.of(shape)
    cells.feed("abcde"[: len(parents)], shape.depths.tolist(), parts_of(branches, lane.plant(branches)))
    return cells, lane


def test_a_chain_needs_one_id_and_no_call_when_all_of_it_is_accepted():
    cells, lane = planted([-1, 0, 1])
    before = cells.calls
    lane.commit([0, 1, 2])
    assert cells.made == 1
    assert cells.calls == before


def test_a_rejected_tree_is_dropped_in_one_call():
    cells, lane = planted([-1, 0, 0, 0, 0])
    before = cells.calls
    lane.commit([0])
    assert cells.calls - before == 1
    assert [cell.name for cell in cells.cells] == ["a"]


def test_rows_that_are_not_a_path_cannot_be_committed():
    _, lane = planted([-1, 0, 0, 1])
    for rows in ([0, 2, 3], [1], [0, 3]):
        with pytest.raises(ValueError, match="must be a path from the last committed token"):
            lane.commit(rows)


def test_ids_that_nothing_needs_are_given_back():
    cells, lane = planted([-1, 0, 0, 0])
    assert lane.give_back() == []
    lane.commit([0, 2])
    assert len(lane.give_back()) == 2
    assert [cell.ids for cell in cells.cells] == [{lane.main}] * 2
