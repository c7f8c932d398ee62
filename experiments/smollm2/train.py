"""``python -m experiments.smollm2.train KIND TARGET SHARDS FOLDER --tokens N``: distil a draft or an EAGLE-3 head.

``draft`` is a model of the target's own first and last layers, ``eagle3`` one layer that reads the target's hidden
states. Both have the head of the target, reduced to the most frequent tokens; neither it nor the embeddings
are trained.
The teacher's distributions come from the hidden states in the shards of `experiments.smollm2.conversations`, so the
target makes no pass. New shards are read while training goes on. A killed run continues from ``FOLDER/last.pt``.
"""

from __future__ import annotations

import argparse
import heapq
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from safetensors import safe_open
from torch import nn

from experiments.smollm2.conversations import CAPTURED
from specexp.fit.heads import eagle3_head

HELD_OUT = 25
"""Every so many-th conversation is held out."""
BATCH_TOKENS, POOL = 768, 32
"""Tokens of a batch, and the conversations from which batches of one length are made."""
COMPARED = 3072
"""Most frequent tokens, over which the loss compares distributions; the others of a head cost more than they teach."""
WARM_UP = 30
TEMPERATURE = 0.7
"""Temperature of the distributions that are compared, as in use."""
EVERY = 200
"""Steps between two checkpoints."""


class Conversation(NamedTuple):
    """One conversation: ``ids [n]``, ``states [n, 4, width]`` and the index of the answer's first token."""

    ids: torch.Tensor
    states: torch.Tensor
    answer_from: int
    temperature: float


class Conversations:
    """The conversations of a growing folder of shards; those read least often come first."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.rng = folder, random.Random(seed)
        self.held: list[Conversation] = []
        self.tokens = 0
        self._known: dict[str, dict[str, torch.Tensor]] = {}
        self._queue: list[tuple[int, float, str, int]] = []
        self._batches: list[list[Conversation]] = []
        self.look()

    def look(self) -> None:
        """Read the names of new shards."""
        for file in sorted(self.folder.glob("*.safetensors")):
            if file.name in self._known:
                continue
            with safe_open(file, "pt") as shard:  # states stay in the file
                found = {name: shard.get_tensor(name) for name in shard.keys() if name != "states"}  # noqa: SIM118
            found["starts"] = F.pad(found["lengths"].long().cumsum(0), (1, 0))
            self._known[file.name] = found
            self.tokens += len(found["ids"])
            for number in range(len(found["lengths"])):
                if number % HELD_OUT == 0:
                    self.held.append(self._read(file.name, number))
                else:
                    heapq.heappush(self._queue, (0, self.rng.random(), file.name, number))

    def most_frequent(self, count: int, vocabulary: int) -> torch.Tensor:
        """Return the ids that occur most often, first the most frequent; after them come others in their order."""
        found: Counter[int] = Counter()
        for shard in self._known.values():
            for number in range(len(shard["lengths"])):
                first, last = (int(shard["starts"][number + one]) for one in (0, 1))
                found.update(shard["ids"][first + int(shard["turn_from"][number]) : last].tolist())
        ranked = [token for token, _ in found.most_common()]
        # merges are numbered by frequency
        ranked += [token for token in range(vocabulary) if token not in found]
        return torch.tensor(ranked[:count])

    def batch(self, tokens: int) -> list[Conversation]:
        """Return conversations of at least ``tokens`` tokens in all, of about the same length: padding costs time."""
        if not self._batches:
            pool = [self._next() for _ in range(POOL)]
            groups: list[list[Conversation]] = [[]]
            for one in sorted(pool, key=lambda one: len(one.ids)):
                if sum(len(other.ids) for other in groups[-1]) >= tokens:
                    groups.append([])
                groups[-1].append(one)
            self.rng.shuffle(groups)
            self._batches = groups
        return self._batches.pop()

    def _next(self) -> Conversation:
        times, _, name, number = heapq.heappop(self._queue)
        heapq.heappush(self._queue, (times + 1, self.rng.random(), name, number))
        return self._read(name, number)

    def _read(self, name: str, number: int) -> Conversation:
        shard = self._known[name]
        first, last = (int(shard["starts"][number + one]) for one in (0, 1))
        with safe_open(self.folder / name, "pt") as file:
            states = file.get_slice("states")[first:last].float()
        temperature = float(shard["temperature"][number])
        return Conversation(shard["ids"][first:last].long(), states, int(shard["answer_from"][number]), temperature)


class Padded(NamedTuple):
    """``ids [n, m]``, ``states [n, m, 4, width]``, and ``valid [n, m]``: a token of the answer follows, or its end."""

    ids: torch.Tensor
    states: torch.Tensor
    valid: torch.Tensor


def padded(rows: list[Conversation]) -> Padded:
    """Return rows of one length; padding follows a row, where causal attention does not see it."""
    length = max(len(one.ids) for one in rows)
    ids = torch.stack([F.pad(one.ids, (0, length - len(one.ids))) for one in rows])
    states = torch.stack([F.pad(one.states, (0, 0, 0, 0, 0, length - len(one.ids))) for one in rows])
    first = torch.tensor([one.answer_from - 1 for one in rows])[:, None]
    last = torch.tensor([len(one.ids) for one in rows])[:, None]
    positions = torch.arange(length)
    return Padded(ids, states, (first <= positions) & (positions < last))


class Draft(nn.Module):
    """A model of some of the target's layers; `made` has its predictions of the token after each row's."""

    steps = 1

    def __init__(self, target: Any, layers: list[int]) -> None:
        super().__init__()
        import copy

        from transformers import LlamaModel

        config = copy.deepcopy(target.config)
        config.num_hidden_layers = len(layers)
        self.model: Any = LlamaModel(config)
        for number, layer in enumerate(layers):
            self.model.layers[number].load_state_dict(target.model.layers[layer].state_dict())
        self.model.norm.load_state_dict(target.model.norm.state_dict())
        self.model.embed_tokens = target.model.embed_tokens

    def made(self, batch: Padded) -> Iterator[torch.Tensor]:
        """Yield normed states ``[n, m, width]``; row i predicts the token at i + 1."""
        yield self.model(inputs_embeds=self.model.embed_tokens(batch.ids), use_cache=False)[0]

    def normed(self, states: torch.Tensor) -> torch.Tensor:
        """Return what the head reads."""
        return states


class Eagle3(nn.Module):
    """The head of `specexp.drafters.eagle3_network`, begun as the target's last layer."""

    def __init__(self, target: Any, kept: torch.Tensor, steps: int) -> None:
        super().__init__()
        self.net = eagle3_head(target, CAPTURED, kept)
        self.steps = steps

    def made(self, batch: Padded) -> Iterator[torch.Tensor]:
        """Yield states ``[n, m - 1 - step, width]``; row i of a step predicts the token at i + step + 2."""
        states = batch.states[:, :-1, :3].flatten(2)
        yield from self.net.unroll(self.net.embed(batch.ids[:, 1:]), states, self.steps)

    def normed(self, states: torch.Tensor) -> torch.Tensor:
        """Return what the head reads."""
        normed: torch.Tensor = self.net.norm(states)
        return normed


def compared(
    module: Any, batch: Padded, rows: torch.Tensor, frequent: torch.Tensor
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield for each step the logits of draft and target ``[k, COMPARED]`` where a ``frequent [V]`` token follows."""
    for states in module.made(batch):
        shift = batch.ids.shape[1] - states.shape[1]
        followed = F.pad(batch.ids[:, shift + 1 :], (0, 1))  # the tokens that the rows predict
        counted = batch.valid[:, shift:] & frequent[followed]
        wanted = F.linear(batch.states[:, shift:, 3][counted], rows)
        yield F.linear(module.normed(states[counted]), rows), wanted


def divergence(logits: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Return the LK hybrid (arXiv 2602.23881): KL where few tokens are accepted, total variation where many are."""
    p, log_q = (wanted / TEMPERATURE).softmax(dim=-1), (logits / TEMPERATURE).log_softmax(dim=-1)
    shared = torch.minimum(p, log_q.exp()).sum(dim=-1)
    mix = torch.exp(-3 * shared.detach())
    return (mix * -(p * log_q).sum(dim=-1) + (1 - mix) * (1 - shared)).mean()


@torch.inference_mode()
def held_out(module: Any, rows: list[Conversation], head: torch.Tensor, kept: torch.Tensor) -> dict[str, float]:
    """Return agreement and shared probability by draft position, and tokens per step, on the answers held out.

    The text is the target's, so a draft's tokens equal it as long as they are accepted. Over the whole vocabulary.
    """
    same: dict[int, list[torch.Tensor]] = {}
    common: dict[int, list[torch.Tensor]] = {}
    for one in rows:
        batch = padded([one])
        for step, states in enumerate(module.made(batch)):
            shift = len(one.ids) - states.shape[1]
            first = max(0, one.answer_from - 1 - shift)
            wanted = F.linear(one.states[shift + first :, 3], head)
            logits = F.linear(module.normed(states[0, first:]), head[kept])
            p, q = (wanted / TEMPERATURE).softmax(-1), (logits / TEMPERATURE).softmax(-1)
            same.setdefault(step, []).append((kept[logits.argmax(-1)] == wanted.argmax(-1)).float())
            common.setdefault(step, []).append(torch.minimum(p[:, kept], q).sum(-1))
    found = {}
    for name, values in (("same", same), ("shared", common)):
        for step, parts in values.items():
            found[f"{name} {step + 1}"] = float(torch.cat(parts).mean())
        chain = 4 if module.steps == 1 else module.steps
        lengths = []
        for of_text in zip(*(values[step] for step in sorted(values)), strict=True):
            count = len(of_text[0]) - chain + 1
            if count < 1:
                continue
            product, total = torch.ones(count), torch.ones(count)
            for step in range(chain):
                # item i of a step is about the same text position, so a chain goes along the diagonal
                product = product * of_text[0 if module.steps == 1 else step][step : step + count]
                total += product
            lengths.append(total)
        found[f"tokens per step, {name}"] = float(torch.cat(lengths).mean())
    return found


def main(argv: list[str] | None = None) -> None:
    """Train, and print losses and the figures of the answers held out."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=("draft", "eagle3"))
    parser.add_argument("target")
    parser.add_argument("shards", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tokens", type=int, required=True, help="training tokens")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--vocabulary", type=int, default=8192)
    parser.add_argument("--layers", type=int, nargs="+", default=[0, 1, 29], help="the target's layers of a draft")
    parser.add_argument("--steps", type=int, default=3, help="draft steps of an EAGLE-3 head")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args(argv)
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(arguments.threads)  # threads that wait for each other stand still on a busy machine
    torch.manual_seed(arguments.seed)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    last = arguments.folder / "last.pt"
    done = torch.load(last, weights_only=True) if last.exists() else None
    texts = Conversations(arguments.shards, arguments.seed + (done["step"] if done else 0))
    target: Any = AutoModelForCausalLM.from_pretrained(arguments.target, dtype=torch.float32)
    target = target.requires_grad_(False).eval()
    head = target.get_output_embeddings().weight
    if done:
        kept, frequent = done["kept"], done["frequent"]
    else:
        kept, frequent = (texts.most_frequent(n, len(head)).sort().values for n in (arguments.vocabulary, COMPARED))
    rows, is_frequent = head[frequent], torch.zeros(len(head), dtype=torch.bool)
    is_frequent[frequent] = True
    module: Any = (
        Draft(target, arguments.layers) if arguments.kind == "draft" else Eagle3(target, kept, arguments.steps)
    )
    if arguments.kind == "eagle3" and not done:
        calibrate(module, padded(texts.batch(4000)))
    trained = [one for one in module.parameters() if one.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=arguments.lr, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
    step = tokens = 0
    if done:
        module.load_state_dict(done["module"], strict=False)
        optimizer.load_state_dict(done["optimizer"])
        step, tokens = done["step"], done["tokens"]
    print(f"{sum(one.numel() for one in trained)} weights, {texts.tokens} tokens of text", flush=True)
    while True:
        over = tokens >= arguments.tokens
        if over or step % EVERY == 0:
            texts.look()
            module.steps = 1 if arguments.kind == "draft" else arguments.steps
            sample = texts.held[: 64 if over else 24]
            shown = "  ".join(f"{k} {v:.3f}" for k, v in held_out(module, sample, head, kept).items())
            print(f"step {step}  tokens {tokens}  text {texts.tokens}  {shown}", flush=True)
            own = {name: value for name, value in module.state_dict().items() if "embed_tokens" not in name}
            content = {"module": own, "optimizer": optimizer.state_dict(), "step": step, "tokens": tokens}
            torch.save(content | {"kept": kept, "frequent": frequent}, last.with_suffix(".partial"))
            last.with_suffix(".partial").replace(last)
        if over:
            break
        conversations = texts.batch(BATCH_TOKENS)
        batch = padded(conversations)
        if arguments.kind == "eagle3":  # one step is learnt before its repetition
            module.steps = arguments.steps if tokens >= 0.4 * arguments.tokens else 1
        fall = 1 - max(0.0, tokens / arguments.tokens - 0.4) / 0.6
        for group in optimizer.param_groups:
            group["lr"] = arguments.lr * min(1.0, (step + 1) / WARM_UP) * max(fall, 0.02)
        with torch.autocast("cpu", torch.bfloat16):  # twice as fast on processors with bfloat16 products
            losses = [
                0.8**number * divergence(logits.float(), wanted.float())
                for number, (logits, wanted) in enumerate(compared(module, batch, rows, is_frequent))
            ]
        optimizer.zero_grad()
        torch.stack(losses).sum().backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        step += 1
        tokens += sum(len(one.ids) for one in conversations)
        if step % 20 == 0:
            print(f"step {step}  tokens {tokens}  " + " ".join(f"{x.item():.3f}" for x in losses), flush=True)


@torch.no_grad()
def calibrate(module: Eagle3, batch: Padded) -> None:
    """Set the norms of the states so that the last one keeps its typical size."""
    norms: Any = module.net.fc_norm
    for number, norm in enumerate(norms):
        typical = batch.states[:, :, number][batch.valid].pow(2).mean(dim=-1).sqrt().median()
        norm.weight.fill_(float(typical))


if __name__ == "__main__":
    main()
