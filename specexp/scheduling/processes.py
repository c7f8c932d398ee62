"""Starts processes that work beside this one, and share its tensors."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BytesIO
from multiprocessing.connection import Connection
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch
import torch.multiprocessing  # registers how tensors are handed to another process: their memory is shared

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.process import BaseProcess


def start_process(serve: Callable[..., None], arguments: tuple[Any, ...]) -> BaseProcess:
    """Fork a worker from a server that has imported everything but holds no threads and no models.

    Args:
        serve: what it does.
        arguments: what it is given; tensors among it share their memory with the process.

    Raises:
        ValueError: the parts cannot be pickled.
    """
    contexts: list[Any] = [torch.multiprocessing.get_context("spawn")]
    if "forkserver" in torch.multiprocessing.get_all_start_methods():
        server = torch.multiprocessing.get_context("forkserver")
        server.set_forkserver_preload(
            ["specexp.scheduling.worker", "specexp.core.language_model", "transformers"]
        )
        contexts.insert(0, server)
    while True:
        context = contexts.pop(0)
        process: BaseProcess = context.Process(
            target=serve, args=arguments, daemon=True, name="specexp drafts"
        )
        try:
            with _script_hidden(arguments):
                process.start()
        except (pickle.PicklingError, AttributeError, TypeError, ValueError) as error:
            if contexts and isinstance(error, ValueError):
                continue  # the server takes some 250 tensors, a new interpreter any number
            raise ValueError(
                f"the parts cannot be handed to a drafting process ({error}): set workers to thread, or write them "
                "so that pickle can"
            ) from error
        return process


@contextmanager
def _script_hidden(arguments: tuple[Any, ...]) -> Iterator[None]:
    """Keep a new process from running the program's script once more, which would need a guard there.

    It must where something handed over is defined in the script.
    """
    script = sys.modules["__main__"]
    finder = _Finder()
    with suppress(Exception):  # what cannot be pickled is told by the process' own start
        finder.dump(arguments)
    if finder.found:
        yield
        return
    names = ("__file__", "__spec__")
    kept: dict[str, Any] = {name: vars(script).pop(name) for name in names if name in vars(script)}
    script.__spec__ = None
    try:
        yield
    finally:
        vars(script).update(kept)


class _Finder(pickle.Pickler):
    """Finds out whether something has a class or function of the program's script in it; models are not looked into."""

    def __init__(self) -> None:
        super().__init__(BytesIO())
        self.found = False

    def persistent_id(self, thing: Any) -> str | None:
        """Look at a thing, and leave out what is large or belongs to the system."""
        kind = thing if isinstance(thing, type | FunctionType) else type(thing)
        self.found = self.found or kind.__module__ == "__main__"
        return "" if isinstance(thing, torch.Tensor | torch.nn.Module | Connection) else None
