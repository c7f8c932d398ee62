"""Draft lengths by load: chosen from a study at several numbers of concurrent requests, in the forms of engines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from specexp.bench.statistics import paired_speedup
from specexp.tracking.names import PLAIN

if TYPE_CHECKING:
    from specexp.bench.record import PromptRecord

LENGTH = "num_speculative_tokens"
"""The setting with the draft length; a template's ``settings`` need it too."""


def lengths_by_load(
    records: Sequence[PromptRecord], arms: Mapping[str, Mapping[str, Any]], winner: str, loads: Sequence[int]
) -> dict[int, int]:
    """Return a draft length for each load, keyed by the smallest number of requests to which it applies.

    The length at a load is that of the fastest arm there, or 0 if no arm is shown to be faster than plain decoding. A
    load between two measured ones takes the length of the larger one, which is the safer choice.

    Args:
        arms: each arm's settings, by name. Those that differ from the winner's in more than the length are left out.
        winner: name of the fastest arm over all loads.
        loads: in ascending order; an arm's n-th sample of a prompt is its answer under the n-th load.

    Example:
        >>> lengths_by_load([], {"n-grams": {"num_speculative_tokens": 4}}, "n-grams", [1, 8])
        {1: 0, 2: 0}
    """
    same = [name for name, given in arms.items() if LENGTH in given and _other(given) == _other(arms[winner])]
    found = {}
    for number in range(len(loads)):
        here = [record for record in records if record.sample % len(loads) == number]
        over_plain = {name: paired_speedup(here, name, PLAIN, among=len(same)) for name in same}
        faster = {name: one.ratio for name, one in over_plain.items() if one.is_faster}
        first = 1 if number == 0 else loads[number - 1] + 1
        found[first] = int(arms[max(faster, key=faster.__getitem__)][LENGTH]) if faster else 0
    return found


def _other(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name != LENGTH}


def forms_of(lengths: Mapping[int, int], most: int) -> dict[str, Any]:
    """Return a table of draft lengths in the forms of vLLM, SGLang, TensorRT-LLM and our server.

    Args:
        lengths: see :func:`lengths_by_load`.
        most: largest number of concurrent requests.

    Example:
        >>> forms_of({1: 4, 2: 1}, 8)["vllm"]
        {'num_speculative_tokens': 4, 'num_speculative_tokens_per_batch_size': [[1, 1, 4], [2, 8, 1]]}
    """
    longest, begins = max(1, *lengths.values()), [*lengths, most + 1]
    return {
        "vllm": {
            LENGTH: longest,
            f"{LENGTH}_per_batch_size": [[first, after - 1, lengths[first]] for first, after in pairwise(begins)],
        },
        "sglang": {"adaptive": {str(first): {"candidate_steps": [one]} for first, one in lengths.items()}},
        # TensorRT-LLM's longest draft must be that of one request
        "trtllm": {
            "max_draft_len": max(1, lengths[1]),
            "draft_len_schedule": {first: min(one, max(1, lengths[1])) for first, one in lengths.items()},
        },
        "specexp": {"class_path": "DraftLengths", "init_args": {"nodes": dict(lengths)}},
    }
