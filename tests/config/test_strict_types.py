"""Values are read strictly by the annotations of their arguments, and errors name the first wrong value."""

from __future__ import annotations

import sys
import types
from collections.abc import Mapping, Sequence
from importlib.machinery import EXTENSION_SUFFIXES
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field

from specexp.base.checked import IntegerKey, Section, arguments_of, classes_of, import_object
from specexp.config import ConfigError, load_config
from specexp.config.check import Checker, part_names, parts_of
from specexp.config.explain import contracts
from specexp.core.contracts import Drafter

pytestmark = pytest.mark.unit

CHECKER = Checker(lambda key: "mine.yaml")


class Fixed(Section):
    type: Literal["fixed"]
    size: Annotated[int, Field(ge=1)]


class Growing(Section):
    type: Literal["growing"]
    rate: float = 2.0


Shape = Annotated[Fixed | Growing, Field(discriminator="type")]


def takes(
    count: Annotated[int, Field(ge=1, le=64)] = 1,
    rate: Annotated[float, Field(gt=0)] = 0.5,
    name: str | None = None,
    flag: bool = False,
    sizes: list[Annotated[int, Field(ge=1)]] | None = None,
    costs: Mapping[IntegerKey, float] | None = None,
    paths: Sequence[list[int]] = (),
    mode: Literal["first", "last", 3] = "first",
    shape: Shape | None = None,
    shapes: dict[str, Shape] | None = None,
    anything: Any = None,
) -> None:
    """A function of all kinds of arguments."""


def read(**given: Any) -> dict[str, Any]:
    return CHECKER.arguments(takes, given, ("part",))


@pytest.mark.parametrize(
    ("given", "read_as"),
    [
        ({"rate": 8}, 8.0),
        ({"rate": 1e-3}, 0.001),
        ({"name": "8"}, "8"),
        ({"sizes": [1, 2]}, [1, 2]),
        ({"costs": {1: 5, "64": 6.5}}, {1: 5.0, 64: 6.5}),
        ({"paths": [[0], [0, 1]]}, [[0], [0, 1]]),
        ({"mode": 3}, 3),
        ({"shape": {"type": "growing"}}, {"type": "growing", "rate": 2.0}),
        ({"shapes": {"a": {"type": "fixed", "size": 2}}}, {"a": {"type": "fixed", "size": 2}}),
        ({"anything": {"a": [1]}}, {"a": [1]}),
    ],
)
def test_values_of_the_annotated_type_are_read(given, read_as):
    (name,) = given
    found = read(**given)[name]
    assert found == read_as
    assert type(found) is type(read_as)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"count": "8"}, "part.count must be an integer, got '8'"),
        ({"count": True}, "part.count must be an integer, got True"),
        ({"count": 8.0}, "part.count must be an integer, got 8.0"),
        ({"count": 65}, "part.count must be <= 64, got 65"),
        ({"rate": "1e-3"}, "part.rate must be a number, got '1e-3'"),
        ({"rate": float("nan")}, "part.rate must be a finite number, got nan"),
        ({"name": 8}, "part.name must be a text, got 8"),
        ({"flag": 1}, "part.flag must be true or false, got 1"),
        ({"sizes": [1, 0]}, "part.sizes.1 must be >= 1, got 0"),
        ({"sizes": 3}, "part.sizes must be a list, got 3"),
        ({"costs": {1: "5"}}, "part.costs.1 must be a number, got '5'"),
        ({"paths": [[0], ["0"]]}, "part.paths.1.0 must be an integer, got '0'"),
        ({"mode": "frist"}, "part.mode must be 'first', 'last' or 3, got 'frist'; did you mean 'first'?"),
        ({"shape": {"type": "fixd", "size": 1}}, "part.shape.type must be one of 'fixed', 'growing', got 'fixd'"),
        ({"shape": {"size": 1}}, "part.shape.type is missing"),
        ({"shapes": {"a": {"type": "fixed", "size": 0}}}, "part.shapes.a.size must be >= 1, got 0"),
    ],
)
def test_values_of_another_type_are_refused_with_their_key(given, sentence):
    with pytest.raises(ConfigError) as caught:
        read(**given)
    assert str(caught.value).startswith(f"mine.yaml: {sentence}")


@pytest.mark.parametrize("text", ["1e-3", "1E-3", "1.0e-3", "+1e-3", ".001", "1e-03", "0.001"])
def test_all_spellings_of_a_number_are_read_from_a_file(tmp_path, text):
    file = tmp_path / "mine.yaml"
    file.write_text(f"verify: {{level: {text}}}\ndrafter: null")
    assert load_config(file).get("verify.level") == 0.001


def test_bounds_hold_for_postponed_annotations_of_a_foreign_part(monkeypatch):
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
    with pytest.raises(ConfigError, match=r"part\.init_args\.times must be >= 1, got 0"):
        CHECKER.value({"class_path": "elsewhere.Echo", "init_args": {"times": 0}}, Drafter, ("part",))


@pytest.mark.parametrize("contract", contracts())
def test_names_of_parts_read_from_the_source_are_those_of_the_imported_classes(contract):
    assert part_names(import_object(contract)) == [*parts_of(contract)]


def test_compiled_modules_of_a_package_are_not_read(tmp_path, monkeypatch):
    (tmp_path / "mixed").mkdir()
    (tmp_path / "mixed" / "__init__.py").touch()
    (tmp_path / "mixed" / f"fast{EXTENSION_SUFFIXES[0]}").write_bytes(b"\x7fELF\xff")
    (tmp_path / "mixed" / "parts.py").write_text("class Fast(dict): ...")
    monkeypatch.syspath_prepend(tmp_path)
    assert list(classes_of("mixed")) == ["Fast"]


PARTS = [(name, part) for contract in contracts() for name, part in parts_of(contract).items()]


@pytest.mark.parametrize(("name", "part"), PARTS)
def test_every_argument_of_every_part_has_a_type_that_is_known_at_run_time(name, part):
    known = arguments_of(part)
    assert known is not None, name
    assert [argument for argument, found in known.items() if found.annotation is Any] == []
