"""``python -m experiments.first_page [--check]``: measure and write every figure and picture of the README.

Runs the main job, the tables by task and the comparison of engines, and replaces the README's blocks between
``<!-- NAME -->`` and ``<!-- end -->``. With ``--check`` the README stays, and the command fails if a ratio in it lies
outside the interval measured now. The machine must be idle; two cores need about twenty minutes.
"""

from __future__ import annotations

import argparse
import csv
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from experiments.first_page.drawings import Line, recording, tokens_by_pass
from specexp.bench.observers import steps_of
from specexp.bench.record import PromptRecord, read_records
from specexp.bench.statistics import paired_speedup
from specexp.config import arms_of, load_config, missing_engine
from specexp.models.pair import load_pair

README, PICTURES = Path("README.md"), Path("docs/pictures")
STUDY, COMPARISON = Path("runs/tree_shape"), Path("runs/compare")
MAIN_JOB = "python -m specexp.sweep experiments/tree_shape.yaml"
BY_TASK = ("workloads", "structured")
"""The experiments with a row for each task."""
ENGINES = Path("experiments/engines/compare.yaml")
GGUF = "python -m experiments.passes.gguf_writer smollm2 models/smollm2 --precision bf16"
ARMS = {
    "specexp": ("plain", "specexp, prompt lookup and Token Recycling"),
    "vLLM": ("vLLM, plain", "vLLM, n-grams"),
    "vLLM, our drafts": ("vLLM, plain", "vLLM, smollm2:tree"),
    "llama.cpp": ("llama.cpp, plain", "llama.cpp, n-grams"),
    "OpenVINO GenAI": ("OpenVINO GenAI, plain", "OpenVINO GenAI, prompt lookup"),
    "Hugging Face": ("Hugging Face, plain", "Hugging Face, prompt lookup"),
}
"""Plain and speculative arm of each row in the table of engines."""
RATIO = re.compile(r"(\d+\.\d+)x \[(\d+\.\d+), (\d+\.\d+)\]")
BLOCK = re.compile(r"<!-- (?P<name>[a-z ]+) -->(?P<content>.*?)<!-- end -->", re.DOTALL)


def lines_of(command: str) -> list[Line]:
    """Run a command and return the lines that it printed.

    Raises:
        SystemExit: the command failed.
    """
    begun, lines = time.perf_counter(), []
    words = [sys.executable, *command.split()[1:]]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        for text in process.stdout:
            print(text, end="", flush=True)
            lines.append(Line(text.rstrip(), time.perf_counter() - begun))
    if process.returncode:
        sys.exit(f"{command} failed with exit code {process.returncode}")
    return lines


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Return a table in plain text: the first column to the left, the others to the right."""
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            [
                row[0].ljust(widths[0]),
                *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)),
            ]
        )
        for row in rows
    )


def rows_of(file: Path, columns: Mapping[str, str]) -> list[list[str]]:
    """Return a table of a results folder as text: its ``columns`` by name, each with a number format; "interval" joins
    a ratio with its interval."""
    with file.open(encoding="utf-8", newline="") as content:
        found = list(csv.DictReader(content))
    rows = [list(columns)]
    for one in found:
        cells = []
        for name, form in columns.items():
            value = one[name]
            if form == "interval":
                low, high = one[f"{name} low"], one[f"{name} high"]
                cells.append(f"{float(value):.2f}x [{float(low):.2f}, {float(high):.2f}]" if low else value)
            else:
                cells.append(format(float(value), form) if form and value else value)
        rows.append(cells)
    return rows


def tokens_picture(records: Sequence[PromptRecord], winner: str) -> str:
    """Return the picture of the answer on which the winner gains most among those of ordinary length."""
    decode = load_pair("smollm2").tokenizer.decode
    plain = {one.prompt_id: one for one in records if one.drafted_nodes == 0}
    ours = [one for one in records if one.arm == winner and one.steps > 15]
    best = min(ours, key=lambda one: one.steps / one.new_tokens)
    panels = []
    for name, one in (("plain decoding", plain[best.prompt_id]), (winner, best)):
        passes = [
            [(decode([one.token_ids[place]]), one.sources[place] >= 0) for place in step]
            for step in steps_of(one.sources, one.turn_tokens)
        ]
        panels.append((f"{name}: {len(passes)} passes for {one.new_tokens} tokens", passes))
    return tokens_by_pass(panels)


def compare_engines() -> list[PromptRecord]:
    """Run the comparison of engines with those that are installed here, and return its records."""
    lines_of(GGUF)  # first, since an engine without its file counts as missing
    usable = [arm.name for arm in arms_of(load_config(ENGINES)) if not missing_engine(arm.config)]
    lines_of(f"python -m specexp.run {ENGINES} --arms {','.join(usable)}")
    return read_records(COMPARISON / "records.jsonl")


def engines(records: Sequence[PromptRecord]) -> str:
    """Return the table of engines: their speeds over our plain decoding, or why one has none."""
    rows = [["engine", "plain, over ours", "with drafts, over our plain"]]
    for name, arms in ARMS.items():
        cells = []
        for arm in arms:
            own = [one for one in records if one.arm == arm]
            failed = next((one.error.partition("\n")[0] for one in own if one.error), "")
            speedup = paired_speedup(records, arm, "plain")
            figure = speedup.unlabeled if speedup.refused is None else speedup.refused.partition(" from ")[0]
            cells.append("1" if arm == "plain" else "not installed" if not own else failed or figure)
        rows.append([name, *cells])
    return aligned(rows)


def replaced(page: str, blocks: Mapping[str, str]) -> str:
    """Return the page with the content of its marked blocks replaced.

    Raises:
        ValueError: a block has no place in the page.
    """
    if missing := set(blocks) - {match["name"] for match in BLOCK.finditer(page)}:
        raise ValueError(f"{README} must have the block <!-- {min(missing)} -->, and has none")
    return BLOCK.sub(lambda match: f"<!-- {match['name']} -->{blocks[match['name']]}<!-- end -->", page)


def deviations(page: str, blocks: Mapping[str, str]) -> list[str]:
    """Return a sentence for each ratio of the page that lies outside the interval of the same row in ``blocks``."""
    found = []
    for match in BLOCK.finditer(page):
        now = {_name(line): RATIO.search(line) for line in blocks[match["name"]].splitlines()}
        for line in match["content"].splitlines():
            old, new = RATIO.search(line), now.get(_name(line))
            if old and new and not float(new[2]) <= float(old[1]) <= float(new[3]):
                found.append(f"{_name(line) or match['name']}: the page has {old[0]}, this run {new[0]}")
    return found


def _name(line: str) -> str:
    return RATIO.sub("", line).partition("  ")[0].strip()


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and write the README or compare with it; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m experiments.first_page", description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare the README with this run and leave it unchanged")
    check = parser.parse_args(argv).check
    shutil.rmtree(STUDY, ignore_errors=True)  # a study that has ended would only be printed again
    study = lines_of(MAIN_JOB)
    for name in BY_TASK:
        lines_of(f"python -m specexp.run experiments/{name}.yaml")
    compared = compare_engines()
    trees = {
        "tree": "",
        "nodes": ".3g",
        "tokens per step": ".2f",
        "tokens/s": ".0f",
        "speedup": "interval",
        "equal outputs": "",
    }
    table = rows_of(STUDY / "confirm.csv", trees)
    answer = [
        line.text for line in study if " as fast as plain decoding" in line.text or line.text.startswith("Safe: ")
    ]
    tasks = {
        "task": "",
        "plain tokens/s": ".0f",
        "best setup": "",
        "speedup": "interval",
        "by position": "",
    }
    heads, *rows = (row for name in BY_TASK for row in rows_of(Path("runs", name, "tasks.csv"), tasks))
    blocks = {
        "ratio": table[1][4],
        "main job": _code(aligned(table), *answer),
        "by task": _code(aligned([heads, *(row for row in rows if row != heads)])),
        "engines": _code(engines(compared)),
    }
    page = README.read_text(encoding="utf-8")
    if wrong := deviations(page, blocks):
        print(*wrong, sep="\n")
    if check:
        return 1 if wrong else 0
    README.write_text(replaced(page, blocks), encoding="utf-8")
    shown = [line for line in study if line.text.strip() and not line.text.startswith("WARNING")]
    (PICTURES / "main_job.svg").write_text(recording(MAIN_JOB, shown), encoding="utf-8")
    picture = tokens_picture(read_records(STUDY / "confirm.jsonl"), table[1][0])
    (PICTURES / "tokens_by_pass.svg").write_text(picture, encoding="utf-8")
    return 0


def _code(*lines: str) -> str:
    return "\n".join(["", "```text", *lines, "```", ""])


if __name__ == "__main__":
    sys.exit(main())
