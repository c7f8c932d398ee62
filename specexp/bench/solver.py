"""Drives a search over a task's thoughts with an execution strategy (SEED, Algorithm 1)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Literal

from specexp.data.searches.search import Continuations, Values
from specexp.data.tasks import Check, Ending, Item, Task
from specexp.scheduling import Job, Run, TimeLine

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from specexp.core.outcome import Outcome
    from specexp.data.searches.search import Request, Search, SearchResult
    from specexp.scheduling import Executor

Role = Literal["generator", "evaluator"]
_Ask = Callable[[Role, Sequence[str], Sequence[str], Ending], list[str]]
"""Component, what randomness is keyed by, prompts and ending of sequences that run side by side; gives their texts."""


@dataclass(frozen=True)
class Solution:
    """What searching for the answer of one item gave.

    Attributes:
        result: The path found, and the tree of thoughts.
        check: Whether it is right.
        unparsable: Evaluations that could not be read.
        runs: The executor's runs in order, each with the component that asked for it.
        wall_seconds: The time from end to end, search, prompts and tokenizing included.
    """

    result: SearchResult
    check: Check
    unparsable: int
    runs: tuple[tuple[Role, Run], ...]
    wall_seconds: float

    def timeline(self) -> TimeLine:
        """Of all runs, one behind the other."""
        line = TimeLine()
        for _, run in self.runs:
            line.extend(run.timeline)
        return line


class Solver:
    """Answers a search's requests by decoding: thought generator and state evaluator are the same target.

    Randomness is keyed by the item, the sample and the path of a state, so a state says the same in every strategy and
    in every order of expansion.

    Args:
        search: Which states are expanded.
        tokenizer: The target's.
        eos_token_ids: Tokens that end an output.
        seed: The seed of the keyed noise.
        max_new_tokens: The longest generation, where a task allows more; None for the task's own limits.
        chat_template: Whether prompts are written with the tokenizer's chat template.

    Example:
        >>> with Scheduled(n=3).open(model, parts) as executor:  # doctest: +SKIP
        ...     Solver(BreadthFirst(), tokenizer).solve(task, task.load()[0], executor).check
    """

    def __init__(
        self,
        search: Search,
        tokenizer: PreTrainedTokenizerBase,
        *,
        eos_token_ids: Collection[int] = frozenset(),
        seed: int = 0,
        max_new_tokens: int | None = None,
        chat_template: bool = False,
    ) -> None:
        self.search = search
        self.tokenizer = tokenizer
        self.eos_token_ids = frozenset(eos_token_ids)
        self.seed = seed
        self.max_new_tokens = max_new_tokens
        self.chat_template = chat_template

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
        """Search for the answer of one item.

        Args:
            task: The item's.
            item: The problem.
            executor: Decodes; every request of the search is one run.
            sample: Which search of the item; the same one gives the same again.
            max_new_tokens: The longest generation, instead of the solver's own (for warming up).
            observers: Called with every step's outcome.

        Raises:
            ValueError: a prompt does not fit the target.
        """
        started = perf_counter()
        name = f"{task.name}/{item.item_id}#{sample}"
        most = self.max_new_tokens if max_new_tokens is None else max_new_tokens
        runs: list[tuple[Role, Run]] = []

        def ask(role: Role, places: Sequence[str], prompts: Sequence[str], ending: Ending) -> list[str]:
            run = executor.run(
                self._jobs([f"{name}/{place}" for place in places], prompts, ending, most),
                seed=self.seed,
                eos_token_ids=self.eos_token_ids,
                observers=observers,
            )
            runs.append((role, run))
            return [ending.cut(self._text(result.token_ids)) for result in run.results]

        unparsable = 0
        exploration = self.search.explore(task.depth)
        try:
            request = next(exploration)
            while True:
                role: Role = "generator" if isinstance(request, Continuations) else "evaluator"
                prompts, ending = self._asked(task, item, request)
                texts = ask(role, _places(request), prompts, ending)
                if isinstance(request, Continuations) and not request.last:
                    texts = self._complete(task, item, request, texts, ask)
                if isinstance(request, Values):
                    values = [task.value(text) for text in texts]
                    unparsable += sum(not value.parsed for value in values)
                    request = exploration.send([value.value for value in values])
                else:
                    n = request.n
                    request = exploration.send([texts[at : at + n] for at in range(0, len(texts), n)])
        except StopIteration as found:
            result: SearchResult = found.value
        wall = perf_counter() - started
        return Solution(result, task.check(item, result.final.thoughts), unparsable, tuple(runs), wall)

    def _asked(self, task: Task, item: Item, request: Request) -> tuple[list[str], Ending]:
        """The prompt of every sequence, and where an answer ends."""
        if isinstance(request, Values):
            return [task.value_prompt(item, state.thoughts) for state in request.states], task.value_ending
        prompts = [
            task.thought_prompt(item, state.thoughts, request.last)
            for state in request.states
            for _ in range(request.n)
        ]
        return prompts, task.thought_ending(request.last)

    def _complete(
        self, task: Task, item: Item, request: Continuations, begun: Sequence[str], ask: _Ask
    ) -> list[str]:
        """Thoughts whole, where a second generation completes them."""
        states = [state for state in request.states for _ in range(request.n)]
        prompts = [
            prompt
            for state, text in zip(states, begun, strict=True)
            if (prompt := task.completion_prompt(item, state.thoughts, text)) is not None
        ]
        if not prompts:
            return list(begun)
        places = [f"rest of {place}" for place in _places(request)]
        rests = ask("generator", places, prompts, task.completion_ending())
        return [task.completed(*parts) for parts in zip(begun, rests, strict=True)]

    def _jobs(
        self, names: Sequence[str], prompts: Sequence[str], ending: Ending, most: int | None
    ) -> list[Job]:
        limit = ending.max_new_tokens if most is None else min(most, ending.max_new_tokens)
        tokens = {prompt: self._token_ids(prompt) for prompt in prompts}
        return [
            Job(tokens[prompt], name, limit, self._stop(ending))
            for name, prompt in zip(names, prompts, strict=True)
        ]

    def _token_ids(self, prompt: str) -> tuple[int, ...]:
        from specexp.data.prompt import first_turn_ids

        template = self.chat_template and self.tokenizer.chat_template is not None
        return tuple(first_turn_ids(self.tokenizer, prompt, template))

    def _stop(self, ending: Ending) -> Callable[[Sequence[int]], bool]:
        return lambda tokens: ending.reached(self._text(tokens))

    def _text(self, tokens: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(tokens), skip_special_tokens=True))


def _places(request: Request) -> list[str]:
    """What randomness is keyed by: the paths of the new states, or of the states that are valued."""
    if isinstance(request, Values):
        return [f"value {_dotted(state.path)}" for state in request.states]
    kind = "last" if request.last else "thought"
    return [
        f"{kind} {_dotted((*state.path, number))}" for state in request.states for number in range(request.n)
    ]


def _dotted(path: Sequence[int]) -> str:
    return ".".join(map(str, path))
