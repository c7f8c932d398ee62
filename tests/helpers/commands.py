"""Commands in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module

from specexp.__main__ import COMMANDS, main


def main_of(module: str) -> Callable[[Sequence[str]], int]:
    """Return the function that ``python -m MODULE`` calls with the arguments."""
    name = module.removeprefix("specexp.")
    if name in COMMANDS:
        return lambda arguments: main([name, *arguments])
    runs = module if module == "experiments.passes.contest" else f"{module}.__main__"
    found: Callable[[Sequence[str]], int] = import_module(runs).main
    return found
