"""Whether passes are compiled here, tried on the embedded target."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING

from specexp.commands.doctor.diagnosis import Diagnosis

if TYPE_CHECKING:
    from specexp.core.runtime import Runtime

_REPEATS = 15


def compiled() -> Iterator[Diagnosis]:
    """Compile, compare with the model's own code, and time both."""
    from specexp.core.kernels import CannotCompileError
    from specexp.core.language_model import LanguageModel
    from specexp.models.compiled import CompiledModel
    from specexp.models.pair import load_pair

    target = load_pair("stdlib").target
    own = _milliseconds(LanguageModel(target))
    try:
        ours = _milliseconds(CompiledModel(target))
    except CannotCompileError as error:
        yield Diagnosis(
            "compiled passes", str(error), "note", f"models run by their own code, {own:.1f} ms a pass here"
        )
        return
    yield Diagnosis(
        "compiled passes",
        f"work: {ours:.2f} ms a pass of the embedded target, {own:.1f} ms by its own code (once, just now)",
    )


def _milliseconds(model: Runtime) -> float:
    """Of a plain step's pass behind a few tokens, the middle of some."""
    from specexp.core.tree import root_tree

    model.prefill(0, list(range(5, 37)))
    tree, taken = root_tree(7), list[float]()
    for _ in range(_REPEATS):
        started = perf_counter()
        model.tree_pass([0], [tree])
        taken.append(perf_counter() - started)
    return 1e3 * median(taken)
