"""The command: what stands in its way is said in one sentence, and what was learned is saved."""

import socket
import subprocess
import sys

import pytest
import torch
from helpers.served import Client

from specexp.artifacts import fingerprint
from specexp.config.artifacts import load_artifact, save_artifact
from specexp.config.errors import ConfigError
from specexp.deploy.server.command import KEY, _key, main
from specexp.deploy.server.http_server import listen
from specexp.deploy.server.loading import engine_of, profile_in, save_state
from specexp.models.pair import load_pair

PARTS = {
    "drafter": {"class_path": "TokenRecycling", "init_args": {"k": 2, "state": "carry"}},
    "builder": {"class_path": "Chain", "init_args": {"length": 3}},
    "verifier": None,
    "controller": None,
}


@pytest.fixture
def artifact(tmp_path, tiny):
    return str(
        save_artifact(
            tmp_path / "tree", "composition", {"parts.json": PARTS}, fingerprint=fingerprint(*tiny)
        ).folder
    )


def refused(capsys, *arguments):
    """The one sentence on stderr."""
    code = main([str(argument) for argument in arguments])
    said = capsys.readouterr().err.strip().splitlines()
    assert code == 2
    assert len(said) == 1, said
    return said[0]


@pytest.mark.parametrize(
    ("given", "dtype", "runtime"),
    [
        ([], "float32", "eager"),
        (["--target-dtype", "bfloat16", "--mode", "compiled"], "bfloat16", "compiled"),
    ],
)
def test_the_target_is_served_as_it_was_measured_unless_told_otherwise(
    tmp_path, monkeypatch, given, dtype, runtime
):
    measured = {"runtime": "eager", "dtype": "float32"}
    folder = save_artifact(tmp_path / "tuned", "composition", {"parts.json": PARTS}, measured).folder
    served = []

    def serve(given, artifact, pair, listener, key):
        served.append(engine_of(artifact, pair, lanes=1, waiting=1).target.provenance())
        return 0

    monkeypatch.setattr("specexp.deploy.server.command._serve", serve)
    assert main([str(folder), "--port", "0", *given]) == 0
    assert served == [{"runtime": runtime, "dtype": dtype}]


def test_a_port_in_use_is_named(capsys, artifact, model_folder):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = refused(capsys, artifact, "--target", model_folder, "--port", port)
    assert (
        said
        == f"error: --host 127.0.0.1 --port {port}: nothing can listen there (Address already in use); name another"
    )


def test_an_artifact_of_another_model_is_refused(capsys, artifact):
    said = refused(capsys, artifact, "--port", 0)
    assert "the artifact belongs to another" in said


def test_a_draft_model_that_is_missing_is_named(capsys, tmp_path, model_folder):
    parts = {**PARTS, "drafter": {"class_path": "DraftModel", "init_args": {}}}
    folder = save_artifact(tmp_path / "drafted", "composition", {"parts.json": parts}).folder
    assert "needs a draft model" in refused(capsys, folder, "--target", model_folder, "--port", 0)


def test_a_latency_profile_that_is_none_is_named(capsys, artifact, model_folder):
    said = refused(capsys, artifact, "--target", model_folder, "--port", 0, "--latency", artifact)
    assert "kind is 'composition'; 'latency-profile' is expected here" in said


def test_what_pays_by_load_is_learned_saved_and_served_again(artifact, model_folder, tmp_path):
    pair = load_pair(model_folder, target_dtype="float32", mode="eager")
    content = {"name": "a", "source": "assumed", "target_ms": {"1": 1.0}, "draft_ms": {}}
    folder = save_artifact(tmp_path / "costs", "latency-profile", {"profile.json": content}).folder
    loaded = load_artifact(artifact)
    engine = engine_of(loaded, pair, lanes=2, waiting=4, latency=profile_in(str(folder)))
    clients = [Client([97, 98, 97, 98, number], most=90) for number in range(4)]
    engine.submit([client.output for client in clients])
    with torch.inference_mode():
        while engine.waiting or engine.running or clients[0].end is None:
            engine.round()
    saved = load_artifact(save_state(loaded, engine.parts, pair, str(tmp_path / "lengths"), lanes=2))
    assert saved.kind == "draft-lengths"
    assert set(saved.nodes) <= {1, 2}
    assert saved.nodes[1] in range(4)
    again = engine_of(saved, pair, lanes=2, waiting=4)
    assert again.parts.controller.nodes == saved.nodes
    assert (again.parts.drafter.state_dict()["matrix"] != 0).any()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--device", "cuda:7"], "cuda"),
        (["--lanes", "0"], "--lanes is 0; an integer of at least 1 is allowed"),
        (["--port", "70000"], "--port is 70000; allowed is 0, for any free one, to 65535"),
        (["--deadline", "0"], "--deadline is 0; a number of seconds above 0 is allowed"),
        (
            ["--host", "no.such.host.invalid"],
            "--host no.such.host.invalid --port 8000: nothing can listen there",
        ),
        (["--mode", "fast"], "mode is 'fast'"),
        (["--api-key-file", "missing"], "--api-key-file missing cannot be read"),
        (["--save-state", "~/state"], "write the whole path"),
        (["--target", "no/such/model"], "no/such/model"),
    ],
)
def test_what_cannot_be_is_said_in_a_sentence(capsys, artifact, model_folder, arguments, words):
    assert words in refused(capsys, artifact, "--target", model_folder, *arguments)


def test_a_state_that_nothing_carries_is_not_saved(capsys, tmp_path, model_folder):
    parts = {**PARTS, "drafter": {"class_path": "PromptLookup", "init_args": {}}}
    folder = save_artifact(tmp_path / "lookup", "composition", {"parts.json": parts}).folder
    said = refused(capsys, folder, "--target", model_folder, "--port", 0, "--save-state", tmp_path / "state")
    assert "PromptLookup and BuilderLimits carry nothing" in said


def test_an_artifact_that_is_none_is_named(capsys, tmp_path):
    assert str(tmp_path) in refused(capsys, tmp_path)


def test_the_key_is_of_the_file_or_of_the_environment(tmp_path, monkeypatch):
    assert _key(None) is None
    monkeypatch.setenv(KEY, "of the environment".replace(" ", "-"))
    assert _key(None) == "of-the-environment"
    (tmp_path / "key").write_text("of-the-file\n")
    assert _key(str(tmp_path / "key")) == "of-the-file"
    (tmp_path / "key").write_text("two words")
    with pytest.raises(ConfigError, match="holds no key"):
        _key(str(tmp_path / "key"))


@pytest.mark.slow
def test_help_needs_no_model_library():
    code = """import sys
from specexp.deploy.server.command import main as serve
try:
    serve(["--help"])
finally:
    print("torch" in sys.modules)"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
    assert said.startswith("usage: python -m specexp.serve")
    assert said.endswith("False\n")


def test_small_pieces_are_sent_at_once():
    """asyncio turns Nagle's algorithm off where the accepted socket says that it is TCP's."""
    with listen("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.proto == socket.IPPROTO_TCP
