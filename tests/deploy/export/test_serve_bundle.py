"""``specexp.export --to serve-bundle``: a model folder that Hugging Face loads with the artifact at work."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from specexp import load_pair
from specexp.config.artifacts import save_artifact
from specexp.deploy.export.command import main
from specexp.engines.server import StartedServer, free_port

PROMPT = "def read_config(path):\n"
PARTS = {
    "lookup": {"drafter": {"class_path": "PromptLookup"}, "builder": {"class_path": "Chain"}},
    "draft": {
        "drafter": {"class_path": "DraftModel"},
        "builder": {"class_path": "KConfig", "init_args": {"widths": [2, 2]}},
    },
}


@pytest.fixture(scope="module", params=PARTS)
def bundle(request, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    artifact = save_artifact(folder / "tuned", "composition", {"parts.json": PARTS[request.param]})
    assert (
        main(
            [
                str(artifact.folder),
                "--to",
                "serve-bundle",
                "--target",
                "stdlib",
                "--output",
                str(folder / "served"),
            ]
        )
        == 0
    )
    assert (folder / "served" / "specexp" / "draft").is_dir() == (request.param == "draft")
    return folder / "served"


@pytest.fixture(scope="module")
def loaded(bundle):
    model = AutoModelForCausalLM.from_pretrained(bundle, dtype="float32", trust_remote_code=True)
    return model, AutoTokenizer.from_pretrained(bundle)


def test_the_folder_is_loaded_and_run_as_the_artifact_was_measured(tmp_path, caplog):
    measured = {"runtime": "eager", "dtype": "float32"}
    artifact = save_artifact(tmp_path / "tuned", "composition", {"parts.json": PARTS["lookup"]}, measured)
    assert (
        main(
            [
                str(artifact.folder),
                "--to",
                "serve-bundle",
                "--target",
                "stdlib",
                "--output",
                str(tmp_path / "served"),
            ]
        )
        == 0
    )
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "served", trust_remote_code=True)
    assert model.dtype == torch.float32
    model.generate(torch.tensor([[5, 6, 7]]), max_new_tokens=4)
    assert not [record for record in caplog.records if record.name.startswith("specexp")]


GREEDY = {"do_sample": False, "max_new_tokens": 32}


def plain(**given):
    pair = load_pair("stdlib", target_dtype="float32")
    ids = pair.tokenizer(PROMPT, return_tensors="pt").input_ids
    return ids, pair.target.generate(ids, tokenizer=pair.tokenizer, **GREEDY, **given)[0]


def test_the_loaded_model_generates_what_it_does_without_speculation(loaded) -> None:
    model, _ = loaded
    ids, expected = plain()
    assert model.generate(ids, **GREEDY)[0].tolist() == expected.tolist()
    off = GenerationConfig(specexp_off=True, **GREEDY)
    assert model.generate(ids, generation_config=off)[0].tolist() == expected.tolist()


def test_stop_strings_stop_there_too(loaded) -> None:
    model, tokenizer = loaded
    ids, expected = plain(stop_strings=["\n"])
    assert expected.numel() < ids.shape[1] + 32
    stopping = {"stop_strings": ["\n"], **GREEDY}
    for given in (stopping, {"generation_config": GenerationConfig(**stopping)}):
        assert model.generate(ids, tokenizer=tokenizer, **given)[0].tolist() == expected.tolist()
    with pytest.raises(ValueError, match="stop_strings need the tokenizer"):
        model.generate(ids, stop_strings=["\n"])


def test_streamed_tokens_are_those_returned(loaded) -> None:
    pieces, ended = [], []
    streamer = SimpleNamespace(put=pieces.append, end=lambda: ended.append(True))
    ids, expected = plain()
    loaded[0].generate(ids, streamer=streamer, **GREEDY)
    assert [int(token) for piece in pieces for token in piece.flatten()] == expected.tolist()
    assert ended == [True]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--output", "{full}"], "already exists; choose a new or an empty folder"),
        (["--target", "nowhere/none"], "neither a local folder"),
        (["--target", "model.gguf"], "transformers cannot run GGUF files"),
        (["--draft", ""], "--draft must not be empty"),
        (["--trust", "torch"], "--trust is not supported with --to serve-bundle"),
    ],
)
def test_an_impossible_bundle_is_refused_in_a_sentence(options, message, tmp_path, capsys) -> None:
    artifact = save_artifact(tmp_path / "tuned", "composition", {"parts.json": PARTS["lookup"]})
    arguments = [one.format(full=tmp_path) for one in options]
    if "--output" not in arguments:
        arguments += ["--output", str(tmp_path / "new")]
    assert main([str(artifact.folder), "--to", "serve-bundle", *arguments]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("config", "why"),
    [({"pair": {"target": "smollm2"}}, "was found for 'smollm2'"), (None, "does not record its model")],
)
def test_the_target_of_an_artifact_must_be_given(config, why, tmp_path, capsys) -> None:
    payloads = {"parts.json": PARTS["lookup"]}
    artifact = save_artifact(tmp_path / "tuned", "composition", payloads, {"config": config})
    assert main([str(artifact.folder), "--to", "serve-bundle", "--output", str(tmp_path / "new")]) == 2
    assert f"--target must be given, since {artifact.folder} {why}" in capsys.readouterr().err


@pytest.mark.slow
def test_transformers_serve_runs_it(bundle, monkeypatch) -> None:
    openai = pytest.importorskip("openai", reason="openai is not installed: pip install 'specexp[engines]'")
    pytest.importorskip("uvicorn", reason="uvicorn is not installed: pip install 'specexp[engines]'")
    port = free_port()
    command = [
        str(Path(sys.executable).with_name("transformers")), "serve", str(bundle), "--trust-remote-code", "--device",
        "cpu", "--dtype", "float32", "--port", str(port),
    ]  # fmt: skip
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    server = StartedServer(command, f"http://127.0.0.1:{port}", 120)
    try:
        client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none")
        ask = {"model": str(bundle), "prompt": PROMPT, "max_tokens": 32, "temperature": 0}
        texts = [
            client.completions.create(**ask, extra_body=extra).choices[0].text
            for extra in ({}, {"generation_config": '{"specexp_off": true}'})
        ]
        stopped = client.completions.create(**ask, stop=["\n"]).choices[0]
    finally:
        server.close()
    pair = load_pair("stdlib", target_dtype="float32")
    expected = []
    for given in ({}, {"stop_strings": ["\n"]}):
        ids, tokens = plain(**given)
        expected.append(pair.tokenizer.decode(tokens[ids.shape[1] :], skip_special_tokens=True))
    assert texts == [expected[0], expected[0]]
    assert stopped.text == expected[1] != expected[0]
    assert stopped.finish_reason == "stop"
