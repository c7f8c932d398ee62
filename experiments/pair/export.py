"""Writes a trained model as a Hugging Face folder: bfloat16 safetensors, config and tokenizer."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch


def export_model(model: Any, tokenizer: Any, folder: str | Path) -> None:
    """Saves ``model`` in bfloat16 and ``tokenizer`` to ``folder``, replacing each file atomically.

    The model itself stays as it is. Other files of the folder, such as a model card, are left alone.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    copy = type(model)(model.config)
    copy.load_state_dict(model.state_dict())
    with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
        copy.to(torch.bfloat16).save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)
        for file in sorted(Path(temporary).iterdir()):
            file.chmod(0o644)
            file.replace(folder / file.name)
