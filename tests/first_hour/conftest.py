"""What the groups of wrong inputs share."""

import pytest
from helpers.first_hour import SECONDS


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """No row may hang."""
    for item in items:
        if item.path.parent.name == "first_hour" and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(SECONDS, func_only=True))


@pytest.fixture(autouse=True, scope="session")
def _libraries() -> None:
    """What takes seconds to import is no part of an answer's time."""
    import datasets  # noqa: F401
    import lightning  # noqa: F401
    import optuna  # noqa: F401
    import transformers  # noqa: F401
