"""Experiments give the same tokens, acceptance and modelled speeds with the golden pair."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from helpers.golden import GOLDEN, ROOT, check, command

MODELLED = GOLDEN / "latency.yaml"
RECORD = ["arm", "prompt_id", "sample", "token_ids", "finish_reasons", "steps", "accepted_drafts"]
RECORD += ["bonus_tokens", "draft_passes", "drafted_nodes", "drafted_at", "accepted_at", "decode_tokens"]
RECORD += ["decode_seconds", "clock"]
"""The compared fields of a record."""
BY_THE_CLOCK = {"prefill_seconds", "memory_mib", "start_seconds"}
"""Columns of tables that no latency profile states."""
WORDED = {"verdict", "reason"}
"""Columns of tables with sentences."""
TOY = tuple(
    f"--verify.{name}={number}"
    for name, number in {"samples": 24, "toy_tokens": 240, "toy_triples": 240, "workers": 1}.items()
)


def _composed(file: str, setup: Path, *more: str) -> tuple[str, ...]:
    """The arguments of an experiment with the golden pair, prompts and device."""
    return (str(ROOT / file), "--compose", str(setup), "--compose", str(MODELLED), "--json", *more)


def _rows(file: Path) -> list[dict[str, Any]]:
    """A table without what is measured or worded, its numbers as numbers."""
    with file.open(newline="", encoding="utf-8") as lines:
        return [
            {name: _number(cell) for name, cell in row.items() if name not in BY_THE_CLOCK | WORDED}
            for row in csv.DictReader(lines)
        ]


def _number(cell: str) -> Any:
    for kind in (int, float):
        try:
            return kind(cell)
        except ValueError:
            continue
    return cell or None


def _records(file: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    return [{name: row[name] for name in RECORD} for row in rows]


def _check_run(name: str, file: str, setup: Path, *more: str) -> None:
    result = command("run", *_composed(file, setup, *more))
    assert result.code == 0, result.err
    folder = Path(result.json["folder"])
    tables = {table.stem: _rows(table) for table in sorted(folder.glob("*.csv"))}
    check(f"results/{name}", {"tables": tables, "records": _records(folder / "records.jsonl")})


def _check_sweep(name: str, file: str, setup: Path, *more: str) -> None:
    """Trials, confirmation and winner of a study."""
    result = command("sweep", *_composed(file, setup, "--sweep.export.to", "kept", *more))
    assert result.code == 0, result.err
    folder = Path(result.json["folder"])
    kept = Path("kept/v1")
    payloads = [kept / name for name in ("tree.json", "parts.json")]
    exported = {file.name: json.loads(file.read_text()) for file in payloads if file.exists()}
    check(
        f"results/{name}",
        {
            "summary": result.json["summary"],
            "trials": _rows(folder / "trials.csv"),
            "confirmation": _rows(folder / "confirm.csv"),
            "confirmed": _records(folder / "confirm.jsonl"),
            "metrics": json.loads((kept / "artifact.json").read_text())["provenance"]["metrics"],
            "exported": exported,
        },
    )


def _check_verdicts(name: str, file: str, setup: Path, *more: str) -> None:
    result = command("verify", *_composed(file, setup, *TOY, *more))
    assert result.code in (0, 1, 3), result.err
    tables = {
        name: [{key: cell for key, cell in row.items() if key not in WORDED} for row in rows]
        for name, rows in result.json["tables"].items()
    }
    check(f"results/{name}", {"exit_code": result.code, "tables": tables})


@pytest.mark.slow
def test_train_free(setup: Path) -> None:
    _check_run("train_free", "experiments/papers/token_recycling/train_free.yaml", setup)


def test_lossless_equality(setup: Path) -> None:
    _check_run("lossless/equality", "experiments/lossless/equality.yaml", setup, "--data.max_prompts", "3")


@pytest.mark.slow
def test_lossless_equality_of_greedy_decoding(setup: Path) -> None:
    greedy = ("--data.max_prompts", "3", "--verifier", "Greedy", "--name", "lossless_greedy")
    _check_run("lossless/equality_greedy", "experiments/lossless/equality.yaml", setup, *greedy)


FEW = ("--sweep.confirm.data.max_prompts", "3")


def test_demo(setup: Path) -> None:
    counts = ("--sweep.count_acceptances.data.max_prompts", "2")
    _check_sweep("demo", "experiments/demo.yaml", setup, *FEW, *counts, "--n-trials", "12")


@pytest.mark.slow
def test_fastest(setup: Path) -> None:
    """The heads are left out: they belong to the embedded target."""
    _check_sweep("fastest", "experiments/fastest.yaml", setup, *FEW, "--n-trials", "20")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["baselines", "phrases", "sampling"])
def test_lossless_verdicts(name: str, setup: Path) -> None:
    """Without ``heads.yaml``, which needs heads and a corpus that other commands make."""
    _check_verdicts(f"lossless/{name}", f"experiments/lossless/{name}.yaml", setup, "--data.max_prompts", "3")
