"""Sections of the page that are neither table nor picture: a tree that folds, prompts with what was decoded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape

from specexp.bench.record import PromptRecord

_MOST_PROMPTS = 24
_MOST_CHARACTERS = 1200


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
    arms: Sequence[str],
    decode: Callable[[Sequence[int]], str],
) -> str:
    """Prompts with what the first arm decoded, and what each arm took for it.

    Args:
        texts: Prompts by id.
        records: Records of the run.
        arms: Arms to show, the one whose text is shown first.
        decode: Text of token ids.
    """
    found = {(one.arm, one.prompt_id): one for one in records if one.sample == 0 and not one.error}
    shown = [prompt for prompt in texts if (arms[0], prompt) in found][:_MOST_PROMPTS] if arms else []
    if not shown:
        return ""
    pieces = ['<section aria-label="Prompts"><h2>Prompts</h2>']
    for prompt in shown:
        own = found[arms[0], prompt]
        took = "; ".join(
            f"{name}: {len(one.token_ids) / one.steps:.2f} tokens a step, "
            f"{1e3 * one.decode_seconds / max(one.decode_tokens, 1):.2f} ms a token"
            for name in arms
            if (one := found.get((name, prompt))) is not None and one.steps
        )
        pieces.append(
            f"<details><summary>{escape(prompt)}: {escape(took)}</summary>"
            f"<pre>{escape(_cut(texts[prompt]))}</pre><pre>{escape(_cut(decode(own.token_ids)))}</pre></details>"
        )
    return "".join(pieces) + "</section>"


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_CHARACTERS else f"… {text[-_MOST_CHARACTERS:]}"
