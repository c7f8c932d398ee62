"""The real ``openai`` package against a server: everything that its users rely on."""

import json
from concurrent.futures import ThreadPoolExecutor

import httpx
import openai
import pytest
import torch
from helpers.running_server import running
from helpers.waiting import wait_for

from specexp import Decoder
from specexp.verifiers import KeyedSampling

from .conftest import generated, serve

PROMPT = "The quick brown fox"
CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Who are you?"}]
ACCESS = "specexp.deploy.server.access"


def complete(client, **fields):
    fields = {"model": "tiny", "prompt": PROMPT, "max_tokens": 12, "temperature": 0} | fields
    return client.completions.create(**fields)


def text_of(client, **fields):
    return complete(client, **fields).choices[0].text


def chat(client, **fields):
    fields = {"model": "tiny", "messages": CHAT, "temperature": 0} | fields
    return client.chat.completions.create(**fields)


def test_a_completion_equals_plain_generate(client, tiny):
    answer = complete(client, max_tokens=40)
    assert answer.choices[0].text == generated(tiny, PROMPT, 40)[1]
    assert answer.choices[0].finish_reason in ("length", "stop")
    assert (answer.object, answer.model, answer.usage.prompt_tokens) == ("text_completion", "tiny", len(PROMPT))
    assert 0 < answer.usage.completion_tokens <= 40


def test_a_chat_without_a_template_joins_its_texts_by_blank_lines(client, tiny):
    parts = [{"type": "text", "text": "Who "}, {"type": "text", "text": "are you?"}]
    answer = chat(client, messages=[CHAT[0], {"role": "user", "content": parts}], max_tokens=20)
    assert answer.choices[0].message.content == generated(tiny, "Be brief.\n\nWho are you?", 20)[1]
    assert (answer.choices[0].message.role, answer.object) == ("assistant", "chat.completion")


def test_a_chat_is_written_with_the_template_if_there_is_one(served, client, tiny, monkeypatch):
    template = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}[assistant]"
    monkeypatch.setattr(tiny[1], "chat_template", template)
    expected = generated(tiny, "[system]Be brief.[user]Who are you?[assistant]", 20)[1]
    assert chat(client, max_tokens=20).choices[0].message.content == expected


@pytest.mark.parametrize("temperature", [0, 1])
def test_a_stream_is_the_answer_in_pieces(client, temperature):
    fields = {"max_tokens": 30, "temperature": temperature, "seed": 5}
    whole = complete(client, **fields).choices[0]
    pieces = list(complete(client, stream=True, **fields))
    assert "".join(piece.choices[0].text for piece in pieces) == whole.text
    reasons = [piece.choices[0].finish_reason for piece in pieces]
    assert reasons == [None] * (len(pieces) - 1) + [whole.finish_reason]
    assert len({piece.id for piece in pieces}) == 1


def test_a_streamed_chat_begins_with_its_role_and_may_end_with_its_counts(client):
    *pieces, last = chat(client, max_tokens=8, stream=True, stream_options={"include_usage": True})
    assert pieces[0].choices[0].delta.role == "assistant"
    assert all(piece.usage is None for piece in pieces)
    assert (last.choices, last.usage.completion_tokens <= 8) == ([], True)
    assert last.model_extra["metrics"]["speculative_decoding"]["num_spec_tokens"] == 4


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_ends_the_text_in_front_of_it(client, stream):
    text = text_of(client, max_tokens=30)
    stop = next(text[at : at + 2] for at in range(4, 28) if text.find(text[at : at + 2]) == at)
    answer = complete(client, max_tokens=30, stop=[stop, "never there"], stream=stream)
    choices = [piece.choices[0] for piece in answer] if stream else [answer.choices[0]]
    assert "".join(choice.text for choice in choices) == text[: text.index(stop)]
    assert choices[-1].finish_reason == "stop"


def test_several_outputs_are_different_samples_and_the_first_is_that_of_a_single_request(client):
    fields = {"temperature": 1, "seed": 3, "max_tokens": 16}
    three = complete(client, n=3, **fields)
    assert [choice.index for choice in three.choices] == [0, 1, 2]
    assert len({choice.text for choice in three.choices}) == 3
    assert three.choices[0].text == text_of(client, **fields)
    assert three.model_extra["metrics"] is None


def test_prompts_may_be_several_and_token_ids(client, tiny):
    answer = complete(client, prompt=[tiny[1](one).input_ids for one in (PROMPT, "other")])
    texts = [generated(tiny, one, 12)[1] for one in (PROMPT, "other")]
    assert [choice.text for choice in answer.choices] == texts
    assert answer.usage.prompt_tokens == len(PROMPT) + 5


def test_a_seed_repeats_an_answer_and_a_drawn_one_is_returned(client):
    first = complete(client, temperature=1)
    text, seed = first.choices[0].text, first.model_extra["seed"]
    assert text_of(client, temperature=1, seed=seed) == text
    assert text_of(client, temperature=1, seed=1 + seed) != text


@pytest.mark.parametrize("sequence", [5, "HumanEval/3#0"])
def test_seed_and_sequence_give_the_text_of_a_decoder(client, tiny, sequence):
    model, tokenizer = tiny
    decoder, ids = Decoder(model, verifier=KeyedSampling(0.7)), tokenizer(PROMPT).input_ids
    expected = decoder.generate(ids, max_new_tokens=12, seed=7, sequence=sequence).token_ids
    text = text_of(client, temperature=0.7, seed=7, extra_body={"sequence": sequence})
    assert text == tokenizer.decode(expected, skip_special_tokens=True)
    assert text != text_of(client, temperature=0.7, seed=7)


@pytest.mark.parametrize("most", [False, 0, 1, 2])
def test_a_request_limits_its_drafted_tokens_and_gets_the_same_text(client, most):
    fields = {"temperature": 0.8, "seed": 11, "max_tokens": 40}
    limited, free = (complete(client, extra_body={"speculative": one}, **fields) for one in (most, True))
    assert limited.choices[0].text == free.choices[0].text
    counts, more = (answer.model_extra["metrics"]["speculative_decoding"] for answer in (limited, free))
    assert max(map(int, counts["acceptance_histogram_by_draft_length"]), default=0) == most
    assert (counts["num_spec_steps"] > 0) == (counts["num_draft_tokens"] > 0) == bool(most)
    assert more["num_draft_tokens"] > 0


def test_figures_of_drafting_have_vllms_schema(client):
    figures = complete(client, max_tokens=40).model_extra["metrics"]["speculative_decoding"]
    assert sorted(figures) == [
        "acceptance_histogram", "acceptance_histogram_by_draft_length", "draft_acceptance_rate",
        "mean_acceptance_length", "num_accepted_draft_tokens", "num_draft_tokens", "num_spec_steps", "num_spec_tokens",
    ]  # fmt: skip
    histogram, steps = figures["acceptance_histogram"], figures["num_spec_steps"]
    accepted = sum(number * count for number, count in enumerate(histogram))
    assert (sum(histogram), accepted) == (steps, figures["num_accepted_draft_tokens"])
    assert figures["mean_acceptance_length"] == pytest.approx(1 + accepted / steps)
    assert sum(map(sum, figures["acceptance_histogram_by_draft_length"].values())) == steps


def test_log_probabilities_are_the_targets(client, tiny):
    model, tokenizer = tiny
    found = complete(client, logprobs=2, max_tokens=6).choices[0].logprobs
    ids = tokenizer(PROMPT).input_ids
    with torch.inference_mode():
        for token_log_prob, best in zip(found.token_logprobs, found.top_logprobs, strict=True):
            log_probs = model(torch.tensor([ids])).logits[0, -1].log_softmax(-1)
            values = log_probs.topk(2).values.tolist()
            assert token_log_prob == pytest.approx(values[0], abs=1e-4)  # greedy: its best token
            assert sorted(best.values(), reverse=True) == pytest.approx(values, abs=1e-4)
            ids.append(int(log_probs.argmax()))


def test_a_chat_lists_log_probabilities_token_by_token(client):
    answer = chat(client, max_tokens=5, logprobs=True, top_logprobs=3)
    found = answer.choices[0].logprobs.content
    assert len(found) == answer.usage.completion_tokens
    assert all(one.top_logprobs[0].logprob == one.logprob and len(one.top_logprobs) == 3 for one in found)
    pieces = [piece.choices[0].logprobs for piece in chat(client, max_tokens=5, logprobs=True, stream=True)]
    streamed = [one.logprob for piece in pieces if piece for one in piece.content]
    assert streamed == pytest.approx([one.logprob for one in found], abs=1e-5)


def test_concurrent_requests_get_the_same_answers_as_single_ones(client):
    def ask(number):
        fields = {"temperature": number % 2, "seed": number, "max_tokens": 10 + number}
        return text_of(client, prompt=f"prompt {number}", **fields)

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, range(8))) == [ask(number) for number in range(8)]


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_disconnects_frees_its_lane(served, address, stream):
    server, _ = served
    cancelled = server.figures.cancelled._value.get()
    body = {"model": "tiny", "prompt": "a", "max_tokens": 180, "temperature": 1, "seed": 1, "stream": stream}
    slow = server.thread._decoding.step

    def step():
        torch.randn(1500, 1500).softmax(-1)  # a slow model
        return slow()

    server.thread._decoding.step = step
    try:
        if stream:
            with httpx.stream("POST", f"{address}/v1/completions", json=body, timeout=30) as answer:
                next(answer.iter_lines())
        else:
            with pytest.raises(httpx.ReadTimeout):
                httpx.post(f"{address}/v1/completions", json=body, timeout=0.15)
        wait_for(lambda: server.thread.running == 0, 10)
    finally:
        del server.thread._decoding.step
    wait_for(lambda: server.figures.cancelled._value.get() == cancelled + 1, 10)


CONTENT = [{"role": "user", "content": [{"type": "image_url"}]}]
REFUSED = [
    ({"model": "tinny"}, 404, "did you mean 'tiny'?"),
    ({"temperature": 3}, 400, "temperature must be <= 2, got 3"),
    ({"temperature": -0.001}, 400, "temperature must be >= 0, got -0.001"),
    ({"n": 17}, 400, "the number of prompts times n must be at most 16, got 17"),
    ({"prompt": "a" * 500}, 400, "the model's context holds 192"),
    ({"prompt": [999]}, 400, "holds token id 999"),
    ({"prompt": ""}, 400, "the prompt is empty"),
    ({"prompt": []}, 400, "prompt must not be empty"),
    ({"prompt": ["a", 3]}, 400, "prompt.1 must be a text or a list, got 3"),
    (
        {"n": 2, "seed": 0, "extra_body": {"sequence": "a"}},
        400,
        "sequence is only for requests of one output, and this request has 2",
    ),
    ({"extra_body": {"temprature": 1}}, 400, "did you mean 'temperature'?"),
    ({"extra_body": {"response_format": {"type": "xml"}}}, 400, "response_format"),
    ({"frequency_penalty": 2.5}, 400, "frequency_penalty must be <= 2, got 2.5"),
    ({"logit_bias": {"999": 1}}, 400, "logit_bias: the model's vocabulary has ids 0 to 256, got 999"),
    ({"logit_bias": {"a": 1}}, 400, "logit_bias.a must be an integer, got 'a'"),
    ({"extra_body": {"stop_token_ids": [999]}}, 400, "stop_token_ids: the model's vocabulary has ids"),
    ({"max_tokens": 193}, 400, "max_tokens must be at most the model's context length, which is 192 tokens, got 193"),
    (
        {"messages": CHAT, "max_completion_tokens": 193},
        400,
        "max_completion_tokens must",
    ),
    ({"extra_body": {"min_tokens": 13}}, 400, "min_tokens must be at most max_tokens, which is 12, got 13"),
    ({"stop": ["<|end|>\n"]}, 400, "texts do not show the special token '<|end|>': give it alone"),
    ({"stop": ["a"] * 17}, 400, "stop: List should have at most 16 items"),
    ({"logprobs": 21}, 400, "logprobs must be <= 20"),
    ({"stream": True, "stream_options": {"chunks": True}}, 400, "include_usage"),
    ({"messages": [{"role": "wizard", "content": "x"}]}, 400, "messages.0.role must be 'developer'"),
    ({"messages": [{"role": "user"}]}, 400, "messages.0.content is missing"),
    ({"messages": CONTENT}, 400, "messages.0.content.0.type must be 'text', 'input_text' or"),
]


@pytest.mark.parametrize(("fields", "status", "words"), REFUSED)
def test_an_impossible_request_is_refused_in_a_sentence(client, fields, status, words):
    with pytest.raises(openai.APIStatusError) as refused:
        (chat if "messages" in fields else complete)(client, **fields)
    assert refused.value.status_code == status
    assert words in refused.value.body["message"]


def test_an_output_ends_at_the_end_of_the_context_and_neutral_values_of_other_fields_are_accepted(client):
    neutral = {"frequency_penalty": 0, "echo": False, "best_of": 1, "user": "me", "logit_bias": {}}
    answer = complete(client, prompt=[5] * 180, max_tokens=192, **neutral)
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.total_tokens <= 192


def test_models_health_and_metrics_are_served(client, address):
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").id == "tiny"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")
    about = {"status": "ok", "runtime": "eager", "dtype": "float32"}
    assert httpx.get(f"{address}/health").json() == about
    complete(client)
    text = httpx.get(f"{address}/metrics").text
    for line in ("lanes_running 0.0", 'requests_total{status="200"}', "first_token_seconds_count"):
        assert f"specexp_{line}" in text


def test_a_wrong_key_is_refused(tiny):
    with running(serve(tiny, key="secret")) as address:
        for key, status in (("secret", 200), ("other", 401), ("sécret", 401)):
            headers = {"Authorization": f"Bearer {key}".encode()}
            assert httpx.get(f"{address}/v1/models", headers=headers).status_code == status
        assert httpx.post(f"{address}/v1/completions", json={}).status_code == 401
        assert httpx.get(f"{address}/health").status_code == 200


def test_a_full_queue_names_the_time_to_retry(tiny):
    with running(serve(tiny, lanes=1, waiting=1)) as address:
        body = {"model": "tiny", "prompt": "a", "n": 3}
        answer = httpx.post(f"{address}/v1/completions", json=body)
        assert answer.status_code == 503
        assert int(answer.headers["Retry-After"]) >= 1
        assert httpx.post(f"{address}/v1/completions", json={**body, "n": 2}).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_a_deadline_ends_a_request(served, client, stream):
    fields = {"max_tokens": 150, "extra_body": {"deadline": 1e-6}, "stream": stream}
    with pytest.raises(openai.APIError, match="not complete within") as refused:
        list(complete(client, **fields))
    assert stream or refused.value.status_code == 504
    wait_for(lambda: served[0].thread.running == 0, 10)


def test_the_log_has_a_line_of_figures_for_every_request_and_no_prompt(client, caplog):
    with caplog.at_level("INFO", ACCESS):
        complete(client, prompt="a secret", max_tokens=5)
        with pytest.raises(openai.BadRequestError):
            complete(client, prompt="a secret", n=0)
    answered, refused = (json.loads(one.message) for one in caplog.records if one.name == ACCESS)
    assert (answered["status"], refused["status"]) == (200, 400)
    assert (answered["prompt_tokens"], answered["new_tokens"], answered["finish"]) == (8, 5, "length")
    assert "secret" not in caplog.text


def test_unknown_routes_are_named(address):
    answer = httpx.post(f"{address}/v1/completion", json={})
    sentence = "the path '/v1/completion' does not exist; did you mean '/v1/completions'?"
    assert (answer.status_code, answer.json()["error"]["message"]) == (404, sentence)
    assert httpx.get(f"{address}/v1/completions").status_code == 405
