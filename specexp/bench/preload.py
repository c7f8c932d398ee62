"""Parts that start a run from what other prompts taught them."""

from __future__ import annotations

import re
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from specexp.artifacts import kind_for
from specexp.config import ConfigError, build_data
from specexp.config.artifacts import save_artifact
from specexp.core.parts import Parts
from specexp.data import PromptSetError

if TYPE_CHECKING:
    from specexp.bench.arm_spec import ArmSpec, Backend


def preloaded(spec: ArmSpec, backend: Backend) -> ArmSpec:
    """Decode an arm's ``preload`` prompts, and let it start from what drafter and controller learned.

    What a drafter learned becomes an artifact, ``<output>/<name>/preloaded/<arm>``, and its parts are built from that;
    what drafts inside it keeps its own state policy.

    Args:
        spec: Specification with ``preload``, a configuration and parts, which learn here.
        backend: Models, which decode the prompts.

    Raises:
        ConfigError: Nothing learns: no artifact kind holds what the drafter knows or it does not carry it from prompt
            to prompt, and the controller keeps no state; or the prompts cannot be read.
    """
    assert spec.preload is not None
    assert spec.config is not None
    assert spec.parts is not None
    where = f"{spec.where}.preload"
    drafter, controller = spec.parts.drafter, spec.parts.controller
    composition = {family: spec.config.get(family) for family in Parts._fields}
    kept = kind_for("drafter", composition) if drafter is not None and drafter.shares_state else None
    if kept is None and (not controller.state_dict()):
        raise ConfigError(
            f"{where} needs a drafter that carries what it learns (state 'carry'), such as TokenRecycling or "
            "PhraseCache, or a controller that learns from the prompts"
        )
    data = build_data(spec.preload, backend.tokenizer)
    try:
        data.setup("test")
    except PromptSetError as error:
        raise ConfigError(f"{where}: {error}") from error
    teacher = backend.arm(replace(spec, execution=None, latency=None))
    for prompt in data.prompts:
        teacher.decode(prompt)
    learned = deepcopy(controller.state_dict())
    if kept is None:
        return replace(spec, preload=None, controller_state=learned)
    assert drafter is not None
    payloads = kept.payloads_of(composition, {"learned": {"drafter": drafter.state_dict()}})
    loaded = save_artifact(
        Path(spec.config.get("output"))
        / spec.config.get("name")
        / "preloaded"
        / re.sub(r"[/\\:]|^\.+", "_", spec.name),
        kept.kind,
        payloads or {},
        {"study": spec.config.get("name"), "config": spec.preload.to_dict()},
        backend.fingerprint(),
    ).drafter
    loaded.use_draft_model(backend.draft)
    parts = spec.parts._replace(drafter=loaded)
    return replace(spec, parts=parts, preload=None, controller_state=learned)
