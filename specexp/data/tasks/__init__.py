"""Reasoning tasks, one per module: the items, their prompts, and the evaluation of answers."""

from specexp.data.tasks.creative_writing import CreativeWriting
from specexp.data.tasks.gsm8k import GSM8K
from specexp.data.tasks.task import Check, Ending, Item, Task, Value

__all__ = ["GSM8K", "Check", "CreativeWriting", "Ending", "Item", "Task", "Value"]
