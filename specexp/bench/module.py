"""A comparison as a Lightning module: ``Trainer.test`` decodes every prompt with every arm, arms in rotation."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from lightning import LightningModule
from typing_extensions import override

from specexp.bench import clock
from specexp.bench.arm import LearningArm, decode_safely
from specexp.bench.equality import compare
from specexp.bench.record import PromptRecord, write_records
from specexp.bench.statistics import paired_speedup
from specexp.tracking.names import PLAIN

if TYPE_CHECKING:
    import torch

    from specexp.bench.arm import Arm
    from specexp.bench.observers import Observer
    from specexp.data import Prompt

WARM_UP_TOKENS = 16


class EvaluationModule(LightningModule):
    """Decodes each prompt with each arm; the order of the arms rotates from prompt to prompt.

    With a ``baseline``, every arm first decodes a prompt unrecorded as its warm-up, and is reset. Outputs are compared
    with the baseline's, and a prompt that fails is recorded with its reason. Without a baseline there is no warm-up and
    no comparison, and an error ends the test. Arms are not submodules, so the ``state_dict`` is empty.

    Args:
        arms: Arms with distinct names.
        baseline: Name of the arm of plain decoding, with which outputs are compared.
        records_path: JSONL file that records are appended to after every prompt.
        orders: By arm name, all prompts in the arm's own order. Other arms use the order of the test.
        every: By arm name, n if the arm decodes only every n-th prompt; 1 by default.
        on_records: Called with the records of each prompt. Once it returns true, decoding stops.
        analyses: Observers of every step of our arms after the warm-up.
    """

    def __init__(
        self,
        arms: Sequence[Arm],
        *,
        baseline: str | None = PLAIN,
        records_path: str | Path | None = None,
        samples: int = 1,
        first_sample: int = 0,
        orders: Mapping[str, Sequence[Prompt]] | None = None,
        every: Mapping[str, int] | None = None,
        on_records: Callable[[Sequence[PromptRecord]], bool | None] | None = None,
        analyses: Sequence[Observer] = (),
    ) -> None:
        super().__init__()
        names = [arm.name for arm in arms]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"names of arms must be unique, but two arms are named {twice[0]!r}")
        plain = next((arm for arm in arms if arm.name == baseline and isinstance(arm, LearningArm)), None)
        if baseline is not None and plain is None:
            listed = ", ".join(names)
            raise ValueError(
                f"baseline must be an arm with parts of ours, got {baseline!r}; arms are {listed}"
            )
        self.arms = tuple(arms)
        self.plain = plain
        self.samples = samples
        self.first_sample = first_sample
        self.records_path = None if records_path is None else Path(records_path)
        self.orders = dict(orders or {})
        self.every = dict(every or {})
        self.on_records = on_records
        self.analyses = tuple(analyses)
        self._found: dict[tuple[str, str, int], PromptRecord] = {}
        self._prompts: dict[str, Prompt] = {}
        self._stopped = False

    @property
    def records(self) -> list[PromptRecord]:
        """All records so far."""
        return list(self._found.values())

    @override
    def on_test_start(self) -> None:
        self._found.clear()
        self._stopped = False
        for arm in self.arms:
            arm.reset()
            if isinstance(arm, LearningArm):
                arm.observers = arm.timeline_observers = ()

    def close(self) -> None:
        """Stop the processes of the arms."""
        for arm in self.arms:
            arm.close()

    @override
    def transfer_batch_to_device(self, batch: Prompt, device: torch.device, dataloader_idx: int) -> Prompt:
        return batch  # a prompt has no tensors, and Lightning's own transfer fails on a frozen dataclass

    @override
    def test_step(self, prompt: Prompt, batch_index: int) -> None:
        if self._stopped:  # Lightning can end a test early only by an error
            return
        if batch_index == 0 and self.plain is not None:
            self._warm_up(prompt)
        new: list[PromptRecord] = []
        arms = [arm for arm in self.arms if batch_index % self.every.get(arm.name, 1) == 0]
        for number in range(self.samples):
            sample = self.first_sample + number
            shift = (batch_index * self.samples + number) % len(arms)
            for place, arm in enumerate(arms[shift:] + arms[:shift]):
                own = self.orders[arm.name][batch_index] if arm.name in self.orders else prompt
                self._prompts[own.prompt_id] = own
                decode = arm.decode if self.plain is None else partial(decode_safely, arm)
                new.append(dataclasses.replace(decode(own, sample), turn_in_rotation=place))
        self._found |= {(record.arm, *record.key): record for record in new}
        keys = {record.key for record in new}
        changed = {} if self.plain is None else self._compared(self.plain, keys)
        self._found |= changed
        new = [changed.pop((record.arm, *record.key), record) for record in new]
        new += changed.values()  # earlier records whose plain decoding is known only now
        if self.records_path is not None:
            write_records(self.records_path, new)
        if self.on_records is not None:
            self._stopped = bool(self.on_records(new))
        if self.plain is not None:
            self._log_progress(self.plain.name, keys)

    def _warm_up(self, prompt: Prompt) -> None:
        for arm in self.arms:
            decode_safely(arm, prompt, 0, min(WARM_UP_TOKENS, arm.generation.max_new_tokens))
            arm.reset()
        watched = [arm for arm in self.arms if isinstance(arm, LearningArm)]
        for analysis in self.analyses:
            analysis.begin({arm.name: arm.parts for arm in watched})
        for arm in watched:
            arm.observers = [partial(analysis.observe, arm.name) for analysis in self.analyses]
            arm.timeline_observers = [partial(analysis.observe_run, arm.name) for analysis in self.analyses]

    def _compared(
        self, plain: LearningArm, keys: set[tuple[str, int]]
    ) -> dict[tuple[str, str, int], PromptRecord]:
        """Return the records of ``keys`` (prompt, sample) that differ from plain decoding's, with their difference."""
        changed: dict[tuple[str, str, int], PromptRecord] = {}
        for arm, key in product(self.arms, keys):
            reference, record = (self._found.get((name, *key)) for name in (plain.name, arm.name))
            if reference is None or record is None or record.difference is not None:
                continue
            compared = compare(record, reference, plain, self._prompts[record.prompt_id])
            if compared is not record:
                changed[arm.name, *key] = compared
        return changed

    def _log_progress(self, plain: str, keys: set[tuple[str, int]]) -> None:
        new = [record for record in self._found.values() if record.key in keys]
        for arm in self.arms:
            speedup = paired_speedup(new, arm.name, plain, interval=False)
            if arm.name != plain and speedup.refused is None:
                name = f"{clock.metric_prefix(speedup.clock)}log_speedup/{arm.name}"
                few = len(self.arms) <= 4
                self.log(name, speedup.mean_log_ratio, prog_bar=few, batch_size=1)
