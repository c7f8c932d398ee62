"""``python -m experiments.pair.evaluate TARGET [OTHER ...] --recipe FILE [--key value]``: print a model card's figures.

Every source of the recipe is a domain. On its held-out texts, the tables (Markdown) show each model's loss, its gap to
and agreement with the target, how continuations end, and the answers to checkable problems. TARGET
is an argument of `load_pair`, such as ``stdlib``; the others are drafts, or targets of other sizes.
"""

from __future__ import annotations

import argparse
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from scipy.stats import binomtest

from experiments.pair.corpus.python_source import HumanEvalTasks
from experiments.pair.corpus.text_source import Probe, TextSource, opening
from experiments.pair.training_rows import held_out_texts
from specexp.core.context import repeats
from specexp.report.table import Table, columns

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

TEXTS = 100
PROBLEMS = 200
TEMPERATURE = 0.7
CHANCE = {"judged": "50 %"}  # half of the judged answers are right


class TextLoss(NamedTuple):
    """The loss on one text in nats, the number of its tokens after the first, and the number of their bytes."""

    nats: float
    tokens: int
    size: int


def text_losses(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]
) -> list[TextLoss]:
    """Return the loss on each text of at least two tokens."""
    found = []
    for ids in _encoded(tokenizer, texts):
        nats = F.cross_entropy(_logits(model, ids)[:-1], ids[0, 1:].to(model.device), reduction="sum")
        size = len(tokenizer.decode(ids[0, 1:], skip_special_tokens=True).encode())  # EOS has no bytes
        found.append(TextLoss(float(nats), ids.shape[1] - 1, size))
    return found


def losses(found: Sequence[TextLoss]) -> dict[str, float]:
    """Return the loss over all texts together."""
    nats, tokens, size = (sum(values) for values in zip(*found, strict=True))
    return {
        "nats a token": nats / tokens,
        "bits a byte": nats / math.log(2) / size,
        "bytes a token": size / tokens,
    }


def gap(target: Sequence[TextLoss], other: Sequence[TextLoss]) -> tuple[float, float, float]:
    """Return how many nats a token another model loses more than the target (mean over texts), and a 95 % interval."""
    import numpy as np

    from specexp.bench.statistics import bootstrap_interval

    differences = np.array(
        [b.nats / b.tokens - a.nats / a.tokens for a, b in zip(target, other, strict=True)]
    )
    return float(differences.mean()), *bootstrap_interval(differences)


def agreement(
    target: PreTrainedModel,
    draft: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str],
) -> dict[str, float]:
    """Return the share of positions with equal argmax, and the mean of ``sum(min(p, q))`` at `TEMPERATURE`."""
    same, common = [], []
    for ids in _encoded(tokenizer, texts):
        p, q = ((_logits(model, ids) / TEMPERATURE).softmax(-1) for model in (target, draft))  # [n, V]
        same += (p.argmax(dim=-1) == q.argmax(dim=-1)).tolist()
        common += torch.minimum(p, q).sum(dim=-1).tolist()
    return {"same best token": fmean(same), f"shared at T = {TEMPERATURE:g}": fmean(common)}


def _encoded(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> Iterator[torch.Tensor]:
    """Yield the token ids ``[1, n]`` of each text that has at least two, with EOS, cut at 512."""
    for text in texts:
        ids: Any = tokenizer(text, verbose=False)["input_ids"]
        if len(ids) > 1:
            yield torch.tensor([[*ids, tokenizer.eos_token_id][:512]])


@torch.inference_mode()
def _logits(model: PreTrainedModel, ids: torch.Tensor) -> torch.Tensor:
    logits: torch.Tensor = model(input_ids=ids.to(model.device), use_cache=False).logits[0].float()
    return logits  # [n, V]


def continuations(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[str],
    *,
    temperature: float,
    max_new_tokens: int = 128,
) -> list[list[int]]:
    """Return the new token ids of each prompt, up to EOS; greedy at temperature 0."""
    from specexp.core.loop import Decoder
    from specexp.verifiers import Greedy, KeyedSampling

    decoder = Decoder(model, verifier=KeyedSampling(temperature) if temperature > 0 else Greedy())
    until: dict[str, Any] = {"max_new_tokens": max_new_tokens, "eos_token_id": tokenizer.eos_token_id}
    return [
        decoder.generate(tokenizer(prompt)["input_ids"], seed=0, sequence=number, **until).token_ids
        for number, prompt in enumerate(prompts)
    ]


def shares(outputs: Sequence[Sequence[int]], eos_token_id: int) -> dict[str, float]:
    """Return the shares of continuations that loop, end by EOS or have 96 or more tokens, and their mean length."""
    return {
        "loops": fmean(map(repeats, outputs)),
        "ended by EOS": fmean(output[-1] == eos_token_id for output in outputs),
        "of 96 or more": fmean(len(output) >= 96 for output in outputs),
        "tokens": fmean(map(len, outputs)),
    }


def answers(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, probes: Sequence[Probe]
) -> dict[str, dict[str, float]]:
    """Return, by kind of problem, the shares of right and of readable greedy answers, and the number of problems."""
    verdicts: dict[str, list[bool | None]] = defaultdict(list)
    by_length: dict[int, list[Probe]] = defaultdict(list)
    for probe in probes:
        by_length[probe.ending.max_new_tokens].append(probe)
    for length, some in by_length.items():
        prompts = [probe.prompt for probe in some]
        outputs = continuations(model, tokenizer, prompts, temperature=0, max_new_tokens=length)
        for probe, output in zip(some, outputs, strict=True):
            text = tokenizer.decode(output, skip_special_tokens=True)
            verdicts[probe.kind].append(probe.is_right(probe.ending.cut(text)))
    return {
        kind: {
            "right": fmean(one is True for one in values),
            "readable": fmean(one is not None for one in values),
            "problems": len(values),
        }
        for kind, values in verdicts.items()
    }


def tables(
    target: str, others: Sequence[str], sources: Mapping[str, TextSource], *, losses_alone: bool = False
) -> Iterator[Table]:
    """Yield the tables of losses, of continuations and of the target's answers; losses take a tenth of the time."""
    from specexp.models.pair import load_pair

    pair = load_pair(target)
    models: dict[str, Any] = {"target": pair.target}
    models |= {Path(other).name: load_pair(target, other).draft for other in others}
    loss_table = Table(
        f"Loss on held-out texts, at most {TEXTS} of each domain",
        columns(
            "domain | model | nats a token | bits a byte:.3 | bytes a token | nats more than the target | "
            f"same best token:.0% | shared at T = {TEMPERATURE:g}:.0%"
        ),
        notes=["Nats more than the target: mean over the texts, with a 95 % bootstrap interval."],
    )
    ends = Table(
        "Continuations of their openings, at most 128 tokens",
        columns("domain | model | T | loops:.1% | ended by EOS:.0% | of 96 or more:.0% | tokens:.0"),
    )
    for domain, source in sources.items():
        held = [text.text for text in held_out_texts(source, "test")[:TEXTS]]
        found: dict[str, list[TextLoss]] = {}
        for name, model in models.items() if held else ():
            found[name] = text_losses(model, pair.tokenizer, held)
            row: dict[str, Any] = {"domain": domain, "model": name}
            figures: dict[str, Any] = losses(found[name])
            if name != "target":
                mean, low, high = gap(found["target"], found[name])
                figures["nats more than the target"] = f"{mean:+.2f} [{low:+.2f}, {high:+.2f}]"
                figures |= agreement(pair.target, model, pair.tokenizer, held)
            loss_table.add({**row, **figures})
            for value in () if losses_alone else (0.0, TEMPERATURE):
                prompts = [opening(text) for text in held]
                outputs = continuations(model, pair.tokenizer, prompts, temperature=value)
                ends.add({**row, "T": f"{value:g}", **shares(outputs, pair.tokenizer.eos_token_id)})
    yield loss_table
    if losses_alone:
        return
    yield ends
    answered = Table(
        f"Greedy answers of the target to held-out problems, at most {PROBLEMS} of each domain",
        columns("domain | problem | right | chance | readable:.0% | problems"),
        notes=["Right: with a 95 % Wilson interval."],
    )
    for domain, source in sources.items():
        probes = list(islice(source.probes("test"), PROBLEMS))
        for kind, share in answers(pair.target, pair.tokenizer, probes).items():
            right, count = share["right"], int(share["problems"])
            low, high = binomtest(round(right * count), count).proportion_ci(method="wilson")
            shown = {
                "right": f"{100 * right:.0f} % [{100 * low:.0f}, {100 * high:.0f}]",
                "chance": CHANCE.get(kind, "0 %"),
            }
            answered.add({"domain": domain, "problem": kind, **share, **shown})
    yield answered


def main(arguments: list[str] | None = None) -> None:
    """Run the command: print the tables."""
    from specexp.fit.command import read_fit

    parser = argparse.ArgumentParser(prog="python -m experiments.pair.evaluate", description=__doc__)
    parser.add_argument("target", help="a folder, a hub id, or the name of an embedded pair")
    parser.add_argument("others", nargs="*", help="other models with the same vocabulary")
    parser.add_argument(
        "--recipe", required=True, help="training file that lists the domains; --data.* overrides it"
    )
    parser.add_argument("--losses", action="store_true", help="print only the table of losses")
    parser.add_argument("--human-eval", metavar="FILE", help="add HumanEval: its file or hub name")
    options, overrides = parser.parse_known_args(arguments)
    sources = dict(read_fit(options.recipe, overrides)["data"].sources)
    if options.human_eval is not None:
        sources["human-eval"] = HumanEvalTasks(options.human_eval)
    for table in tables(options.target, options.others, sources, losses_alone=options.losses):
        print(table.to_markdown())


if __name__ == "__main__":
    main()
