"""The picture of a time line: every span is a bar in the row of who did it."""

import io

import pytest
from matplotlib.colors import to_rgba

from specexp.bench.drawings import COLOURS, draw_time_line
from specexp.scheduling.timeline import TimeLine


def scheduled(passes=4, milliseconds=10):
    """Two drafters that take turns; the target works without a pause."""
    line, length = TimeLine(), milliseconds / 1000
    for number in range(passes):
        who, sequence, start = f"draft {number % 2 + 1}", "ab"[number % 2], 100 + number * length
        line.add(who, "draft", start - length / 2, start, sequence, 3)
        line.add("target", "target", start, start + 0.8 * length, sequence, 4, number)
        line.add("target", "resample", start + 0.8 * length, start + length, sequence, 1, number)
    return line


def bars_of(axes, what):
    """Boxes of all bars of a kind: x from and to, row."""
    colour = to_rgba(COLOURS[what])
    return [
        (path.vertices[:, 0].min(), path.vertices[:, 0].max(), round(path.vertices[:4, 1].mean()))
        for bars in axes.collections
        if tuple(bars.get_facecolor()[0]) == colour
        for path in bars.get_paths()
    ]


def texts_of(axes):
    return [text.get_text() for text in axes.texts]


def test_a_span_is_a_bar_in_the_row_of_who_did_it_and_the_colour_of_what():
    """In ms from the start of the run, which began with the first draft at 99.995 s."""
    (axes,) = draw_time_line({"scheduled": scheduled()}, "One run").axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["Target", "Draft 1", "Draft 2"]
    assert bars_of(axes, "target") == [
        (pytest.approx(5 + 10 * number), pytest.approx(13 + 10 * number), 0) for number in range(4)
    ]
    assert [row for *_, row in bars_of(axes, "draft")] == [1, 1, 2, 2]
    assert len(bars_of(axes, "resample")) == 4
    assert bars_of(axes, "verify") == []


def test_a_pass_tells_whose_draft_it_verifies():
    (axes,) = draw_time_line({"scheduled": scheduled()}, "One run").axes
    assert [text for text in texts_of(axes) if text in "12"] == ["1", "2", "1", "2"]


def test_passes_too_short_to_number_are_not():
    (axes,) = draw_time_line({"scheduled": scheduled(passes=400)}, "One run").axes
    assert not [text for text in texts_of(axes) if text in "12"]


def test_panels_share_their_axis_and_each_tells_the_share_of_its_whole_run():
    short, long = scheduled(passes=2), scheduled(passes=8)
    first, second = draw_time_line({"short": short, "long": long}, "Two runs").axes
    assert first.get_xlim() == second.get_xlim() == (0, pytest.approx(1000 * long.seconds))
    assert f"target busy {100 * short.utilisation():.0f} %,  run 25 ms" in texts_of(first)
    assert any("done" in text for text in texts_of(first))
    assert not any("done" in text for text in texts_of(second))


def test_a_window_shows_the_beginning_alone():
    line = scheduled(passes=100)
    (axes,) = draw_time_line({"scheduled": line}, "The beginning", seconds=0.03).axes
    assert axes.get_xlim() == (0, pytest.approx(30))
    assert len(bars_of(axes, "target")) == 3
    assert f"target busy {100 * line.utilisation():.0f} %,  run 1005 ms" in texts_of(axes)


def test_a_window_skips_most_of_a_long_prefill():
    """The first pass begins 200 ms after the prefill; a fifth of 30 ms is shown before it."""
    line = scheduled()
    line.add("target", "prefill", 99.8, 100.0, "a", 500)
    (axes,) = draw_time_line({"scheduled": line}, "A window", seconds=0.03).axes
    assert bars_of(axes, "target")[0][0] == pytest.approx(6)
    assert axes.get_xlabel() == "ms, from shortly before a run's first target pass"
    (axes,) = draw_time_line({"scheduled": line}, "Everything").axes
    assert bars_of(axes, "target")[0][0] == pytest.approx(200)
    assert axes.get_xlabel() == "ms since the start of the run"


def test_only_what_was_done_is_in_the_legend():
    figure = draw_time_line({"scheduled": scheduled()}, "One run")
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [
        "target pass",
        "verify, resample after a rejection",
        "draft",
    ]


def test_it_can_be_written():
    png = io.BytesIO()
    draw_time_line({"scheduled": scheduled(), "again": scheduled(2)}, "Two runs").savefig(png, format="png")
    assert png.getvalue().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("lines", "seconds", "said"),
    [
        ({}, None, "no time line"),
        ({"a": TimeLine()}, None, "without a span"),
        ({"a": scheduled()}, 0, "seconds was 0"),
    ],
)
def test_nothing_to_draw_is_refused(lines, seconds, said):
    with pytest.raises(ValueError, match=said):
        draw_time_line(lines, "", seconds)
