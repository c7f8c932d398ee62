"""SVG pictures of the first page: a terminal that plays a run back, and the tokens of an answer by pass."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

_CHARACTER, _LINE = 7.85, 19  # pixels of a character and of a line, in a monospace font of 13 pixels
_FONT = "font: 13px ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
_MARGIN = 12
_REST = 4.0  # seconds for which the last frame stays


@dataclass(frozen=True)
class Line:
    """A line that a command printed, and the seconds since the command's start."""

    text: str
    seconds: float


def recording(title: str, lines: Sequence[Line], *, seconds: float = 20.0, columns: int = 110) -> str:
    """Return an SVG that plays the lines in the rhythm of the run, within ``seconds``, again and again."""
    scale, total = seconds / max(line.seconds for line in lines), seconds + _REST
    height, width = _LINE * (len(lines) + 3), _CHARACTER * columns + 32
    frames, texts = [], []
    for number, line in enumerate(lines):
        share = 100 * line.seconds * scale / total
        frames.append(
            f"@keyframes l{number} {{0%, {share:.2f}% {{opacity: 0}} {share + 0.01:.2f}%, 100% {{opacity: 1}}}}"
        )
        style = f"animation: l{number} {total:g}s linear infinite"
        texts.append(_text(16, _LINE * (number + 3), line.text[:columns], f'style="{style}"'))
    return "\n".join(
        [
            _opening(width, height, f"A recording of {title}"),
            f"<style>text {{{_FONT}; fill: #d7dee6}} .title {{fill: #8fb7dd}} {' '.join(frames)}</style>",
            '<rect width="100%" height="100%" rx="8" fill="#1b232c"/>',
            _text(16, 26, f"$ {title}", 'class="title"'),
            *texts,
            "</svg>",
            "",
        ]
    )


def tokens_by_pass(panels: Iterable[tuple[str, Sequence[Sequence[tuple[str, bool]]]]], *, columns: int = 92) -> str:
    """Return an SVG of an answer's tokens in which each box is one pass of the model.

    Args:
        panels: the heading and the passes of each panel; a pass is its tokens, with True for an accepted draft.
        columns: characters of a line.
    """
    parts: list[str] = []
    y = 0
    for heading, passes in panels:
        y += _LINE + 8
        parts.append(_text(_MARGIN, y, heading, 'class="heading"'))
        y += 10
        x = 0.0
        for one in passes:
            pieces = [(text.replace("\n", "⏎").replace("\t", " "), drafted) for text, drafted in one]
            length = sum(len(text) for text, _ in pieces)
            if x + length > columns:
                x, y = 0.0, y + _LINE + 7
            parts.append(_box("pass", x, y, length))
            for text, drafted in pieces:
                if drafted:
                    parts.append(_box("draft", x, y, len(text)))
                parts.append(_text(_MARGIN + x * _CHARACTER, y + 15, text))
                x += len(text)
            x += 0.7
        y += _LINE + 14
    style = (
        f"text {{{_FONT}; fill: #22303c}} .heading {{font-weight: bold}} .pass {{fill: #e6ebef; stroke: #9fb0bd}} "
        ".draft {fill: #9cc7ee} @media (prefers-color-scheme: dark) {text {fill: #e2e8ee} "
        ".pass {fill: #303b46; stroke: #5d6f7e} .draft {fill: #2b5f92}}"
    )
    opening = _opening(_CHARACTER * (columns + 6) + 24, y, "Tokens of one answer; each box is one pass of the model")
    return "\n".join([opening, f"<style>{style}</style>", *parts, "</svg>", ""])


def _opening(width: float, height: float, label: str) -> str:
    size = f'viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{escape(label)}">'


def _box(kind: str, x: float, y: int, characters: int) -> str:
    left, width = _MARGIN + x * _CHARACTER, characters * _CHARACTER
    return f'<rect class="{kind}" x="{left:.1f}" y="{y}" width="{width:.1f}" height="{_LINE + 2}" rx="4"/>'


def _text(x: float, y: float, text: str, attributes: str = "") -> str:
    space = 'xml:space="preserve"'
    return f'<text x="{x:.1f}" y="{y}" {space} {attributes}>{escape(text)}</text>'.replace(" >", ">")
