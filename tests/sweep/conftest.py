"""What tests of sweeps share."""

import pytest


@pytest.fixture
def plots() -> None:
    """Asked for by tests of what a study draws."""


@pytest.fixture(autouse=True)
def _only_plots_that_are_asked_for(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A study's plots take longer to draw than small studies to run."""
    if "plots" not in request.fixturenames:
        monkeypatch.setattr("specexp.sweep.session.save_plots", lambda *study: [])
