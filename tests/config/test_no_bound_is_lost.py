"""The bounds of our own constructors reach the configuration: no annotation falls back to Any."""

import inspect
from typing import Any

import pytest

import specexp.builders
import specexp.controllers
import specexp.data
import specexp.data.tasks
import specexp.drafters
import specexp.papers
import specexp.reasoning.search
import specexp.verifiers
from specexp.config.annotations import _hints

FAMILIES = (
    specexp.papers, specexp.builders, specexp.controllers, specexp.data, specexp.drafters,
    specexp.reasoning.search, specexp.data.tasks, specexp.verifiers
)  # fmt: skip
PARTS = sorted(
    {
        part
        for family in FAMILIES
        for part in vars(family).values()
        if inspect.isclass(part)
        and "__init__" in vars(part)
        and not issubclass(part, Exception | tuple | specexp.papers.Report)
    },
    key=lambda part: part.__name__,
)


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.__name__)
def test_every_parameter_of_a_part_keeps_its_type(part: type) -> None:
    hints = _hints(part.__init__)
    parameters = [name for name in inspect.signature(part).parameters if name != "self"]
    assert [name for name in parameters if hints.get(name, Any) is Any] == []
