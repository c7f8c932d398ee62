"""Which arms of a file are points of a curve."""

from pathlib import Path

import pytest
import yaml

from specexp.bench.experiment import curves_of
from specexp.config import load_config


def test_a_long_list_is_short_in_a_title(tmp_path: Path) -> None:
    grid = {"builder.init_args.widths": [[2, 2], [4, *[1] * 7], [3, 2, 2, 1]]}
    (curve,) = curves_of(config(tmp_path, grid))
    said = ["[2, 2]", "[4, 1 x 7]", "[3, 2, 2, 1]"]
    assert [name for _, name in curve.points] == [f"mine, widths={shape}" for shape in said]


@pytest.mark.parametrize(
    ("grid", "axis", "places"),
    [
        ({"drafter.init_args.temperature": [0.2, 1, 1.4]}, "temperature", [0.2, 1, 1.4]),
        ({"builder.init_args.widths": [[2], [2, 2, 1]]}, "nodes", [2, 10]),
    ],
)
def test_numbers_and_shapes_stand_at_their_places(
    tmp_path: Path, grid: dict[str, list[object]], axis: str, places: list[float]
) -> None:
    (curve,) = curves_of(config(tmp_path, grid))
    assert (curve.title, curve.axis) == ("mine", axis)
    assert [place for place, _ in curve.points] == places
    assert all(name.startswith("mine, ") for _, name in curve.points)


@pytest.mark.parametrize(
    "grid",
    [
        {"drafter.init_args.coupled": [False, True]},
        {"builder.init_args.widths": [[2, 2]]},
        {"builder.init_args.widths": [[2], [1]], "drafter.init_args.top_k": [5]},
    ],
)
def test_switches_single_points_and_planes_are_no_curve(
    tmp_path: Path, grid: dict[str, list[object]]
) -> None:
    assert curves_of(config(tmp_path, grid)) == []


def config(folder: Path, grid: dict[str, list[object]]):
    content = {
        "drafter": {"class_path": "DraftModel"},
        "builder": {"class_path": "KConfig", "init_args": {"widths": [1]}},
        "verifier": {"class_path": "KeyedSampling"},
        "arms": {"one": {"title": "mine", "grid": grid}},
    }
    (folder / "curves.yaml").write_text(yaml.safe_dump(content))
    return load_config(folder / "curves.yaml")
