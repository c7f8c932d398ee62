"""Set `data.field` of prompts in a user's own file, once their field is recognised."""

from __future__ import annotations

from specexp.config.build import build_workload, prompts_error
from specexp.config.config import Config, apply_overrides
from specexp.config.stages import STAGES, with_prompts_of


def with_recognised_fields(config: Config) -> tuple[Config, list[str]]:
    """Return an experiment with ``data.field`` set for all stages of its sweep, and a line to print for each file.

    Each file of prompts is read once, so that a wrong line is reported before models are loaded.

    Raises:
        ConfigError: a file cannot be read, or its field is not recognised.
    """
    fields: dict[str, str] = {}
    said: list[str] = []
    for stage in (None, *STAGES):
        if stage is not None and "prompts" not in (config.get(f"sweep.{stage}.data", None) or {}):
            continue
        staged = with_prompts_of(config, stage)
        if str(staged.get("data.prompts")["class_path"]).rpartition(".")[2] != "OwnPrompts":
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
