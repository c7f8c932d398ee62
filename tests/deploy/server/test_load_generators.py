"""GuideLLM and AIPerf, run as their users do against the server, get every answer and measure what it measures."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from specexp.engines.server import StartedServer, free_port
from specexp.models.pair import load_pair

REQUESTS, TOKENS = 4, 32
TOLERANCE = 0.2  # of a time; the tools start their clocks before they connect


class Figures(NamedTuple):
    """The figures of a tool or of the server's log: completed requests, tokens, and means of seconds per request."""

    requests: int
    tokens: int
    first_token: float
    whole: float


def guidellm(address: str, tokenizer: Path, folder: Path) -> tuple[list[str], Path]:
    options = {
        "backend": f"kind=openai_http,target={address}",
        "tokenizer": f"kind=huggingface_auto,model={tokenizer}",
        "data": f"kind=synthetic_text,prompt_tokens=64,output_tokens={TOKENS}",
        "profile": "kind=synchronous",
        "constraint": f"kind=max_requests,count={REQUESTS}",
        "output": f"kind=json,path={folder / 'guidellm.json'}",
    }
    return ["run", *(f"--{one}={value}" for one, value in options.items())], folder / "guidellm.json"


def read_guidellm(report: Path) -> Figures:
    metrics = json.loads(report.read_text())["benchmarks"][0]["metrics"]
    totals = metrics["request_totals"]
    assert (totals["errored"], totals["incomplete"]) == (0, 0)
    found = {name: metrics[name]["successful"] for name in metrics if "successful" in (metrics[name] or {})}
    first, whole = found["time_to_first_token_ms"]["mean"] / 1000, found["request_latency"]["mean"]
    return Figures(totals["successful"], round(found["output_token_count"]["total_sum"]), first, whole)


def aiperf(address: str, tokenizer: Path, folder: Path) -> tuple[list[str], Path]:
    options = {
        "url": address, "model": "smollm2", "endpoint-type": "chat", "tokenizer": tokenizer, "ui": "none",
        "request-count": REQUESTS, "concurrency": 1, "synthetic-input-tokens-mean": 64, "output-tokens-mean": TOKENS,
        "output-artifact-dir": folder,
    }  # fmt: skip
    # its own advice for answers of a fixed length
    extra = ["--extra-inputs", "ignore_eos:true", "--extra-inputs", f"min_tokens:{TOKENS}"]
    given = [text for name, value in options.items() for text in (f"--{name}", str(value))]
    switches = ["--streaming", "--use-server-token-count"]
    return ["profile", *given, *extra, *switches], folder / "profile_export_aiperf.json"


def read_aiperf(report: Path) -> Figures:
    found = json.loads(report.read_text())
    assert found["request_error_rate"]["avg"] == 0
    first, whole = (found[name]["avg"] / 1000 for name in ("time_to_first_token", "request_latency"))
    return Figures(int(found["request_count"]["avg"]), int(found["total_output_tokens"]["avg"]), first, whole)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    load_pair("smollm2", mode="eager").tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def server(tmp_path) -> Iterator[tuple[str, Path]]:
    """``specexp.serve smollm2:tree`` in a process of its own: its address, and its log of requests."""
    log, address = tmp_path / "server.log", f"http://127.0.0.1:{(port := free_port())}"
    command = f"exec {sys.executable} -m specexp.serve smollm2:tree --port {port} 2> {log}"
    started = StartedServer(["sh", "-c", command], address, 300)
    try:
        yield address, log
    finally:
        started.close()


def read_log(log: Path) -> list[Figures]:
    """Return the figures of each answer in the server's log."""
    rows = [json.loads(line) for line in log.read_text().splitlines() if line.startswith('{"time"')]
    posts = [row for row in rows if row["path"].endswith("completions")]
    assert [row["status"] for row in posts] == [200] * len(posts)
    return [Figures(1, row["new_tokens"], row["first_token_seconds"], row["seconds"]) for row in posts]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("tool", "options", "read"), [("guidellm", guidellm, read_guidellm), ("aiperf", aiperf, read_aiperf)]
)
def test_a_load_generator_gets_every_answer_and_measures_what_the_server_does(
    tool, options, read, server, tokenizer, tmp_path
) -> None:
    program = os.environ.get(tool.upper()) or shutil.which(tool)
    if program is None:
        pytest.skip(f"{tool} is not installed: pip install {tool} in an environment of its own, and set {tool.upper()}")
    address, log = server
    arguments, report = options(address, tokenizer, tmp_path)
    # AIPerf looks folders up in the hub's cache if HF_HUB_OFFLINE is set
    environment = {name: value for name, value in os.environ.items() if name != "HF_HUB_OFFLINE"}
    ended = subprocess.run([program, *arguments], env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    theirs, each = read(report), read_log(log)
    ours = Figures(len(each), sum(one.tokens for one in each), *(
        sum(times) / len(each) for times in ([one.first_token for one in each], [one.whole for one in each])
    ))  # fmt: skip
    print(f"{tool}: {theirs}\nserver: {ours}")
    assert (theirs.requests, theirs.tokens) == (ours.requests, ours.tokens) == (REQUESTS, REQUESTS * TOKENS)
    assert theirs.first_token == pytest.approx(ours.first_token, rel=TOLERANCE, abs=0.05)
    assert theirs.whole == pytest.approx(ours.whole, rel=TOLERANCE, abs=0.05)
