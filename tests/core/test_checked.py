"""Constructors take in Python what configurations take: the bounds of their annotations, which are declared once."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypeVar

import numpy as np
import pytest
from pydantic import Field
from typing_extensions import TypeAliasType

from specexp.builders import Chain, KConfig, StaticTree
from specexp.config.families import find_part, parts_of
from specexp.controllers import Fixed, SwitchOff
from specexp.core.annotations import Allowed
from specexp.core.arguments import arguments_of
from specexp.core.checked import Checked
from specexp.core.contracts import Controller, Drafter, TreeBuilder, Verifier
from specexp.core.references import Reference
from specexp.data import OwnPrompts, Workload
from specexp.drafters import TokenRecycling, Union
from specexp.verifiers import Greedy, KeyedSampling

FAMILIES = (Drafter, TreeBuilder, Verifier, Controller)


def _below_bounds() -> list[Any]:
    """Every numeric argument of every part, with a number that its annotation refuses."""
    rows = []
    for family in FAMILIES:
        for name in parts_of(family):
            part = find_part(family, name)
            assert part is not None
            for argument, known in (arguments_of(part) or {}).items():
                for one in known.allowed.members:
                    limit = one.bounds.get("at least", one.bounds.get("more than"))
                    if limit is not None:
                        rows.append(pytest.param(part, argument, limit - 1, id=f"{name}-{argument}"))
    return rows


@pytest.mark.parametrize(("part", "argument", "value"), _below_bounds())
def test_no_bound_of_a_part_is_a_configurations_alone(
    part: Callable[..., Any], argument: str, value: float
) -> None:
    with pytest.raises(ValueError, match=rf"^{part.__name__}: {argument} is {value}; allowed is an? \w+ of "):
        part(**{argument: value})


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: KeyedSampling("hot"), "KeyedSampling: temperature is 'hot'; allowed is a number of at least 0"),
        (lambda: KeyedSampling(True), "KeyedSampling: temperature is True; allowed is a number"),
        (lambda: TokenRecycling(update="frist"), "update is 'frist'; allowed is one of last, first, race, "),
        (lambda: TokenRecycling(prefill_update=1), "prefill_update is 1; allowed is True or False"),
        (lambda: Fixed(max_nodes=1.5), "max_nodes is 1.5; allowed is an integer of at least 0, or None"),
        (lambda: StaticTree([[0], [0, "1"]]), "rank_paths.1.1 is '1'; allowed is an integer"),
        (lambda: StaticTree("tree.json"), "rank_paths is 'tree.json'; allowed is a list, each a list, each an integer"),
        (lambda: KConfig(3), "widths is 3; allowed is a list, each an integer"),
        (lambda: Union([TokenRecycling(), Chain()]), "drafters.1 is <specexp.builders"),
        (lambda: Union(TokenRecycling()), "allowed is a list of at most 64, each a Drafter"),
        (lambda: SwitchOff(Fixed), "controller is <class 'specexp.controllers"),
        (lambda: Workload("my.jsonl"), "Workload: prompts is 'my.jsonl'; allowed is a PromptSet"),
        (lambda: Workload(OwnPrompts("x"), max_prompts=0), "max_prompts is 0; allowed is an integer of at least 1"),
    ],
)  # fmt: skip
def test_what_no_annotation_allows_is_refused_in_one_sentence(make: Callable[[], Any], said: str) -> None:
    with pytest.raises(ValueError) as caught:
        make()
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_python_writes_otherwise_than_a_file_is_taken() -> None:
    assert KConfig(range(1, 4)).max_nodes == KConfig([1, 2, 3]).max_nodes
    assert StaticTree(((0,), (0, 1))).max_nodes == 2
    assert TokenRecycling(k=np.int64(4)).k == 4
    assert KeyedSampling(np.float32(0.5)).processors.temperature == 0.5
    Union((TokenRecycling(), TokenRecycling(k=2)))


class Counting(Greedy):
    """A part of somebody's own whose annotations nobody can resolve."""

    def __init__(self, hook: Callable[[int], None], of: Nowhere.Near, *rest: int) -> None:  # type: ignore[name-defined]  # noqa: F821
        self.given = (hook, of, rest)


def test_what_an_annotation_does_not_tell_is_not_looked_at() -> None:
    assert Counting(print, 3, 4, 5).given == (print, 3, (4, 5))
    with pytest.raises(ValueError, match="Counting: hook is 3; allowed is a function"):
        Counting(3, 3)


Scalar = TypeVar("Scalar", bound=np.generic)
Table = TypeAliasType("Table", np.ndarray[Any, np.dtype[Scalar]], type_params=(Scalar,))
"""As numpy 2.5 writes ``NDArray``."""


def test_an_alias_of_the_language_allows_what_it_stands_for() -> None:
    allowed = Allowed(Annotated[Table[np.int32], Reference("adjacency-matrix")] | None)
    matrix = np.zeros((2, 3), np.int32)
    assert allowed.takes(matrix)
    assert allowed.read(matrix) is matrix
    assert not allowed.takes("matrix")
    assert not allowed.takes([[1, 2]])


def test_a_signature_copies_and_pickles_are_as_without() -> None:
    assert list(inspect.signature(Chain).parameters) == ["length", "candidates"]
    assert not inspect.signature(Greedy).parameters
    part = KeyedSampling(0.5, top_k=3)
    for other in (copy.deepcopy(part), pickle.loads(pickle.dumps(part))):
        assert vars(other.processors) == vars(part.processors)
    with pytest.raises(TypeError, match="unexpected keyword argument 'lenght'"):
        Chain(lenght=3)  # type: ignore[call-arg]


class Window(metaclass=Checked):
    """Counts how often it is looked at."""

    def __init__(self, sizes: Sequence[Annotated[int, Field(ge=1)]] = (), name: str | None = None) -> None:
        self.sizes, self.name = sizes, name


def test_only_what_is_given_is_looked_at_and_only_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    takes = Allowed.takes
    monkeypatch.setattr(Allowed, "takes", lambda self, value: seen.append(value) or takes(self, value))
    window = Window([3], name="a")
    window.sizes, window.name = [0], "b"
    assert seen == [[3], "a"]
