"""Prompts to decode: a prompt set says where they come from, a workload which of them and in which order.

Importing this package imports neither Lightning nor ``datasets``; the Lightning side is
``specexp.data.prompts``.
"""

from specexp.data.alpaca import Alpaca
from specexp.data.c4 import C4
from specexp.data.cnn_daily_mail import CNNDailyMail
from specexp.data.gsm8k import GSM8K
from specexp.data.held_out import HeldOut
from specexp.data.human_eval import HumanEval
from specexp.data.mbpp import MBPP
from specexp.data.mt_bench import MTBench
from specexp.data.open_web_text import OpenWebText
from specexp.data.own_prompts import OwnPrompts
from specexp.data.prompt import Prompt
from specexp.data.prompt_set import PromptRow, PromptSet, PromptSetError, prompt_rows
from specexp.data.raw_text import RawText
from specexp.data.spec_bench import SpecBench
from specexp.data.speed_bench import SpeedBench
from specexp.data.stdlib import StdlibFunctions
from specexp.data.task_items import TaskItems
from specexp.data.workload import Workload

__all__ = [
    "C4",
    "GSM8K",
    "MBPP",
    "Alpaca",
    "CNNDailyMail",
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
    "SpeedBench",
    "StdlibFunctions",
    "TaskItems",
    "Workload",
    "prompt_rows",
]
