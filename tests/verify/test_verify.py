"""``python -m specexp.verify``, from a file to a verdict, on models made in a moment."""

import json
import re
from types import SimpleNamespace

import pytest
import torch
from helpers.small_models import LetterTokenizer, tiny_llama

from specexp.commands.verify import main
from specexp.core.contracts import Drafter, Verifier
from specexp.core.dialogue import Candidates, Verdict
from specexp.models.pair import ModelPair
from specexp.report.progress import StageBar
from specexp.verifiers import RejectionSampling
from specexp.verify.run import folder_of

DRAFT = {"drafter": {"class_path": "DraftModel"}}
DRAWN = {"builder": {"class_path": "Chain", "init_args": {"length": 2, "candidates": "drawn"}}}
FEW = {"total_variation": 0.3, "toy_tokens": 900, "prompts": 1, "samples": 60, "first_tokens": 2, "workers": 1}
EXCLUDED = "on toys, no deviation above total variation 0.3 of the joint of three tokens found (power 95 %)"
FIRST = "no deviation above total variation 0.34 of your model's first tokens found (power 95 %)"
SAMPLED = f"{FIRST}; {EXCLUDED}"


class Overeager(RejectionSampling):
    """Claims to be lossless and accepts the first child there is."""

    def try_children(self, tree, row, left, uniforms):
        children = tree.shape.children[row]
        return (children[0] if children else None), left


class OvereagerThere(Overeager):
    """The same where there are more tokens than a toy has."""

    def try_children(self, tree, row, left, uniforms):
        if left.size > 20:
            return super().try_children(tree, row, left, uniforms)
        return RejectionSampling.try_children(self, tree, row, left, uniforms)


class Lawless(Verifier):
    def verify(self, context, tree, logits):
        return Verdict((), 0)


class Failing(Drafter):
    max_candidates = 8

    def propose(self, context, request):
        raise RuntimeError("no idea")


class Nothing(Drafter):
    """Has a vocabulary of its own, which no toy has."""

    max_candidates = 1

    def check_vocabulary(self, vocab_size):
        if vocab_size != 48:
            raise ValueError(f"needs 48 tokens, not {vocab_size}")

    def propose(self, context, request):
        return Candidates(request.tokens[request.rows][:, None])


@pytest.fixture
def experiment(experiment, tmp_path, monkeypatch):
    """Writes an experiment file over four prompts and gives its path; its models are made in a moment."""
    dtypes = {"float32": torch.float32, "bfloat16": torch.bfloat16}

    def pair_of(config):
        dtype = dtypes[config.get("pair.target_dtype")]
        return ModelPair(tiny_llama(0, dtype), tiny_llama(0, noise=0.02), LetterTokenizer(), "tiny")

    monkeypatch.setattr("specexp.verify.run.build_pair", pair_of)
    rows = [{"question_id": n, "category": "math", "turns": [f"ab{n} abc{n}", "and?"]} for n in range(4)]
    (tmp_path / "question.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    defaults = {"pair": {}, "verifier": {"class_path": "Greedy"}, "generation": {"max_new_tokens": 12}, "verify": FEW}
    return lambda **sections: experiment(**{**defaults, **sections})


@pytest.fixture
def report(tmp_path):
    return lambda: json.loads((tmp_path / "runs" / "verify" / "tiny" / "report.json").read_text())


def checks(finding):
    return {check["name"]: check for check in finding["checks"]}


@pytest.mark.slow
def test_deterministic_verifiers_are_compared_token_for_token(experiment, report, tmp_path, capsys, monkeypatch):
    bars, stop = [], StageBar.stop

    def stopped(bar):
        stop(bar)
        bars.extend((task.description, task.completed, task.total) for task in bar.tasks)

    monkeypatch.setattr(StageBar, "stop", stopped)
    arms = {
        "greedy": {"verifier": "Greedy"},
        "keyed": {"verifier": {"class_path": "KeyedSampling", "init_args": {"temperature": 0.8}}},
        "model": {**DRAFT, "title": "a draft model", "verifier": "Greedy"},
        "theirs": {"reference": "hf-prompt-lookup", "title": "Hugging Face's lookup"},
    }
    assert main([experiment(arms=arms), "--generation.samples", "2"]) == 0
    found = report()
    assert found["passed"]
    assert found["setting"] == "target in float32 on cpu"
    assert [finding["title"] for finding in found["findings"]] == ["greedy", "keyed", "a draft model"]
    of_greedy = next(done for what, *done in bars if what == "greedy")
    assert of_greedy[0] == of_greedy[1] > 8  # each of the 8 answers moves it, not the toys alone
    for finding in found["findings"]:
        equality = checks(finding)["token equality"]
        assert equality["outcomes"] == {"equal": 8, "near ties": 0, "wrong": 0}
        assert equality["branches"]["steps"] > 0
        assert checks(finding)["toy equality"]["outcomes"] == {"wrong": 0}
    greedy, keyed, _ = found["findings"]
    own, toys = r"0 of [1-9]\d+ tokens of your model differ", r"on toys, fewer than 1 in 321 \(power 95 %\)"
    assert re.fullmatch(f"{own}; {toys}", greedy["verdict"]), "the user's model comes first"
    assert checks(greedy)["toy equality"]["samples"] == 2 * 10 * 48
    assert re.fullmatch(f"{own}; {toys}; {re.escape(EXCLUDED)}", keyed["verdict"])
    assert [*checks(keyed)] == ["token equality", "toy equality", "toy joint"]
    joints = [f"{manner}: {name}" for manner in ("open", "sure") for name in ("tokens", "by last token")]
    assert [*checks(keyed)["toy joint"]["fits"]] == joints
    assert found["skipped"] == ["Hugging Face's lookup"]
    folder = tmp_path / "runs" / "verify" / "tiny"
    files = "config.yaml environment.json report.md report.json report.html joint.png"
    assert {path.name for path in folder.iterdir()} == set(files.split())
    written = (folder / "report.md").read_text()
    assert re.match(rf"# 2 compositions: {own}; {toys}. 1 c", written)
    assert "toy joint: tests" in written
    assert "Not verified, because other programs decode them: Hugging Face's lookup." in written
    printed = capsys.readouterr().out
    assert "Is it lossless?" in printed
    assert re.search(r"This takes about 1 minute: \d+ s of them for toy targets\.", " ".join(printed.split()))
    assert main([str(folder / "config.yaml"), "--dry-run"]) == 0


@pytest.mark.slow
def test_verifiers_that_sample_are_tested_by_their_law(experiment, report, capsys):
    verifier = {"class_path": "RejectionSampling", "init_args": {"temperature": 0.7, "top_p": 0.95}}
    arms = {
        "drawn": DRAWN,
        "points": {"drafter": {"class_path": "PromptLookup"}},
        "match": {"verifier": {"class_path": "SampleMatch", "init_args": {"temperature": 0.7}}},
        "unsafe": {"verifier": {"class_path": "helpers.lossy.Lossy"}},
    }
    assert main([experiment(**DRAFT, verifier=verifier, arms=arms)]) == 0
    found = report()
    verdicts = {finding["title"]: finding["verdict"] for finding in found["findings"]}
    assert verdicts == {**dict.fromkeys(("drawn", "points", "match"), SAMPLED), "unsafe": "lossy, as labeled"}
    for finding in found["findings"]:
        assert "token equality" not in checks(finding)
    for finding in found["findings"][:3]:
        assert checks(finding)["toy joint"]["branches"]["never"] == []
        assert checks(finding)["first tokens"]["samples"] == 60
        assert 0.1 < checks(finding)["first tokens"]["finds"] < 0.9
        assert checks(finding)["toy joint"]["finds"] <= 0.3
    controls = [finding["verifier"].partition("(")[0] for finding in found["plain"]]
    assert controls == ["RejectionSampling", "SampleMatch"]
    assert "first tokens" not in checks(found["findings"][3])
    printed = " ".join(capsys.readouterr().out.split())
    assert f"3 compositions: {SAMPLED}. 1 composition: lossy, as labeled" in printed
    assert "1 of 4: drawn: toy joint, first tokens" in printed


def test_a_false_claim_is_exit_code_1_and_needs_no_second_proof(experiment, report, capsys):
    lookup = {"class_path": "PromptLookup"}
    path = experiment(drafter=lookup, verifier={"class_path": "verify.test_verify.Overeager"})
    assert main([path]) == 1
    assert "FAILED: tiny (NOT LOSSLESS)" in capsys.readouterr().out
    found = report()
    (finding,) = found["findings"]
    assert not found["passed"]
    assert finding["lossless"]
    assert checks(finding)["toy joint"]["p_value"] < 1e-6
    assert "first tokens" not in checks(finding)


@pytest.mark.slow
def test_a_fault_on_the_configured_models_only_is_exit_code_1(experiment, report):
    path = experiment(
        drafter={"class_path": "PromptLookup"},
        verifier={"class_path": "verify.test_verify.OvereagerThere"},
        verify={**FEW, "samples": 800},
    )
    assert main([path]) == 1
    (finding,) = report()["findings"]
    assert checks(finding)["toy joint"]["decision"] == "excluded"
    assert checks(finding)["first tokens"]["p_value"] < checks(finding)["first tokens"]["level"]


def test_plain_decoding_alone_can_be_verified(experiment, report):
    path = experiment(drafter=None, builder=None, verifier={"class_path": "SampleMatch"})
    assert main([path]) == 0
    assert [finding["verdict"] for finding in report()["findings"]] == [SAMPLED]


def test_a_deviation_that_is_not_excluded_is_exit_code_3(experiment, report, capsys):
    path = experiment(drafter={"class_path": "PromptLookup"}, verifier={"class_path": "RejectionSampling"})
    assert main([path, "--verify.total_variation", "0.05", "--verify.toy_triples", "80"]) == 3
    (finding,) = report()["findings"]
    assert not report()["known"]
    finds = checks(finding)["toy joint"]["finds"]
    assert finds > 0.05
    first, toys = finding["verdict"].split("; ", 1)
    assert first.endswith("of your model's first tokens found (power 95 %)")
    assert toys == (
        f"on toys, no deviation found; one above total variation {finds:.2g} would have been (power 95 %), but "
        "excluding 0.05 needs more samples"
    )
    assert finding["verdict"] in " ".join(capsys.readouterr().out.split())


@pytest.mark.slow
def test_differences_of_a_low_precision_are_listed_and_excused(experiment, report, tmp_path):
    path = experiment(**DRAFT, pair={"target_dtype": "bfloat16"}, verifier={"class_path": "Greedy"})
    assert main([path, "--generation.max_new_tokens", "60", "--builder.init_args.length", "8"]) == 0
    found = report()
    (finding,) = found["findings"]
    assert found["setting"] == "target in bfloat16 on cpu"
    assert checks(finding)["token equality"]["outcomes"]["near ties"] == len(finding["differences"]) > 0
    assert all(one["near_tie"] and one["gap"] <= 0.125 for one in finding["differences"])
    written = (tmp_path / "runs" / "verify" / "tiny" / "report.md").read_text()
    assert "Differences from plain decoding, near ties included" in written
    assert "of your model differ, " in finding["verdict"]
    for absent in ("toy joint: tests", "first tokens: counts", "Bonferroni"):
        assert absent not in written, "only tests of this report are explained"


def test_a_part_that_fails_is_exit_code_1(experiment, report, capsys):
    failing = {"class_path": "verify.test_verify.Failing"}
    assert main([experiment(drafter=failing)]) == 1
    assert "tiny (5 ERRORS)" in capsys.readouterr().out
    assert report()["findings"][0]["errors"][0].endswith("RuntimeError: no idea")
    assert main([experiment(drafter=failing, verifier={"class_path": "RejectionSampling"})]) == 1
    errors = report()["findings"][0]["errors"]
    assert errors == ["toy target: RuntimeError: no idea", "first tokens: RuntimeError: no idea"]


@pytest.mark.slow
def test_parts_tied_to_a_vocabulary_get_a_toy_as_wide(experiment, report):
    sections = {"drafter": {"class_path": "verify.test_verify.Nothing"}, "builder": {"class_path": "Chain"}}
    path = experiment(**sections, verifier={"class_path": "RejectionSampling"})
    assert main([path]) == 0
    assert report()["findings"][0]["not_tested"] is None
    assert checks(report()["findings"][0])["toy joint"]["decision"] == "excluded"


def test_a_dry_run_lists_the_tests_and_writes_nothing(experiment, tmp_path, capsys):
    arms = {
        "greedy": {"verifier": "Greedy"},
        "keyed": {"verifier": "KeyedSampling"},
        "sampled": {**DRAFT, **DRAWN, "verifier": "RejectionSampling"},
        "theirs": {"reference": "hf-eager"},
    }
    assert main([experiment(arms=arms), "--dry-run"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "greedy: token equality, toy equality",
        "keyed: token equality, toy equality, toy joint",
        "sampled: toy joint, first tokens",
        "not verified, because other programs decode them: theirs",
        "Next: the same command without --dry-run",
    ]
    assert not (tmp_path / "runs").exists()


def test_the_report_on_an_artifact_of_the_package_is_in_the_output_folder(tmp_path):
    config = SimpleNamespace(artifact="smollm2:tree", typed=(), output=tmp_path, name="smollm2")
    assert folder_of(config) == tmp_path / "verify" / "smollm2"


@pytest.mark.slow
def test_a_model_that_gives_no_numbers_is_exit_code_1(experiment, report, monkeypatch):
    spoiled = tiny_llama(0)
    torch.nn.init.constant_(spoiled.lm_head.weight, float("nan"))
    pair = ModelPair(spoiled, None, LetterTokenizer(), "spoiled")
    monkeypatch.setattr("specexp.verify.run.build_pair", lambda config: pair)
    monkeypatch.setattr("specexp.core.language_model.LanguageModel._self_check", lambda model, remedy: None)
    arms = {"greedy": {"verifier": "Greedy"}, "sampled": {"verifier": "SampleMatch"}}
    assert main([experiment(arms=arms, drafter={"class_path": "PromptLookup"})]) == 1
    first, second = (finding["errors"] for finding in report()["findings"])
    assert len(first) == 4
    assert "the target model gave NaN logits" in first[0]
    assert second == ["first tokens: ValueError: the target's logits after prompt '0' are not finite"]
