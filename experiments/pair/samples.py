"""``python -m experiments.pair.samples TARGET FILE --recipe FILE``: sample texts from a target, to distil drafts on.

A draft has to continue text of the target, not of people. Prompts are openings of a recipe's training texts, and its
reasoning problems. Half of the answers are greedy, half are sampled at temperature 0.7.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field
from typing_extensions import override

from experiments.pair.corpus.text_source import Text, TextSource, opening
from experiments.pair.evaluate import TEMPERATURE, continuations
from specexp.data.training_text import Split
from specexp.models.pair import ModelPair, load_pair

NEW_TOKENS = 128


class Samples(TextSource):
    """The texts of a file that this command wrote. The loss excludes the prompts.

    Args:
        path: the JSON lines file.
        held_out: share of the samples that are in the validation split.
    """

    licence: ClassVar[str] = "that of the prompts' sources"
    written: ClassVar[bool] = False

    def __init__(self, path: str, held_out: Annotated[float, Field(ge=0, le=1)] = 0.02) -> None:
        self.path = path
        self.held_out = held_out

    @override
    def texts(self, split: Split) -> Iterator[Text]:
        rng = random.Random(0)
        for number, line in enumerate(Path(self.path).read_text(encoding="utf-8").splitlines()):
            row = json.loads(line)
            if split == ("validation" if rng.random() < self.held_out else "train"):
                yield Text(f"samples/{number}", row["prompt"] + row["answer"], (row["prompt"],))


def prompts(source: TextSource, count: int) -> list[str]:
    """Return ``count`` prompts of a source: up to half are its problems, the others openings of its training texts."""
    texts = [text.text for text in source.texts("train")]
    random.Random(0).shuffle(texts)
    asked = [probe.prompt for probe in islice(source.probes("train"), count // 2)]
    return [*asked, *(opening(text) for text in texts[: count - len(asked)])]


def write_samples(pair: ModelPair, sources: Mapping[str, TextSource], count: int, file: Path) -> None:
    """Write the answers to ``count`` prompts of each source as JSON lines."""
    with file.open("w", encoding="utf-8") as out:
        for source in sources.values():
            some = prompts(source, count)
            for temperature in (0.0, TEMPERATURE):
                mine = some[::2] if temperature == 0 else some[1::2]
                answers = continuations(
                    pair.target, pair.tokenizer, mine, temperature=temperature, max_new_tokens=NEW_TOKENS
                )
                for prompt, ids in zip(mine, answers, strict=True):
                    answer = pair.tokenizer.decode(ids, skip_special_tokens=True)
                    out.write(json.dumps({"prompt": prompt, "answer": answer}) + "\n")
            out.flush()  # a source takes minutes, so a kill should not lose it


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command: write the samples."""
    from specexp.fit.command import read_fit

    parser = argparse.ArgumentParser(prog="python -m experiments.pair.samples", description=__doc__)
    parser.add_argument("target", help="a folder, or the name of an embedded model")
    parser.add_argument("file", type=Path)
    parser.add_argument(
        "--recipe", required=True, help="training file that lists the sources; --data.* overrides it"
    )
    parser.add_argument("--count", type=int, default=2000, help="number of prompts from each source")
    options, overrides = parser.parse_known_args(arguments)
    sources = read_fit(options.recipe, overrides)["data"].sources
    write_samples(load_pair(options.target), sources, options.count, options.file)
    return 0


if __name__ == "__main__":
    sys.exit(main())
