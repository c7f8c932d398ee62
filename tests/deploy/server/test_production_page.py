"""The page, the README's lines and the container file agree with the server."""

import json
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from specexp.config.artifacts import load_artifact, save_artifact
from specexp.deploy.server.command import _parser
from specexp.deploy.server.request_schema import ChatRequest, CompletionRequest
from specexp.engines.server import free_port
from specexp.models.pair import load_pair

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "production.md").read_text(encoding="utf-8")
CONTAINER = (ROOT / "docs" / "Containerfile").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")


def commands(page):
    """Each command of a page's blocks, in one line."""
    blocks = "\n".join(re.findall(r"```(?:sh|console)\n(.*?)```", page, re.DOTALL))
    return [line.removeprefix("$ ") for line in blocks.replace("\\\n", " ").replace("\n  ", " ").splitlines() if line]


def test_its_options_and_fields_are_there():
    serve = PAGE[PAGE.index("| option |") : PAGE.index("### Drafts by load")]
    options = {option for action in _parser()._actions for option in action.option_strings}
    named = set(re.findall(r"--[a-z][a-z-]+", serve))
    assert named <= options
    fields = ChatRequest.model_fields.keys() | CompletionRequest.model_fields.keys()
    table = PAGE[PAGE.index("| field of") : PAGE.index("| `echo`")]
    named = {name.partition(".")[0].partition(":")[0] for name in re.findall(r"^\| (.*?) \|", table, re.MULTILINE)}
    assert {name for cell in named for name in re.findall(r"`(\w+)", cell)} <= fields


def test_the_commands_of_the_pages_and_of_the_container_file_are_understood():
    command = json.loads(re.search(r"^ENTRYPOINT (.*)$", CONTAINER, re.MULTILINE)[1])
    assert command[:3] == ["python", "-m", "specexp.serve"]
    assert _parser().parse_args(command[3:]).host == "0.0.0.0"
    served = [line for line in commands(PAGE) + commands(README) if "specexp.serve" in line]
    assert len(served) > 1
    for line in served:
        _parser().parse_args(shlex.split(line)[3:])


@pytest.mark.slow
def test_the_readmes_server_answers_its_curl_and_on_sigterm_what_was_taken_in(tmp_path):
    parts = {
        "drafter": {"class_path": "TokenRecycling", "init_args": {"state": "carry"}},
        "builder": {"class_path": "Chain", "init_args": {"length": 3}},
    }
    folder = tmp_path / "artifacts" / "tree_shape"
    save_artifact(folder, "composition", {"parts.json": parts}, aliases=("best-tree",))
    embedded, model = load_pair("stdlib"), tmp_path / "model"  # with a template, in the place of a chat model
    embedded.tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}\n{% endfor %}"
    embedded.tokenizer.save_pretrained(model)
    embedded.target.save_pretrained(model)
    port = str(free_port())
    serve, curl = (line.replace("8000", port) for line in commands(README))
    options = ["--save-state", "state", "--target", str(model), "--name", "stdlib"]
    command = [sys.executable, *shlex.split(serve)[1:], *options]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    server = subprocess.Popen(command, cwd=tmp_path, **pipes)
    try:
        assert "serving artifacts/tree_shape" in server.stdout.readline()
        answered = subprocess.run([*shlex.split(curl), "--retry", "10", "--retry-connrefused"], capture_output=True)
        answer = json.loads(answered.stdout)
        assert answer["choices"][0]["message"]["content"]
        assert answer["metrics"]["speculative_decoding"]["num_spec_tokens"] == 3
        body = {"model": "stdlib", "prompt": "class A:", "max_tokens": 300, "stream": True, "seed": 1}
        url = f"http://127.0.0.1:{port}/v1/completions"
        with httpx.stream("POST", url, json=body, timeout=120) as streamed:
            received = streamed.iter_lines()
            next(received)
            server.send_signal(signal.SIGTERM)
            assert [line for line in received if line][-1] == "data: [DONE]"
        out, log = server.communicate(timeout=60)
    finally:
        server.kill()
    assert server.returncode == 0, log
    assert "the learned state was saved to state/v1" in out
    assert [json.loads(line)["status"] for line in log.splitlines() if line.startswith("{")] == [200, 200]
    learned = load_artifact(tmp_path / "state")
    assert learned.kind == "composition"
    assert (learned.drafter.state_dict()["matrix"] != 0).any()
