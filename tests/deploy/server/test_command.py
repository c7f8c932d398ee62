"""The command: mistakes are one sentence, and the learned state is saved."""

import socket

import pytest
import torch
from helpers.served import Client

from specexp.artifacts import fingerprint
from specexp.config.artifacts import load_artifact, save_artifact
from specexp.controllers import NodeBudget
from specexp.deploy.server.command import KEY, _key, _name_of, main
from specexp.deploy.server.http_server import listen
from specexp.deploy.server.loading import decoding_thread_of, save_state
from specexp.models.pair import load_pair
from specexp.models.sources import PairError

PARTS = {
    "drafter": {"class_path": "TokenRecycling", "init_args": {"k": 2, "state": "carry"}},
    "builder": {"class_path": "Chain", "init_args": {"length": 3}},
    "verifier": None,
    "controller": None,
}


@pytest.fixture
def artifact(tmp_path, tiny):
    payloads = {"parts.json": PARTS}
    return str(save_artifact(tmp_path / "tree", "composition", payloads, fingerprint=fingerprint(*tiny)).folder)


@pytest.mark.slow
def test_the_target_is_served_as_measured_or_by_the_options(tmp_path, monkeypatch):
    measured = {"runtime": "eager", "dtype": "float32"}
    folder = save_artifact(tmp_path / "tuned", "composition", {"parts.json": PARTS}, measured).folder
    served = []

    def serve(given, artifact, pair, listener, key):
        served.append(decoding_thread_of(artifact, pair, lanes=1, waiting=1).target.provenance())
        return 0

    monkeypatch.setattr("specexp.deploy.server.command._serve", serve)
    for options in ([], ["--target-dtype", "bfloat16", "--mode", "compiled"]):
        assert main([str(folder), "--port", "0", *options]) == 0
    assert served == [measured, {"runtime": "compiled", "dtype": "bfloat16"}]


def test_options_of_a_draft_model_that_is_not_used_are_named(monkeypatch, capsys):
    monkeypatch.setattr("specexp.models.pair.load_pair", lambda *given, **settings: None)
    monkeypatch.setattr("specexp.deploy.server.command._serve", lambda *given: 0)
    assert main(["smollm2:tree", "--port", "0", "--draft", "smollm2", "--draft-dtype", "bfloat16"]) == 0
    warnings = capsys.readouterr().err.splitlines()
    assert [line.partition(", since")[0] for line in warnings] == [
        "warning: --draft smollm2 is not used",
        "warning: --draft-dtype bfloat16 is not used",
    ]


def test_the_default_name_of_a_model_shows_no_folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.gguf").touch()
    assert _name_of("smollm2") == "smollm2"
    assert _name_of("org/model") == "org/model"
    assert _name_of(f"{tmp_path}/") == _name_of(".") == tmp_path.name
    assert _name_of(str(tmp_path / "model.gguf")) == "model.gguf"


def test_an_artifact_of_a_model_by_name_brings_its_target(tmp_path, monkeypatch, capsys):
    asked = []

    def load(target, draft, **settings):
        asked.append(target)
        raise PairError("target", "enough")

    monkeypatch.setattr("specexp.models.pair.load_pair", load)
    for name in ("smollm2", "my/model"):
        measured = {"config": {"pair": {"target": name}}}
        folder = save_artifact(tmp_path / name, "composition", {"parts.json": PARTS}, measured).folder
        assert main([str(folder), "--port", "0"]) == 2
    assert asked == ["smollm2"]
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert last.startswith("error: --target must name the model of")
    assert last.endswith("which was measured with 'my/model'")


@pytest.mark.parametrize("own", [{}, {"controller": {"class_path": "Fixed"}}], ids=["none", "one without limits"])
def test_the_budget_of_nodes_is_learned_saved_and_served_again(artifact, own, model_folder, tmp_path):
    pair = load_pair(model_folder, target_dtype="float32", mode="eager")
    payloads = {"parts.json": {**load_artifact(artifact).recorded, **own}}
    loaded = load_artifact(save_artifact(tmp_path / "own", "composition", payloads).folder)
    thread = decoding_thread_of(loaded, pair, lanes=2, waiting=4)
    clients = [Client([97, 98, 97, 98, number], most=90) for number in range(4)]
    thread.submit([client.output for client in clients])
    with torch.inference_mode():
        while thread.waiting or thread.running or clients[0].end is None:
            thread.round()
    saved = load_artifact(save_state(loaded, thread.parts, pair, str(tmp_path / "learned")))
    again = decoding_thread_of(saved, pair, lanes=2, waiting=4)
    assert isinstance(again.parts.controller, NodeBudget)
    assert again.parts.controller.from_lanes == 2
    assert (again.parts.controller.state_dict()["sums"][1] > 0).all()
    assert (again.parts.drafter.state_dict()["matrix"] != 0).any()


@pytest.mark.parametrize(
    ("settings", "budget"), [({"lanes": 2}, True), ({"lanes": 1}, False), ({"lanes": 2, "deterministic": True}, False)]
)
def test_drafts_adapt_to_the_load_unless_outputs_are_alone_or_deterministic(model_folder, tmp_path, settings, budget):
    pair = load_pair(model_folder, target_dtype="float32", mode="eager")
    folder = save_artifact(tmp_path / "lookup", "composition", {"parts.json": LOOKUP}).folder
    thread = decoding_thread_of(load_artifact(folder), pair, waiting=4, **settings)
    assert isinstance(thread.parts.controller, NodeBudget) == budget


def test_the_key_is_of_the_file_or_of_the_environment(tmp_path, monkeypatch):
    assert _key(None) is None
    monkeypatch.setenv(KEY, "of-the-environment")
    assert _key(None) == "of-the-environment"
    (tmp_path / "key").write_text("of-the-file\n")
    assert _key(str(tmp_path / "key")) == "of-the-file"


def test_small_pieces_are_sent_at_once():
    """asyncio turns Nagle's algorithm off only on sockets of the TCP protocol."""
    with listen("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.proto == socket.IPPROTO_TCP


DRAFTED, LOOKUP = ({**PARTS, "drafter": {"class_path": name}} for name in ("DraftModel", "PromptLookup"))


@pytest.mark.parametrize(
    ("parts", "arguments", "words"),
    [
        (PARTS, ["--target", "stdlib"], "--target must be the artifact's model, got 'stdlib': "),
        (DRAFTED, [], "--draft must be the draft model with which "),
        (LOOKUP, ["--lanes", "1", "--save-state", "state"], "keeps learned state between requests: leave"),
        (PARTS, ["--device", "cuda:7"], "--device: device 'cuda:7'"),
        (PARTS, ["--lanes", "0"], "--lanes must be an integer >= 1, got 0"),
        (PARTS, ["--port", "70000"], "--port must be an integer from 0 (any free port) to 65535, got 70000"),
        (PARTS, ["--threads", "10000"], "--threads must be at most"),
        (PARTS, ["--deadline", "0"], "--deadline must be a number of seconds > 0, got 0"),
        (PARTS, ["--drain", "700"], "--drain must be at most --deadline, 600, at which a request ends anyway, got 700"),
        (PARTS, ["--max-prompt", "193"], "--max-prompt must be at most 192, the model's context, got 193"),
        (PARTS, ["--host", "no.such.host.invalid"], "--port 0: cannot listen on this address"),
        (PARTS, ["--mode", "fast"], "got 'fast'"),
        (PARTS, ["--api-key-file", "missing"], "--api-key-file missing cannot be read"),
        (PARTS, ["--api-key-file", __file__], "must hold a key of printable ASCII"),
        (PARTS, ["--port", "{taken}"], "cannot listen on this address (Address already in use); choose another"),
        (PARTS, ["--save-state", "~/state"], "must be a path without ~"),
        (PARTS, ["--target", "no/such/model"], "--target: target 'no/such/model'"),
        (None, [], "there is no such artifact folder"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_sentence(capsys, tmp_path, tiny, model_folder, parts, arguments, words):
    folder = tmp_path / "tree"
    if parts is not None:
        save_artifact(folder, "composition", {"parts.json": parts}, fingerprint=fingerprint(*tiny))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        given = [one.format(artifact=folder, taken=taken.getsockname()[1]) for one in arguments]
        assert main([str(folder), "--target", model_folder, "--port", "0", *given]) == 2
    (sentence,) = capsys.readouterr().err.strip().splitlines()
    assert words in sentence


def test_settings_of_an_engine_are_not_served(capsys, tmp_path):
    content = {"engine": "vllm", "version": "1", "settings": {"method": "ngram", "num_speculative_tokens": 4}}
    folder = save_artifact(tmp_path / "measured", "engine-settings", {"settings.json": content}).folder
    assert main([str(folder), "--target", "stdlib"]) == 2
    assert capsys.readouterr().err == (
        f"error: {folder}: kind 'engine-settings' records no drafter to serve; settings of an engine are exported to "
        "that engine alone\n"
    )


def test_a_misspelt_option_is_one_sentence_with_the_right_one(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["smollm2:tree", "--saved-state", "folder"])
    assert capsys.readouterr().err == (
        "error: unrecognized arguments: --saved-state folder; did you mean '--save-state'?\n"
    )
