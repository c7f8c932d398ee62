"""Prompts to decode: a prompt set defines their source, and a workload selects and orders them.

Importing this package imports neither Lightning nor ``datasets``. The Lightning data module is in
``specexp.data.prompts``.
"""

from specexp.data.named_sets import (
    C4,
    GSM8K,
    MBPP,
    Alpaca,
    CNNDailyMail,
    EverydayTasks,
    HumanEval,
    MTBench,
    OpenWebText,
    RawText,
    SpecBench,
)
from specexp.data.own_prompts import OwnPrompts
from specexp.data.prompt_set import PromptRow, PromptSet, PromptSetError, prompt_rows
from specexp.data.task_items import TaskItems
from specexp.data.training_text import HeldOut, StdlibFunctions
from specexp.data.workload import Prompt, Workload, first_turn_ids

__all__ = [
    "C4",
    "GSM8K",
    "MBPP",
    "Alpaca",
    "CNNDailyMail",
    "EverydayTasks",
    "HeldOut",
    "HumanEval",
    "MTBench",
    "OpenWebText",
    "OwnPrompts",
    "Prompt",
    "PromptRow",
    "PromptSet",
    "PromptSetError",
    "RawText",
    "SpecBench",
    "StdlibFunctions",
    "TaskItems",
    "Workload",
    "first_turn_ids",
    "prompt_rows",
]
