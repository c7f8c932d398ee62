"""``python -m experiments.smollm2.conversations TARGET FOLDER``: conversations that the target itself writes.

The target writes the user's turn too: sampling goes on from the chat template's prefix (Xu et al. 2024, Magpie). Half
of the turns begin with a request of `OPENINGS`, and some quote a text that the target wrote before. No other text is
used. Lanes are decoded together in 8 bits, and a lane that ends begins the next conversation. Besides the ids, a shard
keeps the hidden states that a draft learns from. Each shard has a seed of its own, so that a killed run continues.
"""

from __future__ import annotations

import argparse
import json
import random
import time
import warnings
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn
from typing_extensions import override

OPENINGS = (
    "",
    "What is",
    "How do I",
    "How can",
    "Why do",
    "Explain",
    "Explain the difference between",
    "Can you",
    "I want to",
    "Write a short story about",
    "Write an email to",
    "Write a poem about",
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

ANSWERS = (0.0, 0.0, 0.0, 0.6, 0.7, 0.7, 0.7, 0.8, 1.0)
"""Temperatures of answers; a conversation draws one."""

USER_TOKENS, ANSWER_TOKENS, ROW = 120, 256, 448
SHARD_TOKENS = 10_000
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


class ScaledRows(nn.Module):
    """A quantized layer whose activations have one scale a row instead of one for all rows."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    @override
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = x.abs().amax(dim=-1, keepdim=True).clamp(min=1e-9)
        made: torch.Tensor = self.layer(x / scale) * scale
        return made


class BatchedTarget:
    """The target in 8 bits, with a cache of ``lanes`` rows that are at different positions."""

    def __init__(self, folder: str, lanes: int, length: int, prefix: list[int]) -> None:
        from torch.ao.quantization import per_channel_dynamic_qconfig, quantize_dynamic
        from transformers import AutoModelForCausalLM

        model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        config = model.config
        self.config, self.eps = config, config.rms_norm_eps
        self.embedding = model.model.embed_tokens.weight.detach()

        def fused(*weights: torch.Tensor) -> nn.Module:
            weight = torch.cat([one.detach() for one in weights])
            linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
            linear.weight = nn.Parameter(weight, requires_grad=False)
            wrapped = nn.Sequential(linear)
            made = quantize_dynamic(wrapped, {nn.Linear: per_channel_dynamic_qconfig})  # type: ignore[no-untyped-call]
            return ScaledRows(made[0])

        torch.backends.quantized.engine = "onednn"  # other engines use 7 of the 8 bits of activations

        self.layers = []
        for layer in model.model.layers:
            a, m = layer.self_attn, layer.mlp
            self.layers.append(
                (
                    layer.input_layernorm.weight.detach(),
                    fused(a.q_proj.weight, a.k_proj.weight, a.v_proj.weight),
                    fused(a.o_proj.weight),
                    layer.post_attention_layernorm.weight.detach(),
                    fused(m.gate_proj.weight, m.up_proj.weight),
                    fused(m.down_proj.weight),
                )
            )
        self.norm = model.model.norm.weight.detach()
        self.head = fused(self.embedding)
        self.heads, self.kv = config.num_attention_heads, config.num_key_value_heads
        self.d = config.hidden_size // self.heads
        shape = (len(self.layers), lanes, self.kv, length, self.d)
        self.keys, self.values = torch.zeros(shape), torch.zeros(shape)
        theta = config.rope_parameters["rope_theta"]
        angle = torch.arange(length)[:, None] / theta ** (torch.arange(0, self.d, 2) / self.d)
        self.cos, self.sin = angle.cos().repeat(1, 2), angle.sin().repeat(1, 2)  # [length, d]
        # The first token's activations are hundreds of times as large as others: the prefix stays exact.
        with torch.inference_mode():
            found = model(torch.tensor([prefix]), use_cache=True, output_hidden_states=True)
        for number, one in enumerate(found.past_key_values.layers):
            self.keys[number, :, :, : len(prefix)] = one.keys
            self.values[number, :, :, : len(prefix)] = one.values
        self.prefix = torch.stack([found.hidden_states[at][0] for at in (*CAPTURED, -1)], dim=1).half()

    @torch.inference_mode()
    def step(self, ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Return ``[lanes, 4, width]``: the `CAPTURED` states and the normed last one of ``ids [lanes]``."""
        lanes, length = len(ids), int(positions.max()) + 1
        rows = torch.arange(lanes)
        cos, sin = self.cos[positions][:, None], self.sin[positions][:, None]
        visible = torch.arange(length) <= positions[:, None]
        mask = torch.zeros(lanes, 1, 1, length).masked_fill_(~visible[:, None, None], -torch.inf)
        x, kept = self.embedding[ids], []
        group = self.heads // self.kv
        for number, (norm, qkv, out, norm_2, gate_up, down) in enumerate(self.layers):
            if number in CAPTURED:
                kept.append(x)
            found = qkv(F.rms_norm(x, (x.shape[-1],), norm, self.eps))
            found = found.view(lanes, self.heads + 2 * self.kv, self.d)
            turned = found[:, : self.heads + self.kv]
            half = torch.cat((-turned[..., self.d // 2 :], turned[..., : self.d // 2]), dim=-1)
            turned = turned * cos + half * sin
            self.keys[number, rows, :, positions] = turned[:, self.heads :]
            self.values[number, rows, :, positions] = found[:, self.heads + self.kv :]
            q = turned[:, : self.heads].view(lanes, self.kv, group, self.d)
            k, v = self.keys[number, :, :, :length], self.values[number, :, :, :length]
            scores = torch.matmul(q, k.transpose(-1, -2)) / self.d**0.5 + mask
            y = torch.matmul(scores.softmax(dim=-1), v).reshape(lanes, -1)
            x = x + out(y)
            gate, up = gate_up(F.rms_norm(x, (x.shape[-1],), norm_2, self.eps)).chunk(2, dim=-1)
            x = x + down(F.silu(gate) * up)
        kept.append(F.rms_norm(x, (x.shape[-1],), self.norm, self.eps))
        return torch.stack(kept, dim=1)


class Writer:
    """Writes shards of conversations."""

    def __init__(self, folder: str, lanes: int, seed: int) -> None:
        from transformers import AutoTokenizer

        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        self.seed = seed
        self.start, self.end = self.tokenizer.convert_tokens_to_ids(["<|im_start|>", "<|im_end|>"])
        turn = [{"role": "user", "content": "\0"}]
        text = self.tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
        before, after = text.split("\0")
        self.before = self.tokenizer.encode(before)
        self.target = BatchedTarget(folder, lanes, ROW, self.before)
        self.after = self.tokenizer.encode(after)[1:]  # the target itself writes <|im_end|>
        self.pool: list[str] = []
        self.rng = random.Random()

    def begin(self) -> Lane:
        """Return a lane with a new request."""
        if self.rng.random() < 0.3 and len(self.pool) > 20:
            quoted = self.rng.choice(QUOTING).format(self.rng.choice(self.pool))
            turn = [*self.tokenizer.encode(quoted)[:260], self.end]
        else:
            opening = self.rng.choice(OPENINGS) if self.rng.random() < 0.65 else ""
            turn = self.tokenizer.encode(opening) if opening else []
        lane = Lane(turn[::-1], self.rng.choice((0.7, 0.8, 0.9)), self.rng.choice(ANSWERS))
        lane.turn_from = len(self.before)
        lane.ids = list(self.before)
        lane.states = list(self.target.prefix[:-1])  # the last token of the prefix goes through the next step
        return lane

    def next_ids(self, lanes: list[Lane], states: torch.Tensor) -> list[int]:
        """Return the next id of every lane; -1 where it has ended."""
        answering = torch.tensor([one.answer if one.answer_from else one.user for one in lanes])
        free = [number for number, one in enumerate(lanes) if not one.forced]
        drawn: dict[int, int] = {}
        if free:
            with torch.inference_mode():
                # rare tokens would lead a model of this size astray
                logits, ids = self.target.head(states[free, -1]).topk(50, dim=1)
                warm = answering[free]
                scaled = logits / warm.clamp(min=0.05)[:, None]
                noise = -torch.empty_like(scaled).exponential_(generator=self.noise).log()
                at = torch.where(warm[:, None] > 0, scaled + noise, scaled).argmax(dim=1, keepdim=True)
                best = ids.gather(1, at)[:, 0]
            drawn = dict(zip(free, best.tolist(), strict=True))
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
                while len(lanes) < self.target.keys.shape[1]:
                    lanes.append(self.begin())
                ids = torch.tensor([one.ids[-1] for one in lanes])
                states = self.target.step(ids, torch.tensor([len(one.ids) - 1 for one in lanes]))
                half = states.half()
                for lane, row in zip(lanes, half, strict=True):
                    lane.states.append(row)
                for index, token in enumerate(self.next_ids(lanes, states)):
                    lane = lanes[index]
                    if token >= 0:
                        lane.ids.append(token)
                        continue
                    counts["written"] += 1
                    answer = tuple(lane.ids[lane.answer_from :])
                    if not lane.answer_from:
                        counts["request too long"] += 1
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
    parser.add_argument("target")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--lanes", type=int, default=96)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)  # threads that wait for each other stand still on a busy machine: start more seeds
    arguments.folder.mkdir(parents=True, exist_ok=True)
    Writer(arguments.target, arguments.lanes, arguments.seed).shards(
        arguments.folder, len(list(arguments.folder.glob(f"{arguments.seed}-*.safetensors")))
    )


if __name__ == "__main__":
    main()
