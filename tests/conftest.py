"""Settings every test shares."""

import os
from pathlib import Path

import hypothesis
import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("WANDB_MODE", "offline")

hypothesis.settings.register_profile(
    "specexp",
    deadline=None,  # the first example of a model compiles kernels
    derandomize=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("specexp")


@pytest.fixture(autouse=True, scope="session")
def _quiet_and_single_threaded() -> None:
    """Small models are fastest on one thread, and transformers' advice about them is noise."""
    import torch
    import transformers

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()


@pytest.fixture(scope="session")
def specexp_data() -> Path:
    """The folder with the real files."""
    folder = os.environ.get("SPECEXP_DATA")
    if not folder:
        pytest.skip(
            "SPECEXP_DATA is not set; it names a folder with the prompt sets in their original formats"
        )
    return Path(folder)
