"""Arms that decode several sequences for a prompt: a tree of thoughts, or continuations of one prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from specexp.bench.arm import EngineArm, Generation, eos_of, sequence_name
from specexp.bench.record import PromptRecord, Role, SequenceGroup
from specexp.core.generation import PHASES
from specexp.core.parts import Parts
from specexp.scheduling import Executor, Job, Run, Serial, SerialSpeculative, TimeLine
from specexp.scheduling.timeline import BUSY, TARGET

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from specexp.bench.solver import Solution, Solver
    from specexp.core.decode import OutcomeObserver
    from specexp.core.parts import Parts
    from specexp.core.runtime import Runtime
    from specexp.data import Prompt
    from specexp.data.task_items import Problem
    from specexp.scheduling import Execution

CONTINUATIONS = "continuations"


class ExecutionArm(EngineArm):
    """An execution strategy as an arm. What it starts is kept from prompt to prompt, until :meth:`close`.

    Args:
        name: Name in every table.
        model: The target.
        parts: Parts that decode every sequence.
        execution: How they are decoded.
        tokenizer: The target's.
        generation: How much to generate; ``samples`` continuations of a prompt are one group.
        problems: Items of tasks by prompt id; a prompt that is none is continued.
        solver: Searches the items.
        controller_state: What the controller learned from other prompts, that every run starts from.

    Raises:
        ValueError: the parts cannot be executed so.
    """

    def __init__(
        self,
        name: str,
        model: Runtime,
        parts: Parts,
        execution: Execution,
        tokenizer: PreTrainedTokenizerBase,
        generation: Generation,
        problems: Mapping[str, Problem] | None = None,
        solver: Solver | None = None,
        controller_state: Mapping[str, Any] | None = None,
    ) -> None:
        execution.check(parts)
        # in plain decoding nothing but the verifier is at work
        own = Parts(verifier=parts.verifier) if isinstance(execution, Serial) else parts
        super().__init__(name, own, generation, controller_state)
        self.model = model
        self.execution = execution
        self.tokenizer = tokenizer
        self.problems = dict(problems or {})
        self.solver = solver
        self.dtype = model.precision
        self.device = model.placement
        self.eos = eos_of(tokenizer, model.model) if generation.stop_at_eos else frozenset()
        self._executor: Executor | None = None

    @override
    def decode(self, prompt: Prompt, sample: int = 0, max_new_tokens: int | None = None) -> PromptRecord:
        executor = self._opened()
        problem = self.problems.get(prompt.prompt_id)
        try:
            if problem is None:
                started = perf_counter()
                run = self._continue(executor, prompt, max_new_tokens)
                solution, runs, wall = None, [(CONTINUATIONS, run)], perf_counter() - started
            else:
                assert self.solver is not None
                task, item = problem
                solution = self.solver.solve(
                    task, item, executor, sample=sample, max_new_tokens=max_new_tokens
                )
                runs, wall = list(solution.runs), solution.wall_seconds
            memory = executor.memory()
        except BaseException:
            self._executor = None  # what failed is closed: the next prompt starts anew
            executor.close()
            raise
        line = TimeLine()
        for _, run in runs:
            line.extend(run.timeline)
        for observe in self.timeline_observers:
            observe(prompt.prompt_id, line)
        return self._record(prompt, sample, runs, line, wall, memory, solution)

    @override
    def decode_observed(self, prompt: Prompt, sample: int, observe: OutcomeObserver) -> None:
        execution = Serial() if self.parts.drafter is None else SerialSpeculative()
        problem = self.problems.get(prompt.prompt_id)
        with execution.open(self.model, self.parts) as executor:
            if problem is None:
                self._continue(executor, prompt, observers=(observe,))
            else:
                assert self.solver is not None
                self.solver.solve(*problem, executor, sample=sample, observers=(observe,))

    @override
    def reset(self) -> None:
        if self._executor is not None:
            self._executor.reset(self.drafter_state or None, self.controller_state or None)

    @override
    def close(self) -> None:
        if self._executor is not None:
            self._executor.close()
            self._executor = None

    def _opened(self) -> Executor:
        if self._executor is None:
            self._executor = self.execution.open(self.model, self.parts)
            if self.drafter_state or self.controller_state:
                self.reset()
        return self._executor

    def _continue(
        self,
        executor: Executor,
        prompt: Prompt,
        max_new_tokens: int | None = None,
        observers: Sequence[OutcomeObserver] = (),
    ) -> Run:
        most = max_new_tokens or self.generation.max_new_tokens
        jobs = [
            Job(prompt.token_ids, sequence_name(prompt, number), most)
            for number in range(self.generation.samples)
        ]
        return executor.run(jobs, seed=self.generation.seed, eos_token_ids=self.eos, observers=observers)

    def _record(
        self,
        prompt: Prompt,
        sample: int,
        runs: Sequence[tuple[str, Run]],
        line: TimeLine,
        wall: float,
        memory: dict[str, int],
        solution: Solution | None,
    ) -> PromptRecord:
        results = [result for _, run in runs for result in run.results]
        return PromptRecord.of(
            self,
            prompt,
            sample,
            answers=[result.token_ids for result in results],
            finish_reasons=[result.finish_reason for result in results],
            counts=results,
            prompt_tokens=len(prompt.token_ids),
            prefill_seconds=sum(run.prefill_seconds for _, run in runs),
            seconds={phase: sum(run.seconds[phase] for _, run in runs) for phase in PHASES},
            group=SequenceGroup(
                sequences=len(results),
                wall_seconds=wall,
                busy_seconds=line.busy(TARGET, BUSY),
                overlap_seconds=line.overlap(),
                roles={name: _role([run for of, run in runs if of == name]) for name, _ in runs},
                correct=None if solution is None else solution.check.correct,
                unparsable=0 if solution is None else solution.unparsable,
                draft_bytes=memory,
            ),
        )


def _role(runs: Sequence[Run]) -> Role:
    results = [result for run in runs for result in run.results]
    return Role(
        sequences=len(results),
        tokens=sum(len(result.token_ids) for result in results),
        steps=sum(result.steps for result in results),
        accepted_drafts=sum(result.accepted_drafts for result in results),
        drafted_nodes=sum(result.drafted_nodes for result in results),
        draft_passes=sum(result.draft_passes for result in results),
        prefill_seconds=sum(run.prefill_seconds for run in runs),
        decode_seconds=sum(run.decode_seconds for run in runs),
        drafted_positions=sum(sum(result.drafted_at) for result in results),
    )
