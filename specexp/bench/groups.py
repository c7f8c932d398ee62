"""Makes the arms of an experiment that decodes several sequences for a prompt: they share prompts, tasks and search."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from specexp.bench.arm import eos_of
from specexp.bench.execution_arm import ExecutionArm
from specexp.bench.solver import Solver
from specexp.config import Config, build_generation, build_reasoning, build_task_items

if TYPE_CHECKING:
    from specexp.core.language_model import LanguageModel
    from specexp.core.parts import Parts
    from specexp.pairs.pair import ModelPair
    from specexp.scheduling import Execution


class Groups:
    """What all arms have in common.

    Args:
        config: of the experiment.
        pair: the models.
        model: the target, wrapped once for all arms.

    Raises:
        PromptSetError: a task's file cannot be read.
    """

    def __init__(self, config: Config, pair: ModelPair, model: LanguageModel) -> None:
        self.pair = pair
        self.model = model
        self.generation = build_generation(config)
        tasks = build_task_items(config)
        self.problems = {} if tasks is None else tasks.problems
        reasoning = build_reasoning(config)
        self.solver = Solver(
            reasoning.search,
            pair.tokenizer,
            eos_token_ids=eos_of(pair.tokenizer, model.model) if self.generation.stop_at_eos else frozenset(),
            seed=self.generation.seed,
            max_new_tokens=reasoning.max_new_tokens,
            chat_template=config.get("data.chat_template"),
        )

    def arm(
        self, name: str, execution: Execution, parts: Parts, controller_state: Mapping[str, Any] | None = None
    ) -> ExecutionArm:
        """An arm.

        Raises:
            ValueError: the parts cannot be executed so.
        """
        return ExecutionArm(
            name,
            self.model,
            parts,
            execution,
            self.pair.tokenizer,
            self.generation,
            self.problems,
            self.solver,
            controller_state,
        )
