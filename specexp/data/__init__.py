"""Prompts to decode: a prompt set defines their source, and a workload selects and orders them.

Importing this package does not import ``datasets``. Modules that define prompt sets are imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from specexp.base.checked import classes_in
from specexp.data.prompt_set import (
    PromptRow as PromptRow,
    PromptSet as PromptSet,
    PromptSetError as PromptSetError,
    prompt_rows as prompt_rows,
)
from specexp.data.workload import (
    LoadedPrompts as LoadedPrompts,
    Prompt as Prompt,
    Workload as Workload,
    first_turn_ids as first_turn_ids,
)

if TYPE_CHECKING:
    from specexp.data.named_sets import (
        C4 as C4,
        GSM8K as GSM8K,
        MBPP as MBPP,
        Alpaca as Alpaca,
        CNNDailyMail as CNNDailyMail,
        EverydayTasks as EverydayTasks,
        HumanEval as HumanEval,
        MTBench as MTBench,
        OpenWebText as OpenWebText,
        RawText as RawText,
        SpecBench as SpecBench,
        StructuredTasks as StructuredTasks,
    )
    from specexp.data.own_prompts import OwnPrompts as OwnPrompts
    from specexp.data.task_items import TaskItems as TaskItems
    from specexp.data.training_text import StdlibFunctions as StdlibFunctions

__getattr__ = classes_in(__name__)
