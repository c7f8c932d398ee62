"""The ``generate`` function for model folders that decode with an artifact.

``python -m specexp.export ARTIFACT --to serve-bundle`` writes such a folder. Its file ``custom_generate/generate.py``
imports this module, and Hugging Face runs that file if it is trusted::

    transformers serve --trust-remote-code models/tree_shape
    model = AutoModelForCausalLM.from_pretrained("models/tree_shape", trust_remote_code=True)
"""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

from transformers import (
    AutoModelForCausalLM,
    GenerationMixin,
    PreTrainedModel,
    StoppingCriteriaList,
    StopStringCriteria,
)
from transformers.generation import GenerationConfig

from specexp.artifacts import ArtifactError
from specexp.config.artifacts import load_artifact
from specexp.deploy.hugging_face.custom_generate import CustomGenerate, custom_generate

ARTIFACT, DRAFT = Path("specexp", "artifact"), Path("specexp", "draft")
"""Paths of the artifact and the draft model within the model folder."""
HOOK = Path("custom_generate", "generate.py")
HOOK_TEXT = '''"""Decodes with the artifact in this folder: pip install specexp."""

from specexp.deploy.hugging_face.bundle import generate

__all__ = ["generate"]
'''
OFF = "specexp_off"
"""The key in a generation config that turns speculation off."""

_made: WeakKeyDictionary[PreTrainedModel, CustomGenerate] = WeakKeyDictionary()
_making = Lock()


def generate(
    *args: Any,
    model: PreTrainedModel,
    generation_config: GenerationConfig | None = None,
    tokenizer: Any = None,
    **given: Any,
) -> Any:
    """Run ``model.generate`` with the given arguments, decoding with the artifact in the model's folder.

    If ``specexp_off`` is set in the generation config, plain ``generate`` runs.

    Raises:
        ArtifactError: the model's folder has no artifact, or an artifact of another model.
        ValueError: ``stop_strings`` are given without the ``tokenizer``, or an argument is not supported.
    """
    if getattr(generation_config, OFF, False):
        return GenerationMixin.generate(
            model, *args, generation_config=generation_config, tokenizer=tokenizer, **given
        )
    strings = given.pop("stop_strings", None) or getattr(generation_config, "stop_strings", None)
    if strings:  # generate passes no tokenizer to callables, so it cannot handle stop_strings itself
        if tokenizer is None:
            raise ValueError(
                "stop_strings need the tokenizer: call model.generate(..., stop_strings=..., tokenizer=tokenizer)"
            )
        generation_config = deepcopy(generation_config)  # do not change the caller's object
        if generation_config is not None:
            generation_config.stop_strings = None
        criteria = given.pop("stopping_criteria", None) or []
        given["stopping_criteria"] = StoppingCriteriaList([*criteria, StopStringCriteria(tokenizer, strings)])
    return GenerationMixin.generate(
        model, *args, generation_config=generation_config, custom_generate=_callable_of(model), **given
    )


def _callable_of(model: PreTrainedModel) -> CustomGenerate:
    """Return a model's callable, which is created on the first call."""
    with _making:  # servers call this from several threads
        if model not in _made:
            folder = Path(model.name_or_path)
            if not (folder / ARTIFACT).is_dir():
                raise ArtifactError(
                    f"{folder} has no artifact in {ARTIFACT}: export the folder again, and load it from a local path"
                )
            draft = None
            if (folder / DRAFT).is_dir():
                draft = AutoModelForCausalLM.from_pretrained(folder / DRAFT, dtype="auto").to(model.device)
            _made[model] = custom_generate(load_artifact(folder / ARTIFACT), draft=draft)
        return _made[model]
