"""Fixtures that type rows of wrong inputs."""

import pytest
from helpers.first_hour import Row, check, make

SECONDS = 10  # a command without an answer by then hangs


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """No row may hang."""
    for item in items:
        if item.path.parent.name == "first_hour" and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(SECONDS, func_only=True))


@pytest.fixture(autouse=True, scope="session")
def _libraries():
    """Import what takes seconds to import, which is not part of an answer's time."""
    import datasets  # noqa: F401
    import lightning  # noqa: F401
    import optuna  # noqa: F401
    import transformers  # noqa: F401


@pytest.fixture
def answered(tmp_path, monkeypatch, capsys):
    """Type a row in a folder of its own and check the answer."""

    def type_(row: Row) -> None:
        make(row.files, tmp_path)
        check(row, capsys)

    monkeypatch.chdir(tmp_path)
    return type_
