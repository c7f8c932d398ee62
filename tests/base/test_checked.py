"""Constructors have the same bounds in Python as in configurations: those of their annotations."""

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

from specexp.base.checked import Checked, Reference, check_arguments, model_of
from specexp.builders import Chain, KConfig, StaticTree
from specexp.config.check import Checker, parts_of
from specexp.config.explain import schema_of
from specexp.controllers import Fixed, RuleBandit
from specexp.core.contracts import Controller, Drafter, TreeBuilder, Verifier
from specexp.data import OwnPrompts, Workload
from specexp.drafters import TokenRecycling, Union
from specexp.verifiers import Greedy, KeyedSampling

pytestmark = pytest.mark.unit

FAMILIES = (Drafter, TreeBuilder, Verifier, Controller)


def _below_bounds() -> list[Any]:
    """Every numeric argument of every part, with a number that its annotation refuses."""
    rows = []
    for family in FAMILIES:
        for name, part in parts_of(family).items():
            for argument, schema in schema_of(part).get("properties", {}).items():
                for one in schema.get("anyOf", [schema]):
                    limit = one.get("minimum", one.get("exclusiveMinimum"))
                    if limit is not None:
                        rows.append(pytest.param(part, argument, limit - 1, id=f"{name}-{argument}"))
    assert len(rows) > 50
    return rows


@pytest.mark.parametrize(("part", "argument", "value"), _below_bounds())
def test_bounds_hold_in_python_as_in_configurations(part: Callable[..., Any], argument: str, value: float) -> None:
    with pytest.raises(ValueError, match=rf"^{part.__name__}: {argument} must be >=? \S+, got {value}"):
        part(**{argument: value})


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: KeyedSampling("hot"), "KeyedSampling: temperature must be a number, got 'hot'"),
        (lambda: KeyedSampling(True), "KeyedSampling: temperature must be a number, got True"),
        (lambda: TokenRecycling(update="frist"), "update must be 'last', 'first', "),
        (lambda: TokenRecycling(prefill_update=1), "prefill_update must be true or false, got 1"),
        (lambda: Fixed(max_nodes=1.5), "max_nodes must be an integer, got 1.5"),
        (lambda: StaticTree([[0], [0, "1"]]), "rank_paths.1.1 must be an integer, got '1'"),
        (lambda: StaticTree("tree.json"), "rank_paths must be a list, got 'tree.json'"),
        (lambda: KConfig(3), "widths must be a list, got 3"),
        (lambda: Union([TokenRecycling(), Chain()]), "drafters.1 must be an instance of Drafter, got <"),
        (lambda: Union(TokenRecycling()), "drafters must be a list, got <specexp.drafters"),
        (lambda: RuleBandit([Fixed]), "controllers.0 must be an instance of Controller, got <class"),
        (lambda: Workload("my.jsonl"), "Workload: prompts must be an instance of PromptSet, got 'my.jsonl'"),
        (lambda: Workload(OwnPrompts("x"), max_prompts=0), "max_prompts must be >= 1, got 0"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_refused_in_one_sentence(make: Callable[[], Any], said: str) -> None:
    with pytest.raises(ValueError) as caught:
        make()
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_tuples_ranges_and_numpy_numbers_are_taken() -> None:
    assert KConfig(range(1, 4)).max_nodes == KConfig([1, 2, 3]).max_nodes
    assert StaticTree(((0,), (0, 1))).max_nodes == 2
    assert TokenRecycling(k=np.int64(4)).k == 4
    assert KeyedSampling(np.float32(0.5)).processors.temperature == 0.5
    Union((TokenRecycling(), TokenRecycling(k=2)))


class Counting(Greedy):
    """A user's part with annotations that cannot be resolved."""

    def __init__(self, hook: Callable[[int], None], of: Nowhere.Near, *rest: int) -> None:  # type: ignore[name-defined]  # noqa: F821
        self.given = (hook, of, rest)


def test_unresolvable_annotations_are_not_checked() -> None:
    assert Counting(print, 3, 4, 5).given == (print, 3, (4, 5))
    with pytest.raises(ValueError, match="Counting: hook must be callable, got 3"):
        Counting(3, 3)


Scalar = TypeVar("Scalar", bound=np.generic)
Table = TypeAliasType("Table", np.ndarray[Any, np.dtype[Scalar]], type_params=(Scalar,))
"""As numpy 2.5 writes ``NDArray``."""


def takes_matrix(matrix: Annotated[Table[np.int32], Reference("adjacency-matrix")] | None = None) -> None:
    """A function of an alias."""


def test_a_type_alias_allows_the_aliased_type() -> None:
    check_arguments(takes_matrix, (np.zeros((2, 3), np.int32),), {})
    for wrong in ("matrix", [[1, 2]]):
        with pytest.raises(ValueError, match="takes_matrix: matrix must be an instance of ndarray, got "):
            check_arguments(takes_matrix, (wrong,), {})


def test_a_signature_copies_and_pickles_are_as_without() -> None:
    assert list(inspect.signature(Chain).parameters) == ["length", "candidates"]
    assert not inspect.signature(Greedy).parameters
    part = KeyedSampling(0.5, top_k=3)
    for other in (copy.deepcopy(part), pickle.loads(pickle.dumps(part))):
        assert vars(other.processors) == vars(part.processors)
    with pytest.raises(TypeError, match="unexpected keyword argument 'lenght'"):
        Chain(lenght=3)  # type: ignore[call-arg]


class Window(metaclass=Checked):
    """Has defaults that its annotations would refuse."""

    def __init__(self, sizes: Sequence[Annotated[int, Field(ge=1)]] = (0,), name: str | None = None) -> None:
        self.sizes, self.name = sizes, name


def test_only_given_arguments_are_checked_and_only_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Window().sizes == (0,)
    given: list[Any] = []
    monkeypatch.setattr("specexp.base.checked.check_arguments", lambda cls, *args: given.append(args))
    Window([3], name="a").sizes = [0]
    assert given == [(([3],), {"name": "a"})]


def test_a_part_of_a_configuration_is_checked_when_it_is_read_and_not_again_when_it_is_built(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checker, key = Checker(lambda key: "mine.yaml"), ("builder",)
    spec = checker.value({"class_path": "Chain", "init_args": {"length": 3}}, TreeBuilder, key)
    monkeypatch.setattr("specexp.base.checked.check_arguments", lambda *args: pytest.fail("checked again"))
    monkeypatch.setattr(model_of(Chain), "model_validate", lambda *args: pytest.fail("read again"))
    assert checker.build(spec, TreeBuilder, key).max_nodes == 3
