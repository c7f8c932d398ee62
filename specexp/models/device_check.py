"""A test of captured passes in seconds, when a GPU is first used: of drivers and libraries, not of a model."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import numpy as np
import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM

from specexp.core.language_model import LanguageModel
from specexp.core.messages import type_and_line
from specexp.core.runtime import CannotRunError, inference
from specexp.core.tree import TokenTree, TreeShape
from specexp.models.graphed import GraphedModel
from specexp.models.static_step import Replayer

_APART = 1e-3
"""Share of their norm by which float32 logits of one tree may differ between two ways to run it."""


def check_once(device: torch.device) -> None:
    """Run :func:`check_device` if it has not passed for this device, driver and libraries; a pass is remembered.

    Raises:
        CannotRunError: captured passes do not work there.
    """
    driver = Path("/proc/driver/nvidia/version")  # no interface of torch tells it
    about = [
        str(torch.cuda.get_device_properties(device)),
        driver.read_text() if driver.exists() else "",
        torch.version.cuda,
        torch.__version__,
        transformers.__version__,
    ]
    name = hashlib.sha256(json.dumps(about).encode()).hexdigest()[:16]
    home = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    passed = home / "specexp" / f"graphed-{name}.json"
    if passed.exists():
        return
    check_device(device)
    passed.parent.mkdir(parents=True, exist_ok=True)
    passed.write_text(json.dumps(about))


@inference
def check_device(device: torch.device, replayer: type[Replayer] | None = None) -> None:
    """Compare trees in captured passes with the model's own code, with poisoned outputs, and forbid hidden waits.

    Raises:
        CannotRunError: one sentence that says what failed.
    """
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.3,
    )
    model = LlamaForCausalLM(config).to(device).eval()
    try:
        captured, own = (
            GraphedModel(model, replayer, self_check=False),
            LanguageModel(model, self_check=False),
        )
        for seed in range(3):
            _compare(captured, own, seed)
    except CannotRunError:
        raise
    except Exception as error:  # of a driver, a kernel, a capture
        raise CannotRunError(f"graphed passes do not run on {device} ({type_and_line(error)})") from error


def _compare(captured: GraphedModel, own: LanguageModel, seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = TreeShape([-1, 0, 0, 1, 1, 2, 3], [-1, 0, 1, 0, 1, 0, 0])
    prompt, tree = rng.integers(0, 512, 20).tolist(), TokenTree(shape, rng.integers(0, 512, 7))
    for runtime in (captured, own):
        runtime.cache.truncate(0, 0)
        runtime.prefill(0, prompt)
        runtime.tree_pass([0], [tree])
        runtime.commit(0, [0, 2, 5])  # rows to move
    for replayer in captured._steps.values():
        for output in replayer.step.outputs():
            output.fill_(torch.nan if output.is_floating_point() else 255)
    on_cuda = captured.device.type == "cuda"
    if on_cuda:
        torch.cuda.set_sync_debug_mode("error")
    try:
        found = captured.tree_pass([0], [tree])[0]
    finally:
        if on_cuda:
            torch.cuda.set_sync_debug_mode("default")
    captured.synchronize()
    expected = own.tree_pass([0], [tree])[0]
    apart = float((found - expected).norm() / expected.norm())
    if not apart <= _APART:
        raise CannotRunError(
            f"graphed passes on {captured.device} answer {apart:.2g} of their norm apart from the model's own code"
        )
