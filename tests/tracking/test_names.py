"""Names and cells as W&B takes them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from specexp.core.outcome import PHASES as ENGINE_PHASES
from specexp.tracking.names import PHASES, nest_parameters, parameter_key, plain, table_columns


def test_parameters_keep_their_dotted_keys() -> None:
    assert nest_parameters({"drafter.init_args.update": "last", "drafter.init_args.k": np.int64(8)}) == {
        "drafter": {"init_args": {"update": "last", "k": 8}}
    }


def test_a_part_searched_beside_its_arguments_stands_at_its_name() -> None:
    keys = ["builder.init_args.nodes", "builder"]
    assert [parameter_key(key, keys) for key in keys] == ["builder.init_args.nodes", "builder.name"]
    params = {"builder.init_args.nodes": 4, "builder": {"class_path": "Chain"}}
    assert nest_parameters(params) == {"builder": {"init_args": {"nodes": 4}, "name": "Chain"}}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.float32(0.5), 0.5),
        (np.arange(3), [0, 1, 2]),
        ((1, {"a": Path("runs")}), [1, {"a": "runs"}]),
        (float("inf"), "inf"),
        (True, True),
        (int, "<class 'int'>"),
    ],
)
def test_values_become_plain_json(value: object, expected: object) -> None:
    assert plain(value) == expected


def test_a_column_has_one_type() -> None:
    columns, rows = table_columns([{"a": 1, "b": "x", "c": True}, {"a": 2.5, "b": [0, 1]}, {"b": 3}])
    assert columns == ["a", "b", "c"]
    assert rows == [[1, "x", True], [2.5, "[0, 1]", None], [None, "3", None]]


def test_the_phases_are_the_engine_s() -> None:
    assert PHASES == ENGINE_PHASES
