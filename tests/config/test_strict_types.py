"""A value is read strictly by the annotation of its argument, and the first wrong one inside it is named."""

from __future__ import annotations

import sys
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field

from specexp.config import ConfigError, load_config
from specexp.config.check import Checker, import_object
from specexp.config.explain import contracts
from specexp.config.families import find_part, parts_of
from specexp.core.arguments import arguments_of
from specexp.core.contracts import Drafter

CHECKER = Checker(lambda key: "mine.yaml")


@dataclass(frozen=True)
class Fixed:
    type: Literal["fixed"]
    size: Annotated[int, Field(ge=1)]


@dataclass(frozen=True)
class Growing:
    type: Literal["growing"]
    rate: float = 2.0


def takes(
    count: Annotated[int, Field(ge=1, le=64)] = 1,
    rate: Annotated[float, Field(gt=0)] = 0.5,
    name: str | None = None,
    flag: bool = False,
    sizes: list[Annotated[int, Field(ge=1)]] | None = None,
    costs: Mapping[int, float] | None = None,
    paths: Sequence[list[int]] = (),
    mode: Literal["first", "last", 3] = "first",
    where: Path | None = None,
    shape: Fixed | Growing | None = None,
    shapes: dict[str, Fixed | Growing] | None = None,
    anything: Any = None,
) -> None:
    """A function of all kinds of arguments."""


def read(**given: Any) -> dict[str, Any]:
    return CHECKER.arguments(takes, given, ("part",))


@pytest.mark.parametrize(
    ("given", "read_as"),
    [
        ({"count": 64}, 64),
        ({"rate": 8}, 8.0),
        ({"rate": 1e-3}, 0.001),
        ({"name": None}, None),
        ({"name": "8"}, "8"),
        ({"flag": True}, True),
        ({"sizes": [1, 2]}, [1, 2]),
        ({"costs": {1: 5, "64": 6.5}}, {1: 5.0, 64: 6.5}),
        ({"paths": [[0], [0, 1]]}, [[0], [0, 1]]),
        ({"mode": 3}, 3),
        ({"where": "x/y"}, Path("x/y")),
        ({"shape": {"type": "growing"}}, {"type": "growing", "rate": 2.0}),
        ({"shapes": {"a": {"type": "fixed", "size": 2}}}, {"a": {"type": "fixed", "size": 2}}),
        ({"anything": {"a": [1]}}, {"a": [1]}),
    ],
)
def test_allowed(given: dict[str, Any], read_as: Any) -> None:
    (name,) = given
    found = read(**given)[name]
    assert found == read_as
    assert type(found) is type(read_as)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"count": "8"}, "part.count is '8'; allowed is an integer of at least 1 and at most 64"),
        ({"count": True}, "part.count is True; allowed is an integer"),
        ({"count": 8.0}, "part.count is 8.0; allowed is an integer"),
        ({"count": 65}, "part.count is 65; allowed is an integer"),
        ({"count": None}, "part.count is null; allowed is an integer of at least 1 and at most 64"),
        ({"rate": "1e-3"}, "part.rate is '1e-3'; allowed is a number of more than 0"),
        ({"rate": float("nan")}, "part.rate is nan; allowed is a number of more than 0"),
        ({"rate": False}, "part.rate is False; allowed is a number"),
        ({"name": 8}, "part.name is 8; allowed is a text, or null"),
        ({"flag": 1}, "part.flag is 1; allowed is true or false"),
        ({"flag": "yes"}, "part.flag is 'yes'; allowed is true or false"),
        ({"sizes": [1, 0]}, "part.sizes.1 is 0; allowed is an integer of at least 1"),
        ({"sizes": 3}, "part.sizes is 3; allowed is a list, each an integer of at least 1, or null"),
        ({"sizes": {"a": 1}}, "part.sizes is {'a': 1}; allowed is a list"),
        ({"costs": {1: "5"}}, "part.costs.1 is '5'; allowed is a number"),
        ({"paths": [[0], ["0"]]}, "part.paths.1.0 is '0'; allowed is an integer"),
        ({"mode": "frist"}, "part.mode is 'frist'; allowed is one of first, last, 3; did you mean 'first'?"),
        ({"shape": {"type": "fixd", "size": 1}}, "part.shape.type is 'fixd'; did you mean 'fixed'?"),
        ({"shape": {"size": 1}}, "part.shape.type is missing; allowed are fixed, growing"),
        ({"shape": {"type": "fixed"}}, "part.shape.size is missing; Fixed needs an integer of at least 1"),
        ({"shapes": {"a": {"type": "fixed", "size": 0}}}, "part.shapes.a.size is 0; allowed is an integer"),
    ],
)
def test_refused(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(**given)
    assert str(caught.value).startswith(f"mine.yaml: {sentence}")


@pytest.mark.parametrize("text", ["1e-3", "1E-3", "1.0e-3", "+1e-3", ".001", "1e-03", "0.001"])
def test_however_a_number_is_written_in_a_file(tmp_path: Path, text: str) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(f"verify: {{level: {text}}}\ndrafter: null")
    assert load_config(file).get("verify.level") == 0.001


def test_bounds_survive_postponed_annotations_of_anybodys_part(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("elsewhere")
    monkeypatch.setitem(sys.modules, "elsewhere", module)
    source = (
        "from __future__ import annotations\n"
        "from typing import TYPE_CHECKING, Annotated\n"
        "from pydantic import Field\n"
        "from specexp.core.contracts import Drafter\n"
        "if TYPE_CHECKING:\n    from nowhere import Unknown\n"
        "class Echo(Drafter):\n"
        "    max_candidates = 8\n"
        "    def __init__(self, times: Annotated[int, Field(ge=1)], of: Unknown | None = None) -> None: ...\n"
        "    def propose(self, context, request): ...\n"
    )
    exec(source, vars(module))  # a module of another package
    with pytest.raises(
        ConfigError, match=r"part\.init_args\.times is 0; allowed is an integer of at least 1"
    ):
        CHECKER.value({"class_path": "elsewhere.Echo", "init_args": {"times": 0}}, Drafter, ("part",))


PARTS = [(contract, name) for contract in contracts() for name in parts_of(contract)]


@pytest.mark.parametrize(("contract", "name"), PARTS, ids=lambda one: str(one).rpartition(".")[2])
def test_every_argument_of_every_part_is_checked(contract: str, name: str) -> None:
    """No annotation is lost, and every one is a part, a section, a reference, or a type that pydantic reads."""
    part = find_part(import_object(contract), name)
    assert part is not None
    for argument, found in (arguments_of(part) or {}).items():
        allowed = found.allowed
        assert found.annotation is not Any, f"{argument} of {name} has no type that is known at run time"
        assert allowed.is_nested or allowed.reference or allowed.is_checked, (
            f"{argument} of {name} is not checked"
        )
