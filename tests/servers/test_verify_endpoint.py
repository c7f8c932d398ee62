"""``python -m specexp.verify --endpoint``: mistakes, near ties, and answers that cannot be judged."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
from helpers import drafting_server

from specexp.bench.equality import near_tie_of
from specexp.commands.verify import main
from specexp.engines.openai_client import Streamed
from specexp.servers.verify import EndpointReport, compare_endpoints

OFF = '{"speculative": false}'


def answer(text, logprobs=None):
    pieces = list(text) if logprobs else []
    counted = {"finish_reason": "length", "tokens": len(text)}
    return Streamed(text, [0.0], **counted, logprobs=logprobs or [], pieces=pieces)


def best(*alternatives):
    """Log-probabilities of ``a``, then of these, then of ``c``."""
    return [{"a": -0.1}, *alternatives, {"c": -0.1}]


CLOSE, FAR = best({"b": -0.7, "x": -0.75}), best({"b": -0.1, "x": -3.0})
MISSING = best({"b": -0.1, "y": -2.0})
"""The other token is at least as far as the last of these."""
LONG = Streamed(
    "abcd",
    [0.0],
    finish_reason="length",
    tokens=3,
    logprobs=[{"a": -0.1}, {"bc": -0.1, "x": -3.0}, {"d": -0.1}],
    pieces=["a", "bc", "d"],
)


@pytest.mark.parametrize(
    ("on", "off", "verdict", "gap", "exit_code"),
    [
        (answer("abc"), answer("abc"), "equal", None, 0),
        (answer("axc", CLOSE), answer("abc", CLOSE), "near tie", 0.05, 0),
        (answer("axc", FAR), answer("abc", FAR), "wrong", 2.9, 1),
        (answer("axc", MISSING), answer("abc", MISSING), "wrong", 1.9, 1),
        (answer("axcd"), LONG, "wrong", 2.9, 1),  # only plain decoding has log-probabilities
        (answer("abxd"), LONG, "wrong", 2.9, 1),  # within a token, and no other begins so
        (answer("a"), answer("ab", MISSING[:2]), "cannot tell", None, 3),  # the end token has no text
        (answer("axc"), answer("abc"), "cannot tell", None, 3),
        (answer("axc"), answer("abc", best({"b": -0.7, "x": -0.2})), "cannot tell", -0.5, 3),  # another model
    ],
)
def test_logprobs_tell_a_near_tie_from_a_mistake(on, off, verdict, gap, exit_code) -> None:
    found = list(compare_endpoints(["p"], lambda prompt: on, lambda prompt: off, 0.125))
    assert (found[0].verdict, EndpointReport(found).exit_code) == (verdict, exit_code)
    assert found[0].gap == (None if gap is None else pytest.approx(gap))


def test_plain_decoding_that_does_not_repeat_itself_proves_nothing() -> None:
    answers = iter([answer("abc"), answer("abd")])
    (found,) = compare_endpoints(["p"], lambda prompt: answer("axc"), lambda prompt: next(answers), 0.125)
    assert found.verdict == "cannot tell"
    assert found.why == "plain decoding does not reproduce its own answer"


def test_a_gap_that_a_study_of_an_engine_calls_a_near_tie_is_one_between_servers(capsys) -> None:
    with pytest.raises(SystemExit):
        main(["--endpoint", "http://x", "--help"])
    assert f"the default, {near_tie_of('bfloat16', 16.0):g}," in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("fields", [(), ("--timings",), ("--emoji",), ("--emoji", "--timings")])
@pytest.mark.slow
def test_a_wrong_token_every_200_is_caught_within_50_prompts(fields, serve, tmp_path, capsys) -> None:
    url = serve("--wrong", "200", "--logprobs", *fields)
    arguments = ["--endpoint", url, "--plain-body", OFF, "--max-tokens", "8"]
    assert main([*arguments, "--output", str(tmp_path)]) == 1
    shown = capsys.readouterr().out
    assert shown.startswith("Each of 50 prompts is answered twice, with at most 8 tokens.\nprompt ")
    assert "wrong, plain decoding prefers its own token by 8.99 in log-probability, according to the ser" in shown
    assert shown.endswith(f" or attach {tmp_path}/endpoint.md to an issue of the server\n")
    report = Path(tmp_path, "endpoint.md").read_text()
    assert report.startswith("# Speculation on against off, temperature 0: 50 prompts, 400 tokens\n")
    assert "- on: `'" in report


def test_a_healthy_server_is_never_blamed(serve, tmp_path, capsys) -> None:
    url = serve("--logprobs")
    arguments = ["--endpoint", f"{url}/v1/", "--plain-body", OFF, "--max-prompts", "3", "--max-tokens", "8"]
    for _ in range(2):
        assert main([*arguments, "--output", str(tmp_path), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["answer"] == "3 equal, 0 near tie, 0 wrong, 0 cannot tell"


@pytest.mark.slow
def test_chats_are_compared_too(serve, tmp_path) -> None:
    url = serve("--step", "0", "--fixed", "0", "--token", "0", program=drafting_server)
    arguments = ["--endpoint", url, "--plain-body", '{"speculative": 0}', "--max-prompts", "2", "--chat"]
    assert main([*arguments, "--output", str(tmp_path)]) == 0
    assert '"path": "/v1/chat/completions"' in Path(tmp_path, "endpoint.md").read_text()


def test_a_plain_server_that_drafts_is_refused(serve, tmp_path, capsys) -> None:
    fast = ("--step", "0", "--fixed", "0", "--token", "0")
    url, plain = serve("--logprobs"), serve(*fast, "--counters", "request", program=drafting_server)
    assert main(["--endpoint", url, "--plain", plain, "--output", str(tmp_path)]) == 2
    assert f"--plain must be a server without speculation, but {plain} drafted " in capsys.readouterr().err


def test_another_name_of_the_same_server_is_no_server_without_drafts(serve, tmp_path, capsys) -> None:
    url = serve("--logprobs")
    other = url.replace("127.0.0.1", "localhost")
    assert main(["--endpoint", url, "--plain", other, "--output", str(tmp_path)]) == 2
    assert "--plain must be another server of the same model" in capsys.readouterr().err


@pytest.mark.parametrize("counters", ["request", "prometheus", "iterations", "timings"])
def test_a_server_that_ignores_the_field_is_not_compared_with_itself(counters, serve, tmp_path, capsys) -> None:
    fast = ("--step", "0", "--fixed", "0", "--token", "0")
    url = serve(*fast, "--fixes-length", "--counters", counters, program=drafting_server)
    arguments = ["--endpoint", url, "--plain-body", '{"speculative": 0}', "--max-prompts", "2"]
    assert main([*arguments, "--output", str(tmp_path)]) == 2
    sentence = f"error: --plain-body must switch the speculation of {url} off, but with "
    assert capsys.readouterr().err.startswith(f'{sentence}{{"speculative": 0}} it drafted ')


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--endpoint", "{url}"], "--plain must be another server of the same model"),
        (["--endpoint", "{url}", "--plain-body", "off"], "--plain-body must be a JSON object, got 'off'"),
        (["--endpoint", "{url}", "--plain-body", "[1]"], "--plain-body must be a JSON object, got '[1]'"),
        (["--endpoint", "http://127.0.0.1:9", "--plain-body", OFF], "127.0.0.1:9/v1/models: the connection failed"),
        (["--endpoint", "{broken}", "--plain-body", OFF], "status 500"),
        (["--endpoint", "{empty}", "--plain-body", OFF], "lists no model: set --model to"),
        (["--endpoint", "{url}", "--max-tokens", "0"], "--max-tokens must be an integer >= 1, got '0'"),
        (["--endpoint", "{url}", "--plain-body", OFF, "--model", "fakes"], "did you mean 'fake'"),
    ],
)
@pytest.mark.slow
def test_an_unusable_server_is_one_sentence(arguments, sentence, serve, tmp_path, capsys) -> None:
    urls = {"{url}": [], "{broken}": ["--fault", "error"], "{empty}": ["--fault", "no-model"]}
    given = [serve(*urls[one]) if one in urls else one for one in arguments]
    assert main([*given, "--max-prompts", "1", "--output", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1


def _third(lines):
    return json.loads(lines[2].removeprefix(b"data: "))["choices"][0]["text"]


class Proxy(BaseHTTPRequestHandler):
    """Forwards requests, and swaps the third token of two concurrent greedy streams once, if they differ."""

    url = ""

    def log_message(self, *arguments) -> None: ...

    def do_GET(self) -> None:
        self._send(httpx.get(f"{self.url}{self.path}").content)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        greedy = json.loads(body)["temperature"] == 0
        lines = httpx.post(f"{self.url}{self.path}", content=body).content.split(b"\n\n")
        mine = None
        with self.server.lock:
            waits = self.server.places
            if greedy and len(waits) < 2 and all(_third(one) != _third(lines) for one, _ in waits):
                mine = threading.Event()
                waits.append((lines, mine))
                if len(waits) == 2:
                    (one, ready), (other, _) = waits
                    one[2], other[2] = other[2], one[2]
                    ready.set()
                    mine.set()
        if mine is not None:
            mine.wait(20)
        self._send(b"\n\n".join(lines))

    def _send(self, data: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture
def swapping(serve):
    """The address of a proxy that swaps two tokens, before a server."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("To", (Proxy,), {"url": serve("--logprobs")}))
    server.lock, server.places = threading.Lock(), []
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


def test_a_token_that_goes_to_another_request_is_found(swapping, tmp_path, capsys) -> None:
    arguments = ["--endpoint", swapping, "--concurrency", "3", "--max-prompts", "6", "--max-tokens", "8"]
    assert main([*arguments, "--output", str(tmp_path), "--json"]) == 1
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["answer"].startswith("4 equal, 0 near tie, 2 wrong")
    report = Path(tmp_path, "endpoint.md").read_text()
    assert report.startswith("# Requests among others against alone, temperature 0: 6 prompts, 48 tokens\n")
    assert "the lone request prefers its own token by" in report
    assert "- among others: `'" in report


def test_requests_among_others_are_answered_as_alone(serve, tmp_path, capsys) -> None:
    url = serve("--logprobs")
    arguments = ["--endpoint", url, "--concurrency", "4", "--max-prompts", "6", "--max-tokens", "8"]
    assert main([*arguments, "--output", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["answer"] == "6 equal, 0 near tie, 0 wrong, 0 cannot tell"
    assert main([*arguments, "--plain", url, "--output", str(tmp_path)]) == 2
    assert "--concurrency compares a server with itself: leave --plain" in capsys.readouterr().err


@pytest.mark.slow
def test_our_own_server_is_not_blamed(serve_ours, tmp_path) -> None:
    url = serve_ours(drafter={"class_path": "PromptLookup"}, builder={"class_path": "Chain"})
    arguments = ["--endpoint", url, "--plain-body", OFF, "--max-prompts", "4"]
    assert main([*arguments, "--max-tokens", "24", "--output", str(tmp_path)]) == 0
