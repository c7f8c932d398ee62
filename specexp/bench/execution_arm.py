"""Arms that decode several sequences for a prompt: a tree of thoughts, or continuations of one prompt."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any

from specexp.bench.arm import EngineArm, Generation, describe, eos_of, sequence_name
from specexp.bench.decoder_arm import state_of
from specexp.bench.record import PromptRecord, Role, SequenceGroup
from specexp.core.parts import DeterministicVerifier, Parts
from specexp.core.sequence import PHASES
from specexp.scheduling import Executor, Job, Run, Serial, SerialSpeculative, TimeLine
from specexp.scheduling.timeline import BUSY, TARGET

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from specexp.bench.solver import Solution, Solver
    from specexp.core.decoder import OutcomeObserver
    from specexp.core.language_model import LanguageModel
    from specexp.core.parts import Parts
    from specexp.data import Prompt
    from specexp.data.task_items import Problem
    from specexp.scheduling import Execution

TimeLineObserver = Callable[[str, TimeLine], None]
"""Called with prompt id and time line."""
CONTINUATIONS = "continuations"


class ExecutionArm(EngineArm):
    """An execution strategy as an arm. What it starts is kept from prompt to prompt, until :meth:`close`.

    Args:
        name: in every table.
        model: the target.
        parts: of every sequence.
        execution: how they are decoded.
        tokenizer: the target's.
        generation: how much to generate; ``samples`` continuations of a prompt are one group.
        problems: items of tasks by prompt id; a prompt that is none is continued.
        solver: searches the items.
        controller_state: what the controller learned from other prompts, that every run starts from.

    Attributes:
        timeline_observers: called after every prompt.
        drafter_state: what the drafter learned from other prompts, that every run starts from; empty for none.

    Raises:
        ValueError: the parts cannot be executed so.
    """

    def __init__(
        self,
        name: str,
        model: LanguageModel,
        parts: Parts,
        execution: Execution,
        tokenizer: PreTrainedTokenizerBase,
        generation: Generation,
        problems: Mapping[str, Problem] | None = None,
        solver: Solver | None = None,
        controller_state: Mapping[str, Any] | None = None,
    ) -> None:
        execution.check(parts)
        self.name = name
        self.model = model
        # in plain decoding nothing but the verifier is at work
        self.parts = Parts(verifier=parts.verifier) if isinstance(execution, Serial) else parts
        self.execution = execution
        self.tokenizer = tokenizer
        self.generation = generation
        self.problems = dict(problems or {})
        self.solver = solver
        self.controller_state = dict(controller_state or {})
        self.drafter_state: dict[str, Any] = {}
        self.timeline_observers: Sequence[TimeLineObserver] = ()
        self.eos = eos_of(tokenizer, model.model) if generation.stop_at_eos else frozenset()
        self._executor: Executor | None = None

    def decode(self, prompt: Prompt, sample: int = 0, max_new_tokens: int | None = None) -> PromptRecord:
        """Decode all sequences of a prompt."""
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

    def replay(self, prompt: Prompt, sample: int, observe: OutcomeObserver) -> None:
        """All sequences one after the other, by the arm's own parts."""
        execution = Serial() if self.parts.drafter is None else SerialSpeculative()
        problem = self.problems.get(prompt.prompt_id)
        with execution.open(self.model, self.parts) as executor:
            if problem is None:
                self._continue(executor, prompt, observers=(observe,))
            else:
                assert self.solver is not None
                self.solver.solve(*problem, executor, sample=sample, observers=(observe,))

    def reset(self) -> None:
        """Reset drafter and controller; they go on from what they were given."""
        if self._executor is not None:
            self._executor.reset(self.drafter_state or None, self.controller_state or None)

    def close(self) -> None:
        """Stop what was started; the next prompt starts it again."""
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
        counts = [result.counts for result in results]
        verifier = self.parts.verifier
        token_ids = tuple(token for result in results for token in result.token_ids)
        seconds = {phase: sum(run.seconds[phase] for _, run in runs) for phase in PHASES}
        return PromptRecord(
            arm=self.name,
            prompt_id=prompt.prompt_id,
            category=prompt.category,
            sample=sample,
            prompt_tokens=len(prompt.token_ids),
            token_ids=token_ids,
            turn_tokens=tuple(len(result.token_ids) for result in results),
            finish_reasons=tuple(result.finish_reason for result in results),
            steps=sum(count.steps for count in counts),
            accepted_drafts=sum(count.accepted_drafts for count in counts),
            bonus_tokens=sum(count.bonus_tokens for count in counts),
            draft_passes=sum(count.draft_passes for count in counts),
            drafted_nodes=sum(count.drafted_nodes for count in counts),
            prefill_seconds=sum(run.prefill_seconds for _, run in runs),
            decode_seconds=sum(seconds.values()),
            decode_tokens=len(token_ids),
            seconds=seconds,
            dtype=str(self.model.dtype).removeprefix("torch."),
            device=str(self.model.device),
            state=state_of(self.parts.drafter),
            verifier=describe(verifier),
            lossless=verifier.lossless,
            keyed=isinstance(verifier, DeterministicVerifier),
            seed=self.generation.seed,
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
    )
