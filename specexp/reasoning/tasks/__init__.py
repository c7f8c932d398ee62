"""Reasoning tasks: items, prompts, and what answers mean."""

from specexp.reasoning.tasks._base import Check, Ending, Item, Task, TaskFileError, Value
from specexp.reasoning.tasks.blocksworld import Blocksworld
from specexp.reasoning.tasks.creative_writing import CreativeWriting
from specexp.reasoning.tasks.gsm8k import GSM8K

__all__ = [
    "GSM8K",
    "Blocksworld",
    "Check",
    "CreativeWriting",
    "Ending",
    "Item",
    "Task",
    "TaskFileError",
    "Value",
]
