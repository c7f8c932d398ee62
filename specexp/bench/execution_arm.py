"""Arms that decode several sequences per prompt: a search over thoughts (SEED, Algorithm 1), or continuations."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Literal

from transformers import PreTrainedTokenizerBase
from typing_extensions import override

from specexp.bench.arm import LearningArm, eos_of, sequence_name
from specexp.bench.arm_spec import ArmSpec
from specexp.bench.record import PromptRecord, Role, SequenceGroup
from specexp.core.loop import OutcomeObserver
from specexp.core.outcome import PHASES, Outcome
from specexp.core.parts import Parts
from specexp.core.runtime import Runtime
from specexp.data import Prompt
from specexp.data.searches.search import Continuations, Search, SearchResult
from specexp.data.task_items import Problem
from specexp.data.tasks import Check, Ending, Item, Task
from specexp.data.workload import first_turn_ids
from specexp.scheduling import Executor, Job, Run, Serial, SerialSpeculative, TimeLine
from specexp.scheduling.timeline import BUSY, TARGET

CONTINUATIONS = "continuations"
Component = Literal["generator", "evaluator"]
_Decode = Callable[[Component, Sequence[str], Sequence[str], Ending], list[str]]
"""Decodes prompts together, given the component, a random key per prompt, the prompts and their ending."""


@dataclass(frozen=True)
class Solution:
    """The answer that a search found for an item."""

    result: SearchResult  # the path found, and the tree of thoughts
    check: Check
    unparsable: int  # number of evaluations that could not be parsed
    # the executor's runs in order, each with the component that requested it
    runs: tuple[tuple[Component, Run], ...]


@dataclass(frozen=True)
class Solver:
    """Answers a search's requests by decoding. The same target generates thoughts and evaluates states.

    Randomness is keyed by the item, the sample and a state's path. A state's text is therefore the same for every
    strategy and every order of expansion.
    """

    search: Search
    tokenizer: PreTrainedTokenizerBase
    eos_token_ids: Collection[int] = frozenset()
    stop_at_repetition: bool = False
    seed: int = 0  # the seed of the keyed noise
    max_new_tokens: int | None = None  # token limit per generation; None uses the task's own limits
    chat_template: bool = False  # whether prompts are formatted with the tokenizer's chat template
    template_arguments: Mapping[str, Any] = field(default_factory=dict)
    problems: Mapping[str, Problem] = field(default_factory=dict)  # the task items, by prompt id

    def solve(
        self,
        task: Task,
        item: Item,
        executor: Executor,
        *,
        sample: int = 0,
        max_new_tokens: int | None = None,
        observers: Sequence[Callable[[Outcome], None]] = (),
    ) -> Solution:
        """Search for the answer to one item. Each request of the search is one run of the executor.

        The same ``sample`` always gives the same answer. ``max_new_tokens`` overrides the solver's limit in warm-up
        runs. Raises ValueError if a prompt does not fit in the target's context.
        """
        most = self.max_new_tokens if max_new_tokens is None else max_new_tokens
        runs: list[tuple[Component, Run]] = []

        def decode(role: Component, keys: Sequence[str], prompts: Sequence[str], ending: Ending) -> list[str]:
            names = [f"{task.name}/{item.item_id}#{sample}/{place}" for place in keys]
            jobs = self._jobs(names, prompts, ending, most)
            run = executor.run(jobs, seed=self.seed, eos_token_ids=self.eos_token_ids, observers=observers)
            runs.append((role, run))
            return [ending.cut(self._text(result.token_ids)) for result in run.results]

        unparsable = 0
        exploration = self.search.explore(task.depth)
        try:
            request = next(exploration)
            while True:
                if isinstance(request, Continuations):
                    texts, n = _thoughts(task, item, request, decode), request.n
                    request = exploration.send([texts[at : at + n] for at in range(0, len(texts), n)])
                    continue
                prompts = [task.value_prompt(item, state.thoughts) for state in request.states]
                keys = [f"value {_dotted(state.path)}" for state in request.states]
                values = [task.value(text) for text in decode("evaluator", keys, prompts, task.value_ending)]
                unparsable += sum(not value.parsed for value in values)
                request = exploration.send([value.value for value in values])
        except StopIteration as found:
            result: SearchResult = found.value
        return Solution(result, task.check(item, result.final.thoughts), unparsable, tuple(runs))

    def _jobs(self, names: Sequence[str], prompts: Sequence[str], ending: Ending, most: int | None) -> list[Job]:
        limit = ending.max_new_tokens if most is None else min(most, ending.max_new_tokens)
        rendering = (self.chat_template, (), self.template_arguments)
        tokens = {one: tuple(first_turn_ids(self.tokenizer, one, *rendering)) for one in prompts}

        def stop(found: Sequence[int]) -> bool:
            return ending.reached(self._text(found))

        given = (limit, stop, self.stop_at_repetition)
        return [Job(tokens[prompt], name, *given) for name, prompt in zip(names, prompts, strict=True)]

    def _text(self, tokens: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(tokens), skip_special_tokens=True))


def _thoughts(task: Task, item: Item, request: Continuations, decode: _Decode) -> list[str]:
    states = [(state, number) for state in request.states for number in range(request.n)]
    kind = "last" if request.last else "thought"
    keys = [f"{kind} {_dotted((*state.path, number))}" for state, number in states]
    prompts = [task.thought_prompt(item, state.thoughts, request.last) for state, _ in states]
    texts = decode("generator", keys, prompts, task.thought_ending(request.last))
    if request.last:
        return texts
    prompts = [
        prompt
        for (state, _), text in zip(states, texts, strict=True)
        if (prompt := task.completion_prompt(item, state.thoughts, text)) is not None
    ]
    if not prompts:
        return texts
    rests = decode("generator", [f"rest of {place}" for place in keys], prompts, task.completion_ending())
    return [task.completed(*parts) for parts in zip(texts, rests, strict=True)]


def _dotted(path: Sequence[int]) -> str:
    return ".".join(map(str, path))


class ExecutionArm(LearningArm):
    """An arm that uses an execution strategy. The processes that it starts run until :meth:`close`.

    The solver's problems are solved by search. Any other prompt is continued by a group of ``samples`` sequences.
    Raises ValueError if the strategy cannot execute the parts.
    """

    def __init__(
        self, spec: ArmSpec, model: Runtime, tokenizer: PreTrainedTokenizerBase, solver: Solver | None = None
    ) -> None:
        parts = spec.parts
        execution = spec.execution
        assert execution is not None
        execution.check(parts)
        if isinstance(execution, Serial):  # plain decoding uses only the verifier
            parts = Parts(verifier=parts.verifier)
        super().__init__(spec.name, parts, spec.generation, spec.controller_state)
        self.model = model
        self.execution = execution
        self.tokenizer = tokenizer
        self.solver = solver
        self.dtype = model.precision
        self.device = model.placement
        self.eos = eos_of(tokenizer, model.model) if spec.generation.stop_at_eos else frozenset()
        self._executor: Executor | None = None

    @override
    def decode(self, prompt: Prompt, sample: int = 0, max_new_tokens: int | None = None) -> PromptRecord:
        executor = self._opened()
        started = perf_counter()
        try:
            runs, solution = self._run(executor, prompt, sample, max_new_tokens)
            wall = perf_counter() - started
            memory = executor.memory()
        except BaseException:
            self._executor = None  # a failed executor is closed, and the next prompt opens another
            executor.close()
            raise
        line = TimeLine()
        for _, run in runs:
            line.extend(run.timeline)
        for observe in self.timeline_observers:
            observe(prompt.prompt_id, line)
        results = [result for _, run in runs for result in run.results]
        return self.record(
            prompt,
            sample,
            results,
            prompt_tokens=len(prompt.token_ids),
            prefill_seconds=sum(run.prefill_seconds for _, run in runs),
            seconds={phase: sum(run.seconds[phase] for _, run in runs) for phase in PHASES},
            group=SequenceGroup(
                sequences=len(results),
                wall_seconds=wall,
                busy_seconds=line.busy(TARGET, BUSY),
                roles={name: _role([run for of, run in runs if of == name]) for name, _ in runs},
                correct=None if solution is None else solution.check.correct,
                unparsable=0 if solution is None else solution.unparsable,
                draft_bytes=memory,
            ),
        )

    @override
    def decode_observed(self, prompt: Prompt, sample: int, observe: OutcomeObserver) -> None:
        execution = Serial() if self.parts.drafter is None else SerialSpeculative()
        with execution.open(self.model, self.parts) as executor:
            self._run(executor, prompt, sample, None, (observe,))

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

    def _run(
        self,
        executor: Executor,
        prompt: Prompt,
        sample: int,
        max_new_tokens: int | None,
        observers: Sequence[OutcomeObserver] = (),
    ) -> tuple[Sequence[tuple[str, Run]], Solution | None]:
        """Search for the answer to a task item, or continue any other prompt; return the runs by component."""
        if self.solver is not None and prompt.prompt_id in self.solver.problems:
            limits: dict[str, Any] = {"sample": sample, "max_new_tokens": max_new_tokens}
            task, item = self.solver.problems[prompt.prompt_id]
            solution = self.solver.solve(task, item, executor, observers=observers, **limits)
            return solution.runs, solution
        most = max_new_tokens or self.generation.max_new_tokens
        names = (sequence_name(prompt, number) for number in range(self.generation.samples))
        repetition = self.generation.stop_at_repetition
        jobs = [Job(prompt.token_ids, name, most, stop_at_repetition=repetition) for name in names]
        run = executor.run(jobs, seed=self.generation.seed, eos_token_ids=self.eos, observers=observers)
        return [(CONTINUATIONS, run)], None


def _role(runs: Sequence[Run]) -> Role:
    results = [result for run in runs for result in run.results]
    counts = ("steps", "accepted_drafts", "drafted_nodes", "draft_passes")
    return Role(
        sequences=len(results),
        tokens=sum(len(result.token_ids) for result in results),
        **{name: sum(getattr(result, name) for result in results) for name in counts},
        prefill_seconds=sum(run.prefill_seconds for run in runs),
        decode_seconds=sum(run.decode_seconds for run in runs),
        drafted_positions=sum(sum(result.drafted_at) for result in results),
    )
