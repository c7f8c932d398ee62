"""A server started by a command: its answers, its failures, and its end."""

import signal
import socket
import subprocess
import sys
import textwrap
import time
from dataclasses import fields
from operator import attrgetter
from pathlib import Path
from threading import Thread
from types import SimpleNamespace

import pytest
import torch
from helpers import fake_server
from helpers.clusters import is_alive
from helpers.small_gguf import tokenizer
from helpers.waiting import wait_for

from specexp.engines import http_engines, llama_wheel, openai_client
from specexp.engines.engine import EngineError
from specexp.engines.http_engines import LlamaCppServer, OpenAIEndpoint
from specexp.engines.openai_client import Streamed, model_of
from specexp.engines.server import StartedServer, filled, free_port
from specexp.engines.settings import LlamaCppSettings
from specexp.models.pair import ModelPair

COMMAND = f"{sys.executable} {fake_server.__file__} {{port}}"
PROMPT = "ab ab"
ANSWER = b'HTTP/1.1 200 OK\r\nContent-Length: 24\r\n\r\n{"data":[{"id":"fake"}]}'


@pytest.fixture
def pair():
    return ModelPair(target=None, draft=None, tokenizer=tokenizer(), name="fake")


def answered(pair, arguments="", **given):
    engine = OpenAIEndpoint(f"{COMMAND} {arguments}", plain_body={"speculative": False}, **given)
    running = engine.start(pair)
    try:
        prompt = pair.tokenizer(PROMPT).input_ids
        return [running.answer(engine, prompt, 8, frozenset()) for _ in range(2)]
    finally:
        running.close()


def test_steps_without_a_draft_count_as_steps(pair) -> None:
    """Of eight tokens four were accepted in two steps, so two more steps had no draft."""
    answer, _ = answered(pair, "--summary")
    assert (answer.steps, answer.accepted_drafts, answer.drafted_nodes) == (4, 4, 6)


def test_an_end_token_without_text_is_no_accepted_draft(pair, monkeypatch) -> None:
    """vLLM without speculation sends the token that ends an answer alone, and with no text."""
    sent = Streamed("abc", [0.1, 0.2, 0.3], "a", "stop", tokens=4, token_ids=[5, 6, 7, 2])
    monkeypatch.setattr(http_engines, "complete", lambda *given: sent)
    monkeypatch.setattr(http_engines, "model_of", lambda *given: "fake")
    engine = OpenAIEndpoint(url="http://127.0.0.1:9", plain_url="http://127.0.0.1:8", model="fake")
    answer = engine.start(pair).answer(engine, [1, 2], 8, frozenset({2}))
    assert (answer.steps, answer.accepted_drafts) == (4, 0)


@pytest.mark.slow
def test_a_server_that_a_command_starts_answers(pair) -> None:
    for answer in answered(pair):
        assert pair.tokenizer.decode(answer.token_ids) == fake_server.text_of(PROMPT, 8)
        assert (answer.finish_reason, answer.decode_tokens, answer.steps) == ("length", 7, 8)
        assert answer.decode_seconds >= 0
        assert answer.prefill_seconds > 0


@pytest.mark.parametrize("is_fast", [True, False])
def test_tokens_of_the_first_piece_are_counted_with_any_tokenizer(is_fast):
    own = tokenizer()
    words = SimpleNamespace(is_fast=is_fast)
    endpoint = SimpleNamespace(_tokenizer=lambda text, **given: own(text, **given))
    endpoint._tokenizer.is_fast = words.is_fast
    assert http_engines._Endpoint._tokens_within(endpoint, "ab c", "ab cd") == 3


def test_a_request_is_sent_again_if_the_server_closes_the_idle_connection():
    heard = []

    def serve(listener):
        while len(heard) < 3:
            with listener.accept()[0] as connection:
                while request := connection.recv(4096):
                    heard.append(request)
                    if len(heard) == 2:  # the end of the first connection
                        break
                    connection.sendall(ANSWER)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        Thread(target=serve, args=(listener,), daemon=True).start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        assert [model_of(url, None, 5) for _ in range(2)] == ["fake", "fake"]
    assert len(heard) == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--fault crash --after 1", "the server exited with status 3 .*crashed on purpose.*connection failed"),
        ("--fault hang", "no complete answer within"),
        ("--fault error", "status 500: .*out of memory"),
        ("--fault truncate", r"ended early, after 3 characters and without a finish_reason and \[DONE\]"),
        ("--fault no-done", r"ended early, after 8 characters and without \[DONE\]"),
        ("--fault no-finish", "ended early, after 8 characters and without a finish_reason$"),
        ("--usage 4", "usage.completion_tokens must be the number of new tokens, got 4 for 8 pieces"),
        ("--fault garbage", "must send JSON"),
        ("--fault no-start", r"before \S*python\S* was healthy, it exited with status 1 .*unknown flag --speculate"),
        ("--fault deaf", "was not healthy at http.*/health within"),
        ("--fault no-model", "lists no model: set model to"),
        ("", "lists the models fake, but model is 'fakes'; did you mean 'fake'"),
    ],
)
@pytest.mark.variants(1)
def test_every_failure_is_a_sentence(arguments, message, pair) -> None:
    seconds, model = 1.5 if "deaf" in arguments else 30, None if arguments else "fakes"
    with pytest.raises(EngineError, match=message):
        answered(pair, arguments, start_seconds=seconds, answer_seconds=1, model=model)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "exactly one of command and url"),
        ({"command": "serve {port}", "url": "http://x"}, "exactly one of command and url"),
        ({"command": "serve"}, r"must contain \{port\}"),
        ({"command": "serve {port}", "plain_url": "http://x"}, "plain_url needs url"),
        ({"url": "http://x", "plain_command": "serve {port}"}, "plain_command needs command"),
        ({"command": "serve {port}"}, "plain_command, plain_url or plain_body must be set"),
        (
            {"command": "serve {port}", "plain_body": {}, "settings": {"k": 4}},
            "command must contain {k}, which settings give",
        ),
        (
            {"command": "serve {port}", "plain_command": "serve {port}"},
            "plain_command must be another command, without speculation",
        ),
        (
            {"command": "serve {port} {token}", "plain_body": {}, "settings": {"tokens": 4}},
            r"contains \{token\}, but there is no value for 'token'; did you mean 'tokens'",
        ),
        ({"command": "a {port}", "plain_command": "b {port} {k}"}, r"plain_command contains \{k\}, but there is no"),
        ({"command": "a {port} '", "plain_body": {}}, "command cannot be split into words .No closing quotation"),
        ({"url": "http://a/v1/chat/completions", "plain_body": {}}, "url must be a server's address, without the path"),
        ({"url": "http://a", "plain_body": {"temperature": 1}}, "plain_body must leave temperature out, which specexp"),
        ({"url": "http://a", "body": {"k": 0}, "plain_body": {"k": 0}}, "plain_body must turn speculation off, but it"),
    ],
)
def test_wrong_arguments_are_refused_by_the_constructor(given, message) -> None:
    with pytest.raises(ValueError, match=message):
        OpenAIEndpoint(**given)


def test_a_missing_program_is_a_sentence(pair) -> None:
    engine = OpenAIEndpoint("no-such-program {port}", plain_body={"drafts": 0})
    assert engine.lacks().endswith("engine.init_args.command must begin with a program, got 'no-such-program'")
    with pytest.raises(EngineError, match="no-such-program cannot be started"):
        engine.start(pair)


def test_values_are_one_word_each_and_no_shell_reads_them() -> None:
    words = filled("serve --config '{{\"k\": {k}}}' --name {name}", {"k": 4, "name": "a b; rm -rf $HOME"})
    assert words == ["serve", "--config", '{"k": 4}', "--name", "a b; rm -rf $HOME"]


def test_an_answer_is_measured_while_other_requests_go_on(pair, tmp_path) -> None:
    answers = answered(pair, f"--log {tmp_path / 'log'}", concurrency=3)
    assert {pair.tokenizer.decode(one.token_ids) for one in answers} == {fake_server.text_of(PROMPT, 8)}
    lengths, whole = (
        [int(line) for line in (tmp_path / "log").read_text().split()],
        pair.tokenizer(PROMPT).input_ids,
    )
    assert lengths.count(len(PROMPT)) == 2
    assert {len(pair.tokenizer.decode(whole[:-less])) for less in (1, 2)} <= set(lengths)


def test_settings_in_the_command_alone_need_a_restart() -> None:
    given = (({"k": 1}, {"n": 1}), ({"k": 1}, {"n": 2}), ({"k": 2}, {"n": 1}))
    first, same, other = (
        OpenAIEndpoint("serve {port} {k}", plain_body={"n": 0}, settings=settings, body=body).restart_key
        for settings, body in given
    )
    assert first == same != other


@pytest.mark.variants(1)
@pytest.mark.parametrize("ended_by", [signal.SIGKILL, signal.SIGINT])
def test_no_process_outlives_its_starter(ended_by, tmp_path) -> None:
    pids = tmp_path / "pids"
    program = textwrap.dedent(f"""
        import signal, time
        from specexp.engines.server import StartedServer, free_port
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a test run in the background ignores it
        port = free_port()
        server = StartedServer([{sys.executable!r}, {fake_server.__file__!r}, str(port), "--child", {str(pids)!r}],
                        f"http://127.0.0.1:{{port}}", 60)
        print("up", flush=True)
        time.sleep(600)
    """)
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout.readline() == "up\n"
        server, child = map(int, pids.read_text().split())
        assert is_alive(server)
        assert is_alive(child)
        starter.send_signal(ended_by)
    wait_for(lambda: not is_alive(server) and not is_alive(child), 20, "a process was left behind")


def test_the_time_of_the_first_token_is_its_arrival_or_that_of_the_servers_clock() -> None:
    assert Streamed(times=[0.5, 0.75, 1.5]).split(3, 1) == (0.5, 1.0)
    late = Streamed(times=[1.4375, 1.4375, 1.5], generation_seconds=0.5)  # the client woke up late
    assert late.split(3, 2) == (1.0, 0.5)
    assert Streamed(times=[0.25, 0.5], generation_seconds=0.75).split(2, 1) == (0.0, 0.5)


@pytest.mark.parametrize("piece", [1, 2, 5, 7])
def test_the_seconds_of_a_token_do_not_depend_on_the_size_of_the_pieces(piece) -> None:
    """The prompt takes 16 s and each of 16 tokens 1 s. A piece arrives with its last token."""
    ends = [*range(piece, 16, piece), 16]
    prefill, decode = Streamed(times=[15.0 + end for end in ends]).split(16, piece)
    assert (prefill, decode) == pytest.approx((16, 15))


def test_an_answer_in_one_piece_has_no_decoding_time(pair) -> None:
    for answer in answered(pair, "--pieces 8"):
        assert (answer.decode_seconds, answer.decode_tokens, answer.steps) == (0, 0, 1)


@pytest.mark.variants(1)
@pytest.mark.parametrize(
    ("arguments", "decoded"), [("--pieces 2", 7), ("--usage 12", 11), ("--usage 0", 7), ("--fault no-usage", 7)]
)
def test_tokens_are_counted_by_the_server_or_else_by_the_tokenizer(arguments, decoded, pair) -> None:
    for answer in answered(pair, arguments):
        assert answer.decode_tokens == decoded
        assert pair.tokenizer.decode(answer.token_ids) == fake_server.text_of(PROMPT, 8)


@pytest.mark.parametrize(
    ("delta", "text"),
    [
        ({"reasoning": "think ", "content": "answer"}, "think answer"),
        ({"reasoning": "think ", "reasoning_content": "think ", "content": None}, "think "),
        ({"content": "answer"}, "answer"),
    ],
)
def test_a_piece_may_hold_reasoning_and_content(delta, text) -> None:
    found = Streamed()
    openai_client._take(found, {"choices": [{"index": 0, "delta": delta}]}, 0.5)
    assert (found.text, found.first, found.times) == (text, text, [0.5])


@pytest.mark.parametrize(
    ("name", "help_text"),
    [("SIGSEGV", "another build .*--no-repack"), ("SIGILL", "instructions that this processor lacks")],
)
def test_a_server_that_a_signal_ends_is_named_with_what_helps(name, help_text) -> None:
    code = f"import os, signal; print('loading', flush=True); os.kill(os.getpid(), signal.{name})"
    with pytest.raises(EngineError, match=rf"healthy, it was ended by {name} \(loading\); .*{help_text}"):
        StartedServer([sys.executable, "-c", code], "http://127.0.0.1:9", 30)


POLLING = """
import http.server, sys, threading, time

def poll(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path.startswith("/poll/"):
            threading.Thread(target=poll, args=(float(self.path[6:]),), daemon=True).start()
        self.send_response(200)
        self.end_headers()

http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def test_a_server_rests_when_it_has_stopped_polling_or_after_three_seconds() -> None:
    port = free_port()
    server = StartedServer([sys.executable, "-c", POLLING, str(port)], f"http://127.0.0.1:{port}", 30)
    try:
        for polls, rests in ((0.8, 0.7), (20, 2.9)):
            openai_client.fetch(f"{server.url}/poll/{polls}", 5)
            started = time.monotonic()
            server.rest()
            assert rests < time.monotonic() - started < rests + 2
    finally:
        server.close()


@pytest.mark.parametrize(
    ("output", "error"),
    [
        ("ValueError: first\nKeyError: 'last'\nshutting down", "KeyError: 'last'"),
        ("(A pid=1) a.ValidationError: 1 validation error for B\n(A pid=1)   Value error, c must be d",
         "ValidationError: 1 validation error for B (A pid=1) Value error, c must be d"),
        ("KeyError: 1\nWARNING falling back. Exception: none\nEngineDeadError: EngineCore encountered an issue.",
         "KeyError: 1"),
        ("ERROR Worker proc Worker-0 died unexpectedly (exit code: None)\nRuntimeError: cancelled",
         "Worker proc Worker-0 died unexpectedly"),
        ("no model", "no model"),
    ],
)  # fmt: skip
def test_the_last_error_in_a_servers_output_is_named(output, error) -> None:
    code = f"print({output!r}, flush=True); raise SystemExit(1)"
    with pytest.raises(EngineError) as found:
        StartedServer([sys.executable, "-c", code], "http://127.0.0.1:9", 30)
    assert str(found.value).endswith(f"exited with status 1 ({error})")


class TestLlamaCppServer:
    """By a program that stands in for ``llama-server`` and writes down its arguments."""

    @pytest.fixture
    def pair(self):
        return ModelPair(SimpleNamespace(dtype=torch.float32), None, tokenizer(), "fake")

    @pytest.fixture
    def program(self, tmp_path) -> Path:
        file = tmp_path / "llama-server"
        file.write_text(
            f"#!{sys.executable}\nimport os, sys\n"
            f"open({str(tmp_path / 'words')!r}, 'w').write(' '.join(sys.argv[1:]))\n"
            "port = sys.argv[sys.argv.index('--port') + 1]\n"
            f"os.execv({sys.executable!r}, [{sys.executable!r}, {fake_server.__file__!r}, port, '--ends'])\n"
        )
        file.chmod(0o755)
        return file

    def test_it_is_started_with_its_flags_and_answers(self, program, pair, tmp_path) -> None:
        settings = LlamaCppSettings("draft-simple", "draft.gguf", spec_draft_n_max=5, spec_draft_p_min=0.5)
        engine = LlamaCppServer(settings, "target.gguf", str(program), threads=2)
        running = engine.start(pair)
        try:
            prompt = pair.tokenizer(PROMPT).input_ids
            answer = running.answer(engine, prompt, 8, frozenset({pair.tokenizer.eos_token_id}))
        finally:
            running.close()
        tokens = [ord(letter) for letter in fake_server.text_of(prompt, 8)]
        assert answer.token_ids == [*tokens, pair.tokenizer.eos_token_id]
        assert answer.finish_reason == "eos"
        assert (answer.drafted_nodes, answer.accepted_drafts, answer.steps) == (6, 4, 5)
        assert answer.memory_bytes > 2**20
        words = (tmp_path / "words").read_text()
        assert words.startswith("--model target.gguf --host 127.0.0.1 --port ")
        assert words.endswith(
            " --threads 2 --parallel 1 --cache-type-k f32 --cache-type-v f32 --spec-draft-type-k f32 "
            "--spec-draft-type-v f32 --spec-type draft-simple --spec-draft-model draft.gguf --spec-draft-n-max 5 "
            "--spec-draft-p-min 0.5"
        )
        assert engine.plain().deployed_settings() == {"spec_type": "none"}
        assert engine.plain().restart_key != engine.restart_key

    def test_a_file_of_another_model_is_refused(self, pair, program, tmp_path, monkeypatch) -> None:
        (tmp_path / "other.gguf").write_bytes(b"GGUF")
        tokens = [f"token {number}" for number in range(9)]
        monkeypatch.setattr(http_engines, "gguf_metadata", lambda source: ({"tokenizer.ggml.tokens": tokens}, ()))
        engine = LlamaCppServer(target=str(tmp_path / "other.gguf"), program=str(program))
        with pytest.raises(EngineError, match=r"target must be a file of pair.target's model, fake, .* 9 of its 9 tok"):
            engine.start(pair)

    def test_a_file_that_is_not_of_the_format_is_lacking(self, program, tmp_path) -> None:
        (tmp_path / "text.gguf").write_text("hello")
        file = str(tmp_path / "text.gguf")
        lacks = LlamaCppServer(target=file, program=str(program)).lacks()
        assert lacks == f"cannot load a file, since model {file!r} is not a GGUF file: it does not begin with GGUF"

    @pytest.mark.parametrize("amx", [True, False])
    def test_the_program_is_kept_from_repacking_on_processors_with_amx(self, amx, program, pair, monkeypatch):
        monkeypatch.setattr(http_engines, "has_amx", lambda: amx)
        words = LlamaCppServer(target="target.gguf", program=str(program)).words(1, pair)
        assert words[0] == str(program)
        assert ("--no-repack" in words) == amx

    def test_the_wheel_is_used_where_there_is_no_program(self, program, pair, monkeypatch) -> None:
        monkeypatch.setattr(http_engines, "has_amx", lambda: True)
        monkeypatch.setenv("PATH", "")
        monkeypatch.setattr(http_engines, "find_spec", lambda name: name)
        words = LlamaCppServer(target="target.gguf").words(1, pair)
        assert words[:5] == [sys.executable, "-m", "specexp.engines.llama_wheel", "--model", "target.gguf"]
        assert "--no-repack" not in words  # the wheel is built without AMX
        monkeypatch.setattr(http_engines, "find_spec", lambda name: None)
        with pytest.raises(EngineError, match=r"no program llama-server on the path .*pip install 'specexp\[llama"):
            LlamaCppServer(target="target.gguf").words(1, pair)
        monkeypatch.setenv("PATH", str(program.parent))
        assert LlamaCppServer(target="target.gguf").words(1, pair)[0] == "llama-server"

    def test_every_flag_has_its_field_in_the_wheel(self, pair) -> None:
        xllamacpp = pytest.importorskip("xllamacpp", reason="pip install 'specexp[llama-server]'")
        flags = [one.name.replace("_", "-") for one in fields(LlamaCppSettings)]
        flags += [word[2:] for word in LlamaCppServer(target="a.gguf", program="x").words(1, pair) if word[:2] == "--"]
        made = xllamacpp.CommonParams()
        for flag in {*flags, "ctx-size", "spec-draft-type-k", "spec-draft-type-v"} - {"no-repack"}:
            attrgetter(llama_wheel.field_of(flag))(made)

    def test_a_target_that_is_no_gguf_file_is_refused(self, pair) -> None:
        with pytest.raises(EngineError, match="LlamaCppServer: target must be a GGUF file, got 'fake'"):
            LlamaCppServer().start(pair)
