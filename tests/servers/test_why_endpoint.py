"""``python -m specexp.why --endpoint``: planted costs and mistakes of a server, and failures in one sentence."""

import json

import pytest
from helpers import drafting_server

from specexp.engines import openai_client
from specexp.servers.counters import Drafts
from specexp.servers.why import main

FREE = ("--virtual", "--step", "4", "--fixed", "4", "--token", "0.01")


@pytest.fixture
def explain(serve, tmp_path, capsys):
    """Start a server with planted behaviour and explain it; returns the JSON result."""

    def explained(*planted, options=(), code=0):
        url = serve(*planted, program=drafting_server)
        arguments = ["--endpoint", f"{url}/v1", "--output", str(tmp_path), "--json", *options]
        assert main(["--max-prompts", "8", *arguments]) == code
        return json.loads(capsys.readouterr().out)

    return explained


def test_planted_costs_are_found_by_the_clients_clock(explain, monkeypatch, tmp_path) -> None:
    """Each piece arrives when the server planned to send it, as on an idle machine."""
    take = openai_client._take
    monkeypatch.setattr(
        openai_client, "_take", lambda found, content, at: take(found, content, content.get("planned_ms", 0) / 1e3)
    )
    planted = ("--virtual", "--no-times", "--step", "20", "--fixed", "30", "--token", "8", "--chooses")
    found = explain(*planted)
    summary = found["summary"]
    assert [summary["plain_ms"], summary["fixed_ms"], summary["token_ms"]] == pytest.approx([20, 30, 8], rel=0.01)
    assert summary["break_even"] == pytest.approx((30 + 4 * 8) / 20 - 1, rel=0.01)
    assert {"why.md", "server.png", "report.html"} <= {one.name for one in tmp_path.iterdir()}
    assert [row["requests"] for row in found["tables"]["lengths"]][:6] == ["as it is", *"01248"]


@pytest.mark.slow
def test_planted_delays_are_found_within_a_tenth(explain) -> None:
    found = explain("--step", "20", "--fixed", "30", "--token", "8", "--chooses", options=["--max-tokens", "16"])
    summary = found["summary"]
    assert [summary["plain_ms"], summary["fixed_ms"], summary["token_ms"]] == pytest.approx([20, 30, 8], rel=0.1)


@pytest.mark.parametrize("counters", ["request", "timings", "usage", "prometheus", "iterations"])
@pytest.mark.slow
def test_planted_costs_are_found_by_the_servers_clock(counters, explain) -> None:
    planted = ("--step", "5", "--fixed", "9", "--token", "2", "--chooses", "--virtual", "--counters", counters)
    summary = explain(*planted)["summary"]
    assert [summary["plain_ms"], summary["fixed_ms"], summary["token_ms"]] == pytest.approx([5, 9, 2], rel=0.01)


@pytest.mark.parametrize(
    ("planted", "cause"),
    [
        (["--accept", "0.005"], "as by chance: the draft belongs to another target or tokenizer"),
        (["--accept", "0.08"], "rotary embeddings, a prompt template or layers that differ from its training"),
        (["--accept", "0.7", "--chat-accept", "0.2"], "the draft was trained with the template of another model"),
        (["--accept", "0.7", "--limit", "3000"], "longer than the text that the draft was trained on"),
        (["--accept", "0.8", "0.1"], "the draft goes on from wrong states"),
    ],
)
@pytest.mark.parametrize("counters", ["request", "prometheus"])
@pytest.mark.variants(1)
def test_a_planted_mistake_is_named(planted, cause, counters, explain) -> None:
    found = explain(*FREE, *planted, "--counters", counters, options=["--max-tokens", "256"])
    assert cause in found["answer"]


@pytest.mark.variants(1)
@pytest.mark.parametrize(
    ("costs", "cause"),
    [
        (["--step", "3", "--fixed", "3", "--token", "0.1"], "none; drafting pays at these costs"),
        (["--step", "3", "--fixed", "20", "--token", "0.3"], "most for its fixed part; it would not pay if all"),
        (["--step", "3", "--fixed", "3", "--token", "4"], "most for its drafted tokens; it would not pay if all"),
        (["--step", "3", "--fixed", "7", "--token", "0.4"], "acceptance that is too low for these costs"),
        (["--step", "3", "--fixed", "3", "--token", "1"], "the draft length; "),
    ],
)
def test_costs_are_named_if_the_draft_is_healthy(costs, cause, explain) -> None:
    found = explain(*costs, "--virtual", "--chooses", "--accept", "0.6", options=["--max-tokens", "32"])
    assert cause in found["answer"]


@pytest.mark.slow
def test_a_plain_server_gives_the_break_even_if_requests_cannot_choose(explain) -> None:
    plain = ["--plain-body", '{"speculative": 0}']
    found = explain("--virtual", "--step", "4", "--fixed", "8", "--token", "1", options=plain)
    assert found["summary"]["fixed_ms"] == pytest.approx(8 + 4, rel=0.01)
    assert found["summary"]["break_even"] == pytest.approx(2, rel=0.01)
    assert "All drafts have about 4.0 tokens, so the cost of one is unknown" in found["answer"]


@pytest.mark.slow
def test_servers_with_other_draft_lengths_give_the_cost_of_a_token(explain, serve) -> None:
    costs = ["--virtual", "--fixed", "8", "--token", "3"]
    shorter = serve(*costs, "--length", "2", program=drafting_server)
    summary = explain(*costs, options=["--also", shorter])["summary"]
    assert [summary["fixed_ms"], summary["token_ms"]] == pytest.approx([8, 3], rel=0.01)


@pytest.mark.slow
def test_a_length_is_measured_on_prompts_that_the_server_has_not_answered(explain) -> None:
    rows = explain(*FREE, "--chooses", "--learns", "--accept", "0")["tables"]["lengths"]
    per_step = {row["requests"]: row["tokens/step"] for row in rows}
    assert [per_step[sent] for sent in ("as it is", *"01248")] == [1.0] * 6
    assert per_step["other template"] > 2  # the same prompt again


@pytest.mark.slow
def test_counts_of_sglang_give_acceptance_by_position(explain) -> None:
    """Half of the first drafted tokens are accepted, and no other."""
    found = explain(*FREE, "--counters", "sglext", "--accept", "0.5", "0", options=["--max-tokens", "256"])
    assert found["summary"]["accepted"] == pytest.approx(0.5, abs=0.1)
    assert "the draft goes on from wrong states" not in found["answer"]  # only one position is known


@pytest.mark.slow
def test_a_server_that_ignores_the_chosen_length_is_not_believed(explain) -> None:
    found = explain(*FREE, "--chooses", "--fixes-length")
    assert [row["requests"] for row in found["tables"]["lengths"]] == ["as it is", "other template", "long prompt"]


@pytest.mark.parametrize(
    ("tokens", "steps", "counted", "accepted"),
    [
        (5, 1, 8, 4),  # one step, of which four tokens are in the answer: vLLM counts eight
        (5, 2, 2, 2),  # every step added a token
        (5, 2, 3, 3),  # the last step added none, because the answer ended
        (1, 0, 0, 0),
    ],
)
def test_tokens_after_the_end_of_an_answer_were_not_accepted(tokens, steps, counted, accepted) -> None:
    assert Drafts(steps, 8 * steps, counted).within(tokens).accepted == accepted


def test_the_deepest_positions_are_those_after_the_end() -> None:
    found = Drafts(2, 16, 16, (2,) * 8, (2,) * 8).within(11)
    assert found.accepted == sum(found.accepted_at) == 9
    assert found.accepted_at == (2, 2, 2, 2, 1, 0, 0, 0)


def test_counts_without_positions_give_the_rate(explain) -> None:
    found = explain(*FREE, "--counters", "timings")
    assert "% of its 4.0 drafted tokens per step are accepted" in found["answer"]


@pytest.mark.variants(2)
@pytest.mark.parametrize(
    ("planted", "options", "code", "sentence"),
    [
        (
            ["--counters", "none", "--no-times"],
            [],
            0,
            "The server reports no counts of drafts, so costs and acceptance are unknown",
        ),
        (["--length", "0"], [], 0, "The server drafted nothing for these prompts."),
        (["--key", "secret"], [], 2, "the server rejects the API key: set SPECEXP_API_KEY to its key"),
        (["--dies", "5"], [], 2, "the stream ended early, after "),
        (["--slow"], ["--seconds", "0.5"], 2, "no complete answer within 0.5 s"),
        ([], ["--max-prompts", "3"], 2, "there must be at least 4 prompts, because intervals are over prompts"),
    ],
)
def test_other_servers_are_one_sentence(planted, options, code, sentence, explain) -> None:
    found = explain(*FREE, *planted, options=["--max-tokens", "16", *options], code=code)
    shown = found["error"] if code else found["answer"]
    assert sentence in shown
    assert "\n" not in shown


def test_addresses_that_are_no_other_servers_are_refused(capsys) -> None:
    url = "http://127.0.0.1:9"
    assert main(["--endpoint", f"{url}/v1/chat/completions"]) == 2
    assert "--endpoint must be a server's address, without the path of an endpoint" in capsys.readouterr().err
    assert main(["--endpoint", url, "--also", f"{url}/v1"]) == 2
    assert f"--also must be servers with other draft lengths, got {url} again" in capsys.readouterr().err


def test_the_key_in_the_environment_is_sent(explain, monkeypatch) -> None:
    monkeypatch.setenv("SPECEXP_API_KEY", "secret")
    assert explain(*FREE, "--key", "secret")["exit_code"] == 0


@pytest.mark.slow
def test_our_own_server_is_explained(serve_ours, tmp_path, capsys) -> None:
    chain = {"class_path": "Chain", "init_args": {"length": 4}}
    url = serve_ours(drafter={"class_path": "DraftModel"}, builder=chain)
    arguments = ["--endpoint", url, "--max-prompts", "8", "--max-tokens", "48", "--output", str(tmp_path)]
    assert main([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    drafted = {row["requests"]: row["drafted/step"] for row in found["tables"]["lengths"]}
    assert drafted["0"] == 0
    assert drafted["1"] <= 1 < drafted["8"] <= 4  # the artifact's chain limits the chosen length
    assert found["summary"]["token_ms"] > 0
    assert "It breaks even at" in found["answer"]
