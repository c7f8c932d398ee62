"""An output token by token: which was drafted and at which rank, and which the target wrote itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from html import escape

from specexp.bench.record import PromptRecord
from specexp.bench.sources import BONUS, CORRECTED, steps_of

_MOST_TOKENS = 400
"""Of an output that are shown."""
_OWN = {CORRECTED: "u", BONUS: "b"}
LEGEND = (
    '<p class="tokens legend"><span class="step"><i>drafted, rank 0</i></span> '
    '<span class="step"><i class="r">drafted, a later rank</i></span> '
    '<span class="step"><u>the target corrected the draft</u></span> '
    '<span class="step"><b>the target went on where the draft ended</b></span></p>'
)


def token_view(record: PromptRecord, decode: Callable[[Sequence[int]], str]) -> str:
    """HTML of an output: a box for each step, its tokens marked by where they came from.

    Args:
        record: With the sources of its tokens.
        decode: Text of token ids.
    """
    texts = list(pieces(record.token_ids[:_MOST_TOKENS], decode))
    boxes = []
    for number, step in enumerate(steps_of(record.sources, record.turn_tokens), start=1):
        if step.stop > len(texts):
            break
        ranks = [record.sources[place] for place in step if record.sources[place] >= 0]
        drafted = f"ranks {', '.join(map(str, ranks))}" if ranks else "nothing"
        told = f"step {number}: {len(step)} token{'s' * (len(step) != 1)}, drafted {drafted}"
        marked = "".join(_marked(texts[place], record.sources[place]) for place in step)
        boxes.append(f'<span class="step" title="{told}">{marked}</span>')
    left = len(record.token_ids) - len(texts)
    return f'<p class="tokens">{"".join(boxes)}</p>' + (f"<p>… {left} more tokens</p>" if left else "")


def pieces(token_ids: Sequence[int], decode: Callable[[Sequence[int]], str]) -> Iterator[str]:
    """What each token adds to the text; a character of several tokens belongs to the last of them.

    Args:
        token_ids: Of an output.
        decode: Text of token ids.
    """
    first, shown = 0, ""
    for end in range(1, len(token_ids) + 1):
        text = decode(token_ids[first:end])
        if text.endswith("�"):  # a character is not complete
            yield ""
            continue
        yield text[len(shown) :]
        first, shown = end - 1, decode(token_ids[end - 1 : end])


def tokens_at_a_step(record: PromptRecord) -> dict[int, float]:
    """Share of the steps of a record that gave so many tokens."""
    sizes = Counter(len(step) for step in steps_of(record.sources, record.turn_tokens))
    total = sum(sizes.values())
    return {size: count / total for size, count in sorted(sizes.items())}


def _marked(text: str, source: int) -> str:
    shown = escape(text).replace("\n", "⏎\n")
    kind = _OWN.get(source)
    if kind is not None:
        return f"<{kind}>{shown}</{kind}>"
    return f"<i>{shown}</i>" if source == 0 else f'<i class="r">{shown}</i>'
