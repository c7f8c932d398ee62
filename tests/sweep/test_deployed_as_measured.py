"""What is deployed is what was measured: an artifact decodes the confirmation's prompts as the study did, as fast."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from helpers.running_server import running

import specexp
from specexp.bench.arm import eos_of
from specexp.bench.arm_spec import ArmSpec
from specexp.bench.live import LiveBackend
from specexp.bench.record import PromptRecord, read_records
from specexp.bench.statistics import Speedup
from specexp.config import Config, build_data, load_config
from specexp.config.load import with_prompts_of
from specexp.data import Prompt
from specexp.deploy.server.app import Server
from specexp.deploy.server.loading import decoding_thread_of
from specexp.deploy.server.texts import Texts
from specexp.models.pair import ModelPair
from specexp.sweep.command import main

DEMO = Path(__file__).parents[2] / "experiments" / "demo.yaml"
SHORT = [
    *("--n-trials", "1", "--data.max_prompts", "1", "--sweep.count_acceptances.data.max_prompts", "1"),
    *("--sweep.confirm.data.max_prompts", "2", "--sweep.confirm.best", "1"),
    *("--generation.max_new_tokens", "48", "--generation.threads", "1"),
]
ALIASES = ("best", "best-tree")
ROUNDS = 8


@dataclass(frozen=True)
class Study:
    """A finished study of the embedded pair."""

    folder: Path  # of its artifacts
    config: Config
    pair: ModelPair
    prompts: Sequence[Prompt]  # of the confirmation
    records: dict[str, PromptRecord]  # plain decoding's records of them, by prompt id


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    folder = tmp_path_factory.mktemp("study")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("WANDB_MODE", "disabled")
        # Two prompts show no gain, without which there is no `best`, so the fastest is deployed in any case.
        patch.setattr(Speedup, "is_faster", True)
        assert main([str(DEMO), *SHORT]) == 0
        config = load_config("runs/demo/config.yaml")
    pair = specexp.load_pair("stdlib")
    data = build_data(with_prompts_of(config, "confirm"), pair.tokenizer)
    records = read_records(folder / "runs" / "demo" / "confirm.jsonl")
    plain = {record.prompt_id: record for record in records if record.arm == "plain"}
    assert plain
    assert plain.keys() == {prompt.prompt_id for prompt in data.prompts}
    return Study(folder / "artifacts" / "demo", config, pair, data.prompts, plain)


def decoded(study, decoder, prompt):
    """A record's prompt, as the README decodes and docs/deploy.md seeds it."""
    record = study.records[prompt.prompt_id]
    return decoder.generate(
        prompt.token_ids,
        max_new_tokens=study.config.generation.max_new_tokens,
        eos_token_id=eos_of(study.pair.tokenizer, study.pair.target),
        seed=record.seed,
        sequence=f"{record.prompt_id}#{record.sample}",
    )


def arms(study, alias):
    """The study's arm of an artifact, and the artifact's own decoder."""
    artifact = specexp.load_artifact(study.folder / alias)
    assert (artifact.provenance["runtime"], artifact.provenance["dtype"]) == ("compiled", "bfloat16")
    decoder = artifact.decoder(study.pair.target)
    parts = specexp.load_artifact(study.folder / alias).parts
    arm = LiveBackend(study.pair).arm(ArmSpec("study", study.config.generation, parts))
    return {"study": arm.decode, "deployed": lambda prompt: decoded(study, decoder, prompt)}


@pytest.mark.slow
@pytest.mark.parametrize("alias", ALIASES)
def test_tokens_are_the_studys(study, alias):
    both = arms(study, alias)
    for prompt in study.prompts:
        record = study.records[prompt.prompt_id]
        goes_on = record.finish_reasons == ("repetition",)  # a record ends there, unlike an answer
        for decode in both.values():
            tokens = tuple(decode(prompt).token_ids)
            assert tokens[: len(record.token_ids) if goes_on else None] == record.token_ids


def seconds_per_token(answer):
    """An answer of the decoder goes on where the study's ends in a repetition."""
    return answer.decode_seconds / len(answer.token_ids)


@pytest.mark.slow  # a busy machine slows one of two interleaved runs by more than a tenth
@pytest.mark.parametrize("alias", ALIASES)
def test_speed_is_the_studys(study, alias):
    both = arms(study, alias)
    seconds = dict.fromkeys(both, 0.0)
    for prompt in study.prompts:
        rounds = [{name: seconds_per_token(decode(prompt)) for name, decode in both.items()} for _ in range(ROUNDS)]
        for name in both:
            seconds[name] += min(one[name] for one in rounds)
    assert seconds["study"] / seconds["deployed"] > 0.9


@pytest.mark.variants(1)
@pytest.mark.parametrize("alias", ALIASES)
def test_a_servers_text_is_the_records(study, alias):
    artifact = specexp.load_artifact(study.folder / alias)
    texts = Texts(study.pair.tokenizer)
    server = Server(decoding_thread_of(artifact, study.pair, lanes=2, waiting=2), texts, "stdlib")
    eos = eos_of(study.pair.tokenizer, study.pair.target)
    with running(server) as address:
        about = {"status": "ok", "runtime": "compiled", "dtype": "bfloat16"}
        assert httpx.get(f"{address}/health").json() == about
        for prompt in study.prompts:
            record = study.records[prompt.prompt_id]
            body = {
                "prompt": list(prompt.token_ids),
                "max_tokens": study.config.generation.max_new_tokens,
                "temperature": artifact.verifier.temperature,
                "seed": record.seed,
                "sequence": f"{record.prompt_id}#{record.sample}",
            }
            answer = httpx.post(f"{address}/v1/completions", json=body, timeout=60).json()
            expected = texts.text([token for token in record.token_ids if token not in eos])
            goes_on = record.finish_reasons == ("repetition",)  # a record ends there, unlike an answer
            assert answer["choices"][0]["text"][: len(expected) if goes_on else None] == expected
