"""Prompts of somebody's own: which field holds them is recognised before anything else, told, and written down."""

from __future__ import annotations

from typing import Any

from specexp.config.build import build_workload, prompts_error
from specexp.config.config import Config, apply_overrides
from specexp.config.stages import STAGES, with_prompts_of


def with_recognised_fields(config: Config) -> tuple[Config, list[str]]:
    """An experiment whose ``data.field`` says where prompts of somebody's own stand, for all stages of its sweep.

    The prompts that are chosen are read once for it, so that a wrong line is told before models are loaded.

    Args:
        config: The experiment.

    Returns:
        The same with the fields set, and a line to print for every file.

    Raises:
        ConfigError: A file cannot be read, or its field is not told apart.
    """
    fields: dict[str, str] = {}
    said: list[str] = []
    for stage in (None, *STAGES):
        if stage is not None and "prompts" not in (config.get(f"sweep.{stage}.data", None) or {}):
            continue
        staged = with_prompts_of(config, stage)
        if not _is_own(staged.get("data.prompts")):
            continue
        from specexp.data import OwnPrompts, PromptSetError

        workload = build_workload(staged)
        assert isinstance(workload.prompts, OwnPrompts)
        try:
            rows = workload.rows()
        except PromptSetError as error:
            raise prompts_error(staged, error) from error
        field = str(workload.prompts.field)
        fields[f"{'data' if stage is None else f'sweep.{stage}.data'}.field"] = field
        chat = ", chat messages up to the user's last one" if any(rows["chat"]) else ""
        said.append(f"{workload.prompts.path}: prompts are read from {field!r}{chat}.")
        said += workload.prompts.remarks()
    return apply_overrides(config, fields, "recognised"), said


def _is_own(prompts: Any) -> bool:
    return str(prompts["class_path"]).rpartition(".")[2] == "OwnPrompts"
