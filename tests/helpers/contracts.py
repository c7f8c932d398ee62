"""Test classes of a contract, one line each."""

from collections.abc import Callable
from typing import Any


def contract_of(contract: type, make: Callable[[], Any], *further: type) -> type:
    """Return the test class of a contract, and of ``further`` tests, for the part that ``make`` returns.

    Example:
        >>> TestChain = contract_of(TreeBuilderContract, lambda: Chain(4))  # doctest: +SKIP
    """
    hook = next(name for name in dir(contract) if name.startswith("make_"))  # make_drafter before make_target
    return type(contract.__name__, (*further, contract), {hook: lambda self: make()})
