"""The real ``openai`` package against a server: what its users rely on."""

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

from .conftest import serve

PROMPT = "The quick brown fox"
CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Who are you?"}]


def generated(tiny, prompt, tokens):
    """What plain ``generate`` says."""
    model, tokenizer = tiny
    ids = tokenizer(prompt, return_tensors="pt").input_ids
    with torch.inference_mode():
        said = model.generate(ids, do_sample=False, max_new_tokens=tokens, pad_token_id=0)[0, ids.shape[1] :]
    return tokenizer.decode(said, skip_special_tokens=True)


def complete(client, **asked):
    asked = {"model": "tiny", "prompt": PROMPT, "max_tokens": 12, "temperature": 0} | asked
    return client.completions.create(**asked)


def test_a_completion_is_what_generate_says(client, tiny):
    answer = complete(client, max_tokens=40)
    assert answer.choices[0].text == generated(tiny, PROMPT, 40)
    assert answer.choices[0].finish_reason in ("length", "stop")
    assert answer.usage.prompt_tokens == len(PROMPT)
    assert 0 < answer.usage.completion_tokens <= 40
    assert (answer.object, answer.model) == ("text_completion", "tiny")


def test_a_chat_without_a_template_is_its_texts_with_blank_lines(client, tiny):
    answer = client.chat.completions.create(model="tiny", messages=CHAT, max_tokens=20, temperature=0)
    assert answer.choices[0].message.content == generated(tiny, "Be brief.\n\nWho are you?", 20)
    assert answer.choices[0].message.role == "assistant"
    assert answer.object == "chat.completion"


def test_a_chat_is_written_with_the_template_where_there_is_one(served, client, tiny, monkeypatch):
    template = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}[assistant]"
    monkeypatch.setattr(tiny[1], "chat_template", template)
    monkeypatch.setattr(served[0].texts, "has_template", True)
    answer = client.chat.completions.create(model="tiny", messages=CHAT, max_tokens=20, temperature=0)
    assert answer.choices[0].message.content == generated(
        tiny, "[system]Be brief.[user]Who are you?[assistant]", 20
    )


@pytest.mark.parametrize("temperature", [0, 1])
def test_a_stream_is_the_answer_in_pieces(client, temperature):
    asked = {"max_tokens": 30, "temperature": temperature, "seed": 5}
    whole = complete(client, **asked)
    pieces = list(complete(client, stream=True, **asked))
    assert "".join(piece.choices[0].text for piece in pieces) == whole.choices[0].text
    assert [piece.choices[0].finish_reason for piece in pieces[:-1]] == [None] * (len(pieces) - 1)
    assert pieces[-1].choices[0].finish_reason == whole.choices[0].finish_reason
    assert len({piece.id for piece in pieces}) == 1


def test_a_streamed_chat_begins_with_its_role_and_may_end_with_its_counts(client):
    pieces = list(
        client.chat.completions.create(
            model="tiny", messages=CHAT, max_tokens=8, stream=True, stream_options={"include_usage": True}
        )
    )
    assert pieces[0].choices[0].delta.role == "assistant"
    assert pieces[-1].choices == []
    assert pieces[-1].usage.completion_tokens <= 8
    assert all(piece.usage is None for piece in pieces[:-1])
    assert pieces[-1].model_extra["metrics"]["speculative_decoding"]["num_spec_tokens"] == 4


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_ends_the_text_in_front_of_it(client, stream):
    text = complete(client, max_tokens=30).choices[0].text
    stop = next(text[at : at + 2] for at in range(4, 28) if text.find(text[at : at + 2]) == at)
    answer = complete(client, max_tokens=30, stop=[stop, "never there"], stream=stream)
    choices = [piece.choices[0] for piece in answer] if stream else [answer.choices[0]]
    assert "".join(choice.text for choice in choices) == text[: text.index(stop)]
    assert choices[-1].finish_reason == "stop"


def test_several_outputs_are_different_samples_and_each_is_what_its_number_gives(client):
    asked = {"temperature": 1, "seed": 3, "max_tokens": 16}
    three = complete(client, n=3, **asked)
    assert [choice.index for choice in three.choices] == [0, 1, 2]
    assert len({choice.text for choice in three.choices}) == 3
    assert three.choices[0].text == complete(client, **asked).choices[0].text
    assert three.model_extra["metrics"] is None


def test_prompts_may_be_several_and_token_ids(client, tiny):
    ids = tiny[1](PROMPT).input_ids
    answer = complete(client, prompt=[ids, tiny[1]("other").input_ids])
    assert [choice.text for choice in answer.choices] == [
        generated(tiny, PROMPT, 12),
        generated(tiny, "other", 12),
    ]
    assert answer.usage.prompt_tokens == len(ids) + 5


def test_a_seed_repeats_an_answer_and_one_that_is_drawn_is_told(client):
    first = complete(client, temperature=1)
    again = complete(client, temperature=1, seed=first.model_extra["seed"])
    assert again.choices[0].text == first.choices[0].text
    assert (
        complete(client, temperature=1, seed=1 + again.model_extra["seed"]).choices[0].text
        != first.choices[0].text
    )


@pytest.mark.parametrize("sequence", [5, "HumanEval/3#0"])
def test_seed_and_sequence_give_the_text_that_a_decoder_gives(client, tiny, sequence):
    model, tokenizer = tiny
    decoder = Decoder(model, verifier=KeyedSampling(0.7))
    ids = tokenizer(PROMPT).input_ids
    expected = decoder.generate(ids, max_new_tokens=12, seed=7, sequence=sequence).token_ids
    answer = complete(client, temperature=0.7, seed=7, extra_body={"sequence": sequence})
    assert answer.choices[0].text == tokenizer.decode(expected, skip_special_tokens=True)
    assert answer.choices[0].text != complete(client, temperature=0.7, seed=7).choices[0].text


def test_without_speculation_the_text_is_the_same(client):
    asked = {"temperature": 0.8, "top_p": 0.9, "seed": 11, "max_tokens": 40}
    plain = complete(client, extra_body={"speculative": False}, **asked)
    drafted = complete(client, **asked)
    assert plain.choices[0].text == drafted.choices[0].text
    metrics = [answer.model_extra["metrics"]["speculative_decoding"] for answer in (plain, drafted)]
    assert (
        metrics[0]["num_spec_steps"] == metrics[0]["num_draft_tokens"] == metrics[0]["num_spec_tokens"] == 0
    )
    assert metrics[1]["num_draft_tokens"] > 0


def test_what_drafting_did_is_told_in_vllms_schema(client):
    answer = complete(client, max_tokens=40)
    told = answer.model_extra["metrics"]["speculative_decoding"]
    assert sorted(told) == [
        "acceptance_histogram",
        "acceptance_histogram_by_draft_length",
        "draft_acceptance_rate",
        "mean_acceptance_length",
        "num_accepted_draft_tokens",
        "num_draft_tokens",
        "num_spec_steps",
        "num_spec_tokens",
    ]
    histogram = told["acceptance_histogram"]
    assert sum(histogram) == told["num_spec_steps"]
    accepted = sum(number * steps for number, steps in enumerate(histogram))
    assert accepted == told["num_accepted_draft_tokens"]
    assert told["mean_acceptance_length"] == pytest.approx(1 + accepted / told["num_spec_steps"])
    by_length = told["acceptance_histogram_by_draft_length"]
    assert sum(map(sum, by_length.values())) == told["num_spec_steps"]


def test_log_probabilities_are_the_targets(client, tiny):
    model, tokenizer = tiny
    answer = complete(client, logprobs=2, max_tokens=6)
    told = answer.choices[0].logprobs
    ids = tokenizer(PROMPT).input_ids
    with torch.inference_mode():
        for token_log_prob, best in zip(told.token_logprobs, told.top_logprobs, strict=True):
            log_probs = model(torch.tensor([ids])).logits[0, -1].log_softmax(-1)
            values = log_probs.topk(2).values.tolist()
            assert token_log_prob == pytest.approx(values[0], abs=1e-4)  # greedy: its best token
            assert sorted(best.values(), reverse=True) == pytest.approx(values, abs=1e-4)
            ids.append(int(log_probs.argmax()))


def test_a_chat_tells_log_probabilities_token_by_token(client):
    answer = client.chat.completions.create(
        model="tiny", messages=CHAT, max_tokens=5, temperature=0, logprobs=True, top_logprobs=3
    )
    told = answer.choices[0].logprobs.content
    assert len(told) == answer.usage.completion_tokens
    assert all(one.top_logprobs[0].logprob == one.logprob and len(one.top_logprobs) == 3 for one in told)
    streamed = client.chat.completions.create(
        model="tiny", messages=CHAT, max_tokens=5, temperature=0, logprobs=True, stream=True
    )
    pieces = [piece.choices[0].logprobs for piece in streamed]
    assert [one.logprob for piece in pieces if piece for one in piece.content] == pytest.approx(
        [one.logprob for one in told], abs=1e-5
    )


def test_the_next_turn_of_a_chat_feeds_what_is_new_alone(client):
    first = client.chat.completions.create(
        model="tiny", messages=CHAT, max_tokens=6, temperature=0, stop="\0"
    )
    asked = [*CHAT, {"role": "assistant", "content": "me"}, {"role": "user", "content": "And who else?"}]
    turn = client.chat.completions.create(model="tiny", messages=asked, max_tokens=2)
    known = first.usage.prompt_tokens - 1
    assert turn.usage.prompt_tokens_details.cached_tokens >= known


def test_requests_at_once_say_what_each_says_alone(client):
    def ask(number):
        asked = {
            "prompt": f"prompt {number}",
            "temperature": number % 2,
            "seed": number,
            "max_tokens": 10 + number,
        }
        return complete(client, **asked).choices[0].text

    alone = [ask(number) for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, range(8))) == alone


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_away_leaves_its_lane(served, address, stream):
    server, _ = served
    cancelled = server.figures.cancelled._value.get()
    body = {"model": "tiny", "prompt": "a", "max_tokens": 180, "temperature": 1, "seed": 1, "stream": stream}
    slow = server.engine._decoding.step

    def step():
        torch.randn(1500, 1500).softmax(-1)  # a model that takes its time
        return slow()

    server.engine._decoding.step = step
    try:
        if stream:
            with httpx.stream("POST", f"{address}/v1/completions", json=body, timeout=30) as answer:
                next(answer.iter_lines())
        else:
            with pytest.raises(httpx.ReadTimeout):
                httpx.post(f"{address}/v1/completions", json=body, timeout=0.15)
        wait_for(lambda: server.engine.running == 0, 10)
    finally:
        del server.engine._decoding.step
    wait_for(lambda: server.figures.cancelled._value.get() == cancelled + 1, 10)


@pytest.mark.parametrize(
    ("asked", "status", "words"),
    [
        ({"model": "tinny"}, 404, "did you mean 'tiny'?"),
        ({"temperature": 3}, 400, "temperature must be a number <= 2, got 3"),
        ({"temperature": 0.001}, 400, "0, or a number >= 0.01"),
        ({"n": 17}, 400, "17 outputs are requested"),
        ({"n": 0}, 400, "n must be an integer >= 1, got 0"),
        ({"prompt": "a" * 500}, 400, "the model's context holds 192"),
        ({"prompt": [999]}, 400, "holds token id 999"),
        ({"prompt": ""}, 400, "the prompt is empty"),
        ({"prompt": []}, 400, "prompt must not be empty"),
        ({"prompt": [-1]}, 400, "prompt.0.0 must be an integer >= 0, got -1"),
        ({"prompt": ["a", 3]}, 400, "prompt.1 must be a list, got 3"),
        ({"stop": ""}, 400, "stop.0 must not be empty"),
        ({"n": 2, "extra_body": {"sequence": "a"}}, 400, "sequence names one output, and the request has 2"),
        ({"extra_body": {"temprature": 1}}, 400, "did you mean 'temperature'?"),
        ({"extra_body": {"response_format": {"type": "json_object"}}}, 400, "no grammar"),
        ({"frequency_penalty": 0.5}, 400, "no penalties"),
        ({"echo": True}, 400, "not repeated"),
        ({"best_of": 4}, 400, "ask for n of them"),
        ({"stop": ["a"] * 17}, 400, "stop must have at most 16 entries, got 17"),
        ({"logprobs": 21}, 400, "logprobs must be an integer <= 20"),
        ({"stream": True, "stream_options": {"chunks": True}}, 400, "include_usage"),
    ],
)
def test_what_cannot_be_done_is_refused_in_a_sentence(client, asked, status, words):
    with pytest.raises(openai.APIStatusError) as refused:
        complete(client, **asked)
    assert refused.value.status_code == status
    assert words in refused.value.body["message"]


def test_an_output_ends_where_the_context_does_however_much_is_asked_for(client):
    answer = complete(client, prompt=[5] * 180, max_tokens=10**9)
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.total_tokens <= 192


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([], "messages must not be empty"),
        ([{"role": "wizard", "content": "x"}], "messages.0.role must be 'developer'"),
        ([{"role": "user"}], "messages.0.content is missing"),
        (
            [{"role": "user", "content": [{"type": "image_url"}]}],
            "messages.0.content.0.type must be 'text', got 'image_url'",
        ),
        ([{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}], "the last message"),
    ],
)
def test_chats_that_cannot_be_answered_are_refused(client, messages, words):
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="tiny", messages=messages)
    assert words in refused.value.body["message"]


def test_neutral_values_of_fields_that_do_nothing_are_taken(client):
    assert complete(client, frequency_penalty=0, echo=False, best_of=1, user="me", logit_bias={}).choices


def test_parts_of_text_are_one_text(client, tiny):
    content = [{"type": "text", "text": "Who "}, {"type": "text", "text": "are you?"}]
    answer = client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": content}], max_tokens=5, temperature=0
    )
    assert answer.choices[0].message.content == generated(tiny, "Who are you?", 5)


def test_models_are_listed(client):
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").id == "tiny"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_health_and_metrics_tell_how_it_goes(served, address, client):
    complete(client)
    about = {"status": "ok", "runtime": "eager", "dtype": "float32"}
    assert httpx.get(f"{address}/health").json() == about
    text = httpx.get(f"{address}/metrics").text
    assert "specexp_lanes_running 0.0" in text
    assert 'specexp_requests_total{status="200"}' in text
    assert "specexp_first_token_seconds_count" in text


def test_a_wrong_key_is_refused_and_a_right_one_is_not(tiny):
    with running(serve(tiny, key="secret")) as address:
        for key, status in (("secret", 200), ("other", 401), ("sécret", 401)):
            headers = {"Authorization": f"Bearer {key}".encode()}
            assert httpx.get(f"{address}/v1/models", headers=headers).status_code == status
        assert httpx.post(f"{address}/v1/completions", json={}).status_code == 401
        assert httpx.get(f"{address}/health").status_code == 200


def test_a_full_queue_says_when_to_come_again(tiny):
    server = serve(tiny, lanes=1, waiting=1)
    with running(server) as address:
        body = {"model": "tiny", "prompt": "a", "n": 3}
        answer = httpx.post(f"{address}/v1/completions", json=body)
        assert answer.status_code == 503
        assert int(answer.headers["Retry-After"]) >= 1
        assert httpx.post(f"{address}/v1/completions", json={**body, "n": 2}).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_a_deadline_ends_a_request(served, client, stream):
    asked = {"max_tokens": 150, "extra_body": {"deadline": 1e-6}, "stream": stream}
    with pytest.raises(openai.APIError, match="not complete within") as refused:
        list(complete(client, **asked))
    assert stream or refused.value.status_code == 504
    wait_for(lambda: served[0].engine.running == 0, 10)


def test_the_log_has_a_line_of_figures_for_every_request_and_no_prompt(client, caplog):
    with caplog.at_level("INFO", "specexp.deploy.server.access"):
        complete(client, prompt="a secret", max_tokens=5)
        with pytest.raises(openai.BadRequestError):
            complete(client, prompt="a secret", n=0)
    lines = [
        json.loads(record.message)
        for record in caplog.records
        if record.name == "specexp.deploy.server.access"
    ]
    assert [line["status"] for line in lines] == [200, 400]
    assert (lines[0]["prompt_tokens"], lines[0]["new_tokens"], lines[0]["finish"]) == (8, 5, "length")
    assert "secret" not in caplog.text


def test_routes_that_are_none_are_named(address):
    answer = httpx.post(f"{address}/v1/completion", json={})
    assert (answer.status_code, answer.json()["error"]["message"]) == (
        404,
        "there is no '/v1/completion' here; did you mean '/v1/completions'?",
    )
    assert httpx.get(f"{address}/v1/completions").status_code == 405
