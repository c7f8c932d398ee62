"""Files of SEED's tasks: templates of prompts, and items in text or JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from specexp.data import PromptSetError

Prompts = Literal["own", "published"]
"""The source of prompts: this project, or the paper (SEED, appendix C)."""


def read_prompt(task_file: str, name: str) -> str:
    """Return a prompt template of a task: the file ``prompts/TASK/NAME.txt`` without its final line break.

    The template must end where the first token of the continuation begins: after a line break or before a space.
    """
    module = Path(task_file)
    file = module.parent / "prompts" / module.stem / f"{name}.txt"
    return file.read_text(encoding="utf-8").removesuffix("\n")


def read_text(path: str) -> str:
    """Return the content of a text file. Raises PromptSetError if it cannot be read."""
    try:
        return Path(path).expanduser().read_text(encoding="utf-8")
    except OSError as error:
        raise PromptSetError(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise PromptSetError(f"{path}: must be UTF-8 text (invalid byte at position {error.start})") from error


def read_json(path: str) -> Any:
    """Return the content of a JSON file. Raises PromptSetError if it cannot be read."""
    try:
        return json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise PromptSetError(f"{path}, line {error.lineno}: must be valid JSON ({error.msg})") from error
