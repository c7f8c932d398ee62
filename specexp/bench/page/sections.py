"""Sections of the page that are neither table nor picture: a tree that folds, prompts with their decoded text."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from specexp.bench.analysis import BONUS, CORRECTED, steps_of
from specexp.bench.page.charts import first_words
from specexp.bench.publish import Report, render
from specexp.bench.record import PromptRecord
from specexp.bench.table import Cell, Table, columns

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from specexp.data import Prompt

_MOST_PROMPTS, _MOST_TOKENS, _MOST_CHARACTERS = 24, 400, 1200
_MARKS = {CORRECTED: ("u", ""), BONUS: ("b", ""), 0: ("i", "")}
"""HTML element and class of a token by its source; a later rank has a class."""


def folding_tree(
    rank_paths: Iterable[Sequence[int]], accepted: Mapping[tuple[int, ...], float], title: str
) -> str:
    """Return the HTML of a static tree whose branches fold, with the share of steps that ``accepted`` each node."""
    children = defaultdict(list)
    for node in {tuple(path) for path in rank_paths if len(path)}:
        children[node[:-1]].append(node)
    return render("tree.html.j2", children=dict(children), accepted=accepted, title=title)


def texts_of(prompts: Iterable[Prompt]) -> dict[str, str]:
    """Return the text of prompts by id."""
    return {prompt.prompt_id: "\n".join(prompt.turns) for prompt in prompts}


def prompts_shown(
    texts: Mapping[str, str],
    records: Sequence[PromptRecord],
    titles: Mapping[str, str],
    tokenizer: PreTrainedTokenizerBase | None,
) -> Report:
    """Return the part of a report about single prompts: a table for programs, and a section of the page.

    ``texts`` are prompts by id, and ``titles`` displayed names by arm: first the arm whose output is shown, last the
    one it is compared with. Without a tokenizer no output is shown.
    """
    single = [record for record in records if record.group is None]
    section = "" if tokenizer is None else prompt_section(texts, single, titles, tokenizer.decode)
    heads = "prompt | text | arm | sample | new tokens | tokens per step | seconds per token | equal"
    table = Table("Prompts", columns(heads))
    for one in records:
        if not one.error and one.arm in titles:
            row: list[Cell] = [one.prompt_id, texts.get(one.prompt_id, ""), titles[one.arm], one.sample]
            equal = "yes" if one.difference is None else "parts"
            row += [one.new_tokens, one.tokens_per_step, one.seconds_per_token, equal]
            table.rows.append(row)
    return Report(data={"prompts": table}, fragments={"prompts": section} if section else {})


def prompt_section(
    texts: Mapping[str, str],
    records: Sequence[PromptRecord],
    titles: Mapping[str, str],
    decode: Callable[[Sequence[int]], str],
) -> str:
    """Return the HTML of prompts with the first arm's output, token by token if its steps were observed."""
    found = {(one.arm, one.prompt_id): one for one in records if one.sample == 0 and not one.error}
    first, last = ([*titles] or [""])[0], ([*titles] or [""])[-1]
    prompts = []
    for prompt in [prompt for prompt in texts if (first, prompt) in found][:_MOST_PROMPTS]:
        own = found[first, prompt]
        compared = [(arm, found.get((arm, prompt))) for arm in dict.fromkeys([first, last])]
        cost = "; ".join(
            f"{titles[arm]}: {one.new_tokens / one.steps:.2f} tokens a step, "
            f"{1e3 * one.decode_seconds / max(one.decode_tokens, 1):.2f} ms a token"
            for arm, one in compared
            if one is not None and one.steps
        )
        prompts.append(
            {
                "name": prompt,
                "words": first_words(texts[prompt]),
                "cost": cost,
                "text": _cut(texts[prompt]),
                "steps": list(_boxes(own, decode)),
                "left": max(0, own.new_tokens - _MOST_TOKENS),
                "output": _cut(decode(own.token_ids)),
            }
        )
    heading = f"Prompts, and the output of {titles.get(first, '')}"
    return render("prompts.html.j2", heading=heading, prompts=prompts) if prompts else ""


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_CHARACTERS else f"… {text[-_MOST_CHARACTERS:]}"


def _boxes(record: PromptRecord, decode: Callable[[Sequence[int]], str]) -> Iterator[dict[str, Any]]:
    """Yield a box for each step: its title, and its tokens with their marks."""
    texts = list(pieces(record.token_ids[:_MOST_TOKENS], decode))
    for number, step in enumerate(steps_of(record.sources, record.turn_tokens), start=1):
        if step.stop > len(texts):
            return
        sources = [record.sources[place] for place in step]
        ranks = ", ".join(str(source) for source in sources if source >= 0)
        drafted = f"ranks {ranks}" if ranks else "nothing"
        yield {
            "title": f"step {number}: {len(step)} token{'s' * (len(step) != 1)}, drafted {drafted}",
            "tokens": [
                (texts[place].replace("\n", "⏎\n"), *_MARKS.get(source, ("i", "r")))
                for place, source in zip(step, sources, strict=True)
            ],
        }


def pieces(token_ids: Sequence[int], decode: Callable[[Sequence[int]], str]) -> Iterator[str]:
    """Yield the text that each token adds; a character of several tokens belongs to the last of them."""
    first, shown = 0, ""
    for end in range(1, len(token_ids) + 1):
        text = decode(token_ids[first:end])
        if text.endswith("�"):  # a character is not complete
            yield ""
            continue
        yield text[len(shown) :]
        first, shown = end - 1, decode(token_ids[end - 1 : end])
