"""Malformed bodies: a sentence and 4xx, never 500, and the server goes on."""

import json
from random import Random

import httpx
import pytest

ROUTES = ("/v1/completions", "/v1/chat/completions")
ODD = [
    None, True, False, 0, -1, 3, 2**31, 2**63, 10**30, 0.5, -0.0, 1e308, 1e-320, "", "a", "\0", "\u202e", "🦊",
    "x" * 300, [], [[]], [None], ["a", 1], [[1, "a"]], [3, 5], [-1], [10**9], {}, {"type": "json_object"},
    {"a": {"b": {}}}, {"include_usage": True}, {"include_usage": 1}, [{"role": "user", "content": "hi"}],
    [{"role": "user"}], [{"content": "hi"}], [{"role": "assistant", "content": "hi"}], [{"role": 3, "content": []}],
    [{"role": "user", "content": [{"type": "text"}]}], [{"role": "user", "content": {"text": "hi"}}],
]  # fmt: skip
FIELDS = (
    "model", "prompt", "messages", "max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k", "n", "stop",
    "seed", "stream", "stream_options", "logprobs", "top_logprobs", "speculative", "deadline", "response_format",
    "tools", "logit_bias", "echo", "best_of", "suffix", "user", "temprature", "",
)  # fmt: skip
RAW = [
    b"", b"{", b"null", b"[]", b"3", b'"a"', b"\xff\xfe", b'{"model": "tiny", "model": "tiny"}', b'{"prompt": NaN}',
    b'{"temperature": Infinity}', b'{"prompt": "\\ud800"}', b'{"\\ud800": 1}', b"[" * 5000, b'{"a":' * 2000,
    b'{"seed": ' + b"9" * 5000 + b"}", b'{"prompt": ' + b"[" * 30 + b"]" * 30 + b"}", b'{"model": "tiny"',
    b'{"prompt": "' + b"a" * 20000 + b'"}', b'{"temperature": 1e999}', b"\xef\xbb\xbf{}",
]  # fmt: skip


def body(random):
    """A request with some fields that are odd, missing or of another route; now and then no JSON at all."""
    if random.random() < 0.15:
        return random.choice(RAW)
    request = {"model": "tiny", "max_tokens": 2, "prompt": "a", "messages": [{"role": "user", "content": "a"}]}
    for _ in range(random.randrange(3)):
        request.pop(random.choice(("model", "prompt", "messages")), None)
    for _ in range(random.randrange(1, 4)):
        request[random.choice(FIELDS)] = random.choice(ODD)
    text = json.dumps(request).encode()
    if random.random() < 0.1:
        cut = random.randrange(len(text))
        text = text[:cut] + bytes([random.randrange(256)]) + text[cut + 1 :]
    return text


def check(address, seeds):
    with httpx.Client(base_url=address, timeout=60) as client:
        for seed in seeds:
            random = Random(seed)
            sent = body(random)
            kind = random.choice(["application/json"] * 9 + ["text/plain"])
            answer = client.post(random.choice(ROUTES), content=sent, headers={"Content-Type": kind})
            status = answer.status_code
            assert status == 200 or 400 <= status < 500, (seed, sent[:200], answer.text)
            if status != 200:
                sentence = answer.json()["error"]["message"]
                assert 10 < len(sentence) < 1000, (seed, sentence)
                assert "\n" not in sentence, (seed, sentence)
        assert client.get("/health").status_code == 200


def test_no_body_brings_the_server_down(address):
    check(address, range(200))


@pytest.mark.slow
def test_five_thousand_random_bodies_never_crash_the_server(address):
    check(address, range(1000, 6000))


def test_bodies_that_are_no_requests_or_too_large_are_refused(address):
    for raw in [*RAW, b" " * 1_000_001]:
        headers = {"Content-Type": "application/json"}
        answer = httpx.post(f"{address}/v1/completions", content=raw, headers=headers)
        assert answer.status_code == (400 if len(raw) < 1_000_000 else 413), raw[:20]
        assert answer.json()["error"]["message"]
