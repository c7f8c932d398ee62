"""``python -m experiments.smollm2.conversations TARGET FOLDER``: conversations that the target itself writes.

The target writes the user's turn too: sampling goes on from the chat template's prefix (Xu et al. 2024, Magpie). Half
of the turns begin with a request of `OPENINGS`, and some quote a text that the target wrote before. No other text is
used. Lanes are decoded together by compiled passes, and a lane that ends begins the next conversation. Besides the
ids, a shard keeps the hidden states that a draft learns from. Each shard has a seed of its own, so that a killed run
continues.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import PreTrainedModel

from specexp.core.language_model import runtime_for
from specexp.core.tree import TokenTree, TreeShape
from specexp.models.pair import load_pair

OPENINGS = (
    "",
    "What is",
    "What is the",
    "What are the",
    "What is the difference between",
    "What should I",
    "What happens",
    "Who",
    "When did",
    "Where",
    "Which",
    "How does",
    "How do I",
    "How can",
    "Why is",
    "Why do",
    "Explain",
    "Explain the difference between",
    "Can you",
    "I want to",
    "Write a short story about",
    "Write an email to",
    "Write a poem about",
    "Write a",
    "Describe",
    "Suggest",
    "Give me",
    "List",
    "Tell me about",
    "Write a Python function that",
    "Write a function in Python which takes",
    "How do I use Python to",
    "Complete this Python function:\n\ndef",
    "What does this code do?\n\nimport",
    "A shop sells",
    "How many",
    "Translate",
    "Help me plan",
)
"""Beginnings of the user's turn; the target writes the rest."""

QUOTING = (
    "Summarise the following text in one sentence.\n\n{}",
    "Summarize this text:\n\n{}",
    "{}\n\nWrite a summary of the text above.",
    "Rewrite the following text in simpler words:\n\n{}",
    "Correct the spelling and grammar of this text and return the whole text:\n\n{}",
    "Edit this text so that it is more formal:\n\n{}",
    "Make this text shorter:\n\n{}",
    "Here is a text:\n\n{}\n\nWhat are the key points?",
    "{}\n\nRepeat the text, but in the past tense.",
)
"""Requests that quote an earlier answer."""

ASKED = {json.loads(line)["prompt"] for line in Path(__file__).with_name("chat.jsonl").read_text("utf-8").splitlines()}
"""Requests on which drafts are measured; they are left out."""

ANSWERS = (0.0, 0.0, 0.0, 0.6, 0.7, 0.7, 0.7, 0.8, 1.0)
"""Temperatures of answers; a conversation draws one."""

USER_TOKENS, ANSWER_TOKENS, ROW = 120, 256, 448
SHARD_TOKENS = 10_000
ROOT = TreeShape(np.array([-1]), np.array([0]))
CAPTURED = (2, 15, 27)
"""Hidden states that EAGLE-3 reads (0: the embeddings), of 30 layers; the last normed state follows them."""


@dataclass
class Lane:
    """A conversation that is being written."""

    forced: list[int]
    """Ids that are given, last first."""
    user: float
    """Temperature of the user's turn."""
    answer: float
    """Temperature of the answer."""
    ids: list[int] = field(default_factory=list)
    states: list[torch.Tensor] = field(default_factory=list)
    answer_from: int = 0
    """Index of the first token of the answer; 0 in the user's turn."""
    turn_from: int = 0


class LanedTarget:
    """The target in the compiled mode, with a slot of its cache for each lane; lanes begin after ``prefix``."""

    def __init__(self, model: PreTrainedModel, lanes: int, length: int, prefix: list[int]) -> None:
        self.runtime = runtime_for(model)
        self.norm: Any = model.base_model.norm
        self.runtime.keep_hidden((*CAPTURED, model.config.num_hidden_layers))
        self.slots = tuple(range(lanes))
        self.given = len(prefix) - 1  # the last token of the prefix goes through a lane's first step
        self.runtime.cache.reserve(length, lanes)
        self.prefix = self._states(self.runtime.prefill(0, prefix[:-1]).hidden[0])
        for lane in self.slots[1:]:
            self.runtime.cache.fork(0, lane, self.given)

    def restart(self, lane: int) -> None:
        """Return a lane to the prefix."""
        self.runtime.cache.truncate(lane, self.given)

    @torch.inference_mode()
    def step(self, ids: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the states ``[lanes, 4, width]`` of one more token of each lane, and its logits ``[lanes, V]``.

        The states are those after the `CAPTURED` layers and the normed last one.
        """
        found = self.runtime.tree_pass(self.slots, [TokenTree(ROOT, np.array([token])) for token in ids])
        for lane in self.slots:
            self.runtime.commit(lane, [0])
        return self._states(torch.cat(list(found.hidden))), torch.cat(list(found.logits))

    @torch.inference_mode()
    def _states(self, rows: torch.Tensor) -> torch.Tensor:
        states = rows.float().view(len(rows), len(CAPTURED) + 1, -1)
        states[:, -1] = self.norm(states[:, -1].to(self.norm.weight.dtype))
        return states.half()


class Writer:
    """Writes shards of conversations."""

    def __init__(self, model: str, lanes: int, seed: int) -> None:
        pair = load_pair(model, target_dtype="bfloat16", mode="compiled")
        self.tokenizer: Any = pair.tokenizer
        self.seed = seed
        self.start, self.end = self.tokenizer.convert_tokens_to_ids(["<|im_start|>", "<|im_end|>"])
        turn = [{"role": "user", "content": "\0"}]
        text = self.tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
        before, after = text.split("\0")
        self.before = self.tokenizer.encode(before)
        self.target = LanedTarget(pair.target, lanes, ROW, self.before)
        self.after = self.tokenizer.encode(after)[1:]  # the target itself writes <|im_end|>
        self.pool: list[str] = []
        self.rng = random.Random()

    def begin(self) -> Lane:
        """Return a lane with a new request."""
        if self.rng.random() < 0.15 and len(self.pool) > 20:
            quoted = self.rng.choice(QUOTING).format(self.rng.choice(self.pool))
            turn = [*self.tokenizer.encode(quoted)[:260], self.end]
        else:
            opening = self.rng.choice(OPENINGS) if self.rng.random() < 0.8 else ""
            turn = self.tokenizer.encode(opening) if opening else []
        lane = Lane(turn[::-1], self.rng.choice((0.5, 0.7, 0.8)), self.rng.choice(ANSWERS))
        lane.turn_from = len(self.before)
        lane.ids = list(self.before)
        lane.states = list(self.target.prefix)
        return lane

    def next_ids(self, lanes: list[Lane], logits: torch.Tensor) -> list[int]:
        """Return the next id of every lane after ``logits [lanes, V]``; -1 where it has ended."""
        answering = torch.tensor([one.answer if one.answer_from else one.user for one in lanes])
        free = [number for number, one in enumerate(lanes) if not one.forced]
        drawn: dict[int, int] = {}
        if free:
            with torch.inference_mode():
                # rare tokens would lead a model of this size astray
                best, ids = logits[free].float().topk(50, dim=1)
                warm = answering[free]
                scaled = best / warm.clamp(min=0.05)[:, None]
                noise = -torch.empty_like(scaled).exponential_(generator=self.noise).log()
                at = torch.where(warm[:, None] > 0, scaled + noise, scaled).argmax(dim=1, keepdim=True)
                chosen = ids.gather(1, at)[:, 0]
            drawn = dict(zip(free, chosen.tolist(), strict=True))
        found = []
        for number, lane in enumerate(lanes):
            token = lane.forced.pop() if lane.forced else drawn[number]
            if not lane.answer_from:
                turn = len(lane.ids) - lane.turn_from
                if turn >= 0 and token == self.end:
                    lane.forced = self.after[::-1]
                    lane.answer_from = len(lane.ids) + 1 + len(self.after)
                elif (turn > USER_TOKENS and not lane.forced) or (turn >= 0 and token in (0, self.start)):
                    token = -1
            elif len(lane.ids) >= lane.answer_from:
                answer = len(lane.ids) - lane.answer_from
                ended = lane.ids[-1] == self.end or answer >= ANSWER_TOKENS or len(lane.ids) >= ROW - 1
                token = -1 if ended or looping(lane.ids[lane.answer_from :]) else token
            found.append(token)
        return found

    def shards(self, folder: Path, first: int) -> None:
        """Write shards from number ``first`` on, without end."""
        beginnings: set[tuple[int, ...]] = set()
        lanes: list[Lane] = []
        for number in range(first, 100_000):
            self.rng.seed(f"{self.seed}/{number}")
            self.noise = torch.Generator().manual_seed(self.seed * 100_003 + number)
            counts: Counter[str] = Counter()
            kept: list[Lane] = []
            began = time.monotonic()
            while sum(len(one.states) for one in kept) < SHARD_TOKENS:
                while len(lanes) < len(self.target.slots):
                    lanes.append(self.begin())
                states, logits = self.target.step([one.ids[-1] for one in lanes])
                for lane, row in zip(lanes, states, strict=True):
                    lane.states.append(row)
                for index, token in enumerate(self.next_ids(lanes, logits)):
                    lane = lanes[index]
                    if token >= 0:
                        lane.ids.append(token)
                        continue
                    counts["written"] += 1
                    answer = tuple(lane.ids[lane.answer_from :])
                    if not lane.answer_from:
                        counts["request too long"] += 1
                    elif (
                        self.tokenizer.decode(lane.ids[lane.turn_from : lane.answer_from - 1 - len(self.after)])
                        in ASKED
                    ):
                        counts["request of chat.jsonl"] += 1
                    elif looping(lane.ids[lane.turn_from : lane.answer_from]) or len(answer) < 4:
                        counts["request loops or empty answer"] += 1
                    elif answer[:32] in beginnings:
                        counts["copy"] += 1
                    else:
                        beginnings.add(answer[:32])
                        cut = loop_start(list(answer))
                        counts["loop cut"] += cut < len(answer)
                        lane.ids = lane.ids[: lane.answer_from + cut]
                        lane.states = lane.states[: len(lane.ids)]
                        kept.append(lane)
                        if 24 <= len(answer) <= 150:
                            self.pool.append(self.tokenizer.decode(answer, skip_special_tokens=True).strip())
                    lanes[index] = self.begin()
                    self.target.restart(index)
            self.save(folder / f"{self.seed}-{number:04d}.safetensors", kept, counts, time.monotonic() - began)

    def save(self, file: Path, kept: list[Lane], counts: Counter[str], seconds: float) -> None:
        """Write a shard."""
        tensors = {
            "ids": torch.tensor([token for one in kept for token in one.ids], dtype=torch.int32),
            "states": torch.cat([torch.stack(one.states) for one in kept]),
            "lengths": torch.tensor([len(one.ids) for one in kept], dtype=torch.int32),
            "turn_from": torch.tensor([one.turn_from for one in kept], dtype=torch.int32),
            "answer_from": torch.tensor([one.answer_from for one in kept], dtype=torch.int32),
            "temperature": torch.tensor([one.answer for one in kept]),
        }
        counts["kept"] = len(kept)
        tokens = len(tensors["ids"])
        save_file(tensors, file.with_suffix(".partial"), {"counts": json.dumps(counts)})
        file.with_suffix(".partial").replace(file)
        print(f"{file.name}  {tokens} tokens  {tokens / seconds:.0f} a second  {dict(counts)}", flush=True)


def loop_start(ids: list[int]) -> int:
    """Return how many tokens come before the third copy of a loop of at most 40 tokens at the end."""
    for period in range(1, 41):
        copies = 1
        while len(ids) >= (copies + 1) * period and (
            ids[len(ids) - (copies + 1) * period : len(ids) - copies * period] == ids[len(ids) - period :]
        ):
            copies += 1
        if copies >= 4 and copies * period >= 16:
            return len(ids) - (copies - 2) * period
    return len(ids)


def looping(ids: list[int]) -> bool:
    """Return whether the end repeats itself."""
    return len(ids) % 8 == 0 and loop_start(ids[-176:]) < len(ids[-176:])


def main() -> None:
    """Write shards until the process is ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", help="as pair.target")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--lanes", type=int, default=96)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # threads that wait for each other stand still on a busy machine: start more seeds
    arguments.folder.mkdir(parents=True, exist_ok=True)
    Writer(arguments.target, arguments.lanes, arguments.seed).shards(
        arguments.folder, len(list(arguments.folder.glob(f"{arguments.seed}-*.safetensors")))
    )


if __name__ == "__main__":
    main()
