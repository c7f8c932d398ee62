"""Reasoning tasks: their items, their prompts, and the evaluation of answers."""

from specexp.data.tasks.task import Check as Check, Ending as Ending, Item as Item, Task as Task, Value as Value
