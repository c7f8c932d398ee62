"""Sampled answers of a server: a law that is off is found, one that is not is refused as seldom as is stated."""

import sys
from pathlib import Path

import numpy as np
import pytest
from helpers import fake_server

from specexp.engines.openai_client import Streamed
from specexp.engines.server import StartedServer, free_port
from specexp.verify.command import main
from specexp.verify.endpoint_law import compare_laws, permutation_p_value

FAIR = np.array([0.4, 0.3, 0.2, 0.1])
OFF_BY_A_FIFTH = np.array([0.2, 0.3, 0.2, 0.3])


def sampler(law, seed):
    """Answers of three letters, each drawn from a law."""
    generator = np.random.default_rng(seed)

    def ask(prompt: str, seed: int) -> Streamed:
        return Streamed("".join("abcd"[place] for place in generator.choice(4, size=3, p=law)))

    return ask


def compared(on, off, samples=100, level=0.001):
    return compare_laws(["p", "q"], on, off, samples=samples, tokens=3, temperature=0.7, level=level)


def test_two_samples_of_one_answer_each_can_be_shared_out_in_ways_one_can_count() -> None:
    # 3 a and 3 b: of 20 ways to share them out 2 are as far apart as all a against all b
    table = np.array([[3, 0], [0, 3]])
    assert permutation_p_value([table], 40_000) == pytest.approx(2 / 20, abs=0.01)
    assert permutation_p_value([np.array([[2, 1], [1, 2]])], 1000) == 1.0


def test_a_law_that_is_off_is_found() -> None:
    found = compared(sampler(OFF_BY_A_FIFTH, 0), sampler(FAIR, 1))
    assert found.verdict == "wrong"
    assert min(found.p_values.values()) < 0.0005


def test_a_law_is_refused_no_more_often_than_stated() -> None:
    verdicts = [
        compared(sampler(FAIR, 2 * run), sampler(FAIR, 2 * run + 1), 60, 0.1).verdict for run in range(60)
    ]
    assert verdicts.count("wrong") <= 13  # of 60 at a level of 0.1 more come once in a thousand


def test_a_joint_that_is_off_is_found_where_every_token_by_itself_is_not() -> None:
    generator = np.random.default_rng(0)

    def pairs(prompt: str, seed: int) -> Streamed:
        first = "ab"[generator.integers(2)]
        return Streamed(first + "z" + first)  # the last token repeats the first

    def free(prompt: str, seed: int) -> Streamed:
        return Streamed("ab"[generator.integers(2)] + "z" + "ab"[generator.integers(2)])

    found = compared(pairs, free)
    assert found.p_values["the beginning"] > 0.01
    assert found.p_values["the whole"] < 0.0005
    assert found.verdict == "wrong"


def test_answers_that_are_all_one_tell_nothing() -> None:
    def same(prompt: str, seed: int) -> Streamed:
        return Streamed("abc")

    found = compared(same, same)
    assert found.verdict == "cannot tell"
    assert "nothing could have been found" in "\n".join(found.lines())


@pytest.fixture
def serve():
    started = []

    def start(*arguments):
        port = free_port()
        words = [sys.executable, fake_server.__file__, str(port), *arguments]
        started.append(StartedServer(words, f"http://127.0.0.1:{port}", 60))
        return started[-1].url

    yield start
    for server in started:
        server.close()


@pytest.mark.parametrize(("arguments", "code"), [((), 0), (("--biased",), 1)])
def test_a_server_is_sampled_with_and_without_speculation(arguments, code, serve, tmp_path) -> None:
    given = ["--endpoint", serve("--sampled", *arguments), "--plain-body", '{"speculative": false}']
    given += ["--max-prompts", "2", "--max-tokens", "4", "--samples", "60", "--output", str(tmp_path)]
    assert main(given) == code
    report = Path(tmp_path, "endpoint.md").read_text()
    assert f"## Temperature 0.7: {'wrong' if code else 'equal'}" in report
    assert "blames an exact server with a probability of at most 0.001" in report
