"""Sections of the page that are neither table nor picture: a tree that folds, prompts with what was decoded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape

from specexp.bench.page.tokens import LEGEND, token_view
from specexp.bench.record import PromptRecord

_MOST_PROMPTS = 24
_MOST_CHARACTERS = 1200
_FIRST_WORDS = 60


def folding_tree(
    rank_paths: Iterable[Sequence[int]], accepted: Mapping[tuple[int, ...], float], title: str
) -> str:
    """A static tree whose branches fold.

    Args:
        rank_paths: Its nodes; parents may come in any order.
        accepted: Share of the steps that accepted a node, by its rank path, where it was counted.
        title: Heading.
    """
    nodes = {tuple(path) for path in rank_paths if len(path)}

    def inside(above: tuple[int, ...]) -> str:
        children = sorted(node for node in nodes if node[:-1] == above)
        return "".join(shown(node) for node in children)

    def shown(node: tuple[int, ...]) -> str:
        share = accepted.get(node)
        bar = (
            "" if share is None else f'<span class="bar" style="width:{max(2, round(120 * share))}px"></span>'
        )
        figure = "" if share is None else f" accepted in {100 * share:.1f} % of steps"
        label = f"{bar}rank {node[-1]}{figure}"
        below = inside(node)
        if not below:
            return f'<div class="leaf">{label}</div>'
        return f"<details open><summary>{label}</summary>{below}</details>"

    return (
        f'<section aria-label="{escape(title, quote=True)}"><h2>{escape(title)}</h2>'
        f"<details open><summary>root: the last token decided</summary>{inside(())}</details></section>"
    )


def prompt_section(
    texts: Mapping[str, str],
    records: Sequence[PromptRecord],
    titles: Mapping[str, str],
    decode: Callable[[Sequence[int]], str],
) -> str:
    """Prompts with what the first arm decoded, token by token where its steps were seen, and what each arm took.

    Args:
        texts: Prompts by id.
        records: Records of the run.
        titles: Names for a person by arm: first the one whose output is shown, last what it is compared with.
        decode: Text of token ids.
    """
    found = {(one.arm, one.prompt_id): one for one in records if one.sample == 0 and not one.error}
    first = next(iter(titles), None)
    shown = [prompt for prompt in texts if (first, prompt) in found][:_MOST_PROMPTS]
    if first is None or not shown:
        return ""
    ends = [
        *dict([*titles.items()][:1] + [*titles.items()][-1:]).items()
    ]  # the first, and what it is compared with
    heading = f"Prompts, and what {titles[first]} made of them"
    pieces = [f'<section aria-label="{escape(heading, quote=True)}"><h2>{escape(heading)}</h2>']
    if any(found[first, prompt].sources for prompt in shown):
        pieces.append(f"{LEGEND}<p>A box is a step, one pass of the target; hover over it for the ranks.</p>")
    if len(shown) > 1:
        pieces.append(
            '<input type="search" class="prompts" placeholder="filter prompts" aria-label="filter prompts">'
        )
    for number, prompt in enumerate(shown):
        own = found[first, prompt]
        took = "; ".join(
            f"{title}: {len(one.token_ids) / one.steps:.2f} tokens a step, "
            f"{1e3 * one.decode_seconds / max(one.decode_tokens, 1):.2f} ms a token"
            for arm, title in ends
            if (one := found.get((arm, prompt))) is not None and one.steps
        )
        answer = (
            token_view(own, decode) if own.sources else f"<pre>{escape(_cut(decode(own.token_ids)))}</pre>"
        )
        pieces.append(
            f'<details class="prompt"{" open" * (number == 0)}><summary>{escape(prompt)}: '
            f"<q>{escape(first_words(texts[prompt]))}</q></summary><p>{escape(took)}</p>"
            f"<pre>{escape(_cut(texts[prompt]))}</pre>{answer}</details>"
        )
    return "".join(pieces) + "</section>"


def first_words(text: str, most: int = _FIRST_WORDS) -> str:
    """A prompt in a line."""
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[:most]}…"


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_CHARACTERS else f"… {text[-_MOST_CHARACTERS:]}"
