"""Reasoning tasks: their items, their prompts, and the evaluation of answers."""

from specexp.data.tasks.task import Check, Ending, Item, Task, Value

__all__ = ["Check", "Ending", "Item", "Task", "Value"]
