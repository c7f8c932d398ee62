"""A controller that learns through Lightning's Trainer, and goes on where it was killed."""

import pytest
import torch

from specexp.config import ConfigError, load_config
from specexp.fit.command import main
from specexp.fit.learn import check_learning, learn

FILE = """
name: tiny
data: {prompts: {class_path: StdlibFunctions, init_args: {split: validation}}, max_prompts: 4}
drafter: {class_path: PhraseCache, init_args: {drafter: {class_path: DraftModel}, state: carry}}
builder: {class_path: Graft, init_args: {builder: {class_path: Chain, init_args: {length: 6}}}}
controller: {class_path: QLearning, init_args: {warm_up: 10, draft_cost: 0.1}}
generation: {max_new_tokens: 12}
trainer: {logger: false}
fit: {checkpoint_every: 2, export: {kind: q-table, to: exported}}
"""


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "tiny.yaml"
    path.write_text(FILE)
    return path


def state_of(module):
    return module.arm.parts.controller.state_dict()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The learned state of a run that is not killed."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "tiny.yaml").write_text(FILE)
    return state_of(learn(load_config(folder / "tiny.yaml", ["--output", str(folder / "runs")])))


class Killed(BaseException):
    """Ends the process, which no failing prompt does."""


@pytest.mark.slow
@pytest.mark.parametrize("after", [1, 3])
def test_a_killed_run_learns_the_same_table(file, monkeypatch, whole, after):
    """Killed between two prompts, before the first checkpoint and after the second."""
    from specexp.bench.live import DecoderArm

    decode, decoded = DecoderArm.decode, []

    def killed(arm, prompt, *given):
        if len(decoded) == after:
            raise Killed
        decoded.append(prompt.prompt_id)
        return decode(arm, prompt, *given)

    monkeypatch.setattr(DecoderArm, "decode", killed)
    with pytest.raises(Killed):
        learn(load_config(file))
    monkeypatch.setattr(DecoderArm, "decode", decode)
    resumed = learn(load_config(file))
    assert resumed.done == 4
    assert torch.equal(state_of(resumed)["q"], whole["q"])
    assert torch.equal(state_of(resumed)["visits"], whole["visits"])
    assert state_of(resumed)["steps"] == whole["steps"] > 10
    assert state_of(learn(load_config(file)))["steps"] == whole["steps"]  # finished: no further


@pytest.mark.slow
def test_the_slurm_variables_of_a_shell_do_not_concern_a_command_of_one_process(file, monkeypatch, whole):
    variables = {"NTASKS": 2, "JOB_ID": 7, "PROCID": 1, "LOCALID": 1, "NODEID": 0, "JOB_NAME": "x"}
    for name, value in variables.items():
        monkeypatch.setenv(f"SLURM_{name}", str(value))
    assert torch.equal(state_of(learn(load_config(file)))["q"], whole["q"])


@pytest.mark.slow
def test_the_command_prints_the_folder_of_the_artifact(file, capsys, tmp_path):
    from specexp.config.artifacts import load_artifact

    assert main([str(file), "--data.max_prompts", "2"]) == 0
    printed = capsys.readouterr().out
    assert "Its learned state is in exported/v1, a q-table." in printed
    assert (tmp_path / "runs" / "tiny" / "q_table.png").stat().st_size > 10_000
    assert load_artifact("exported").value["steps"] > 5
    assert load_artifact("exported").controller.learn is False


@pytest.mark.slow
def test_a_failing_prompt_is_reported_and_the_others_are_learned_from(file, monkeypatch, capsys):
    from specexp.bench.live import DecoderArm

    decode, broken = DecoderArm.decode, []

    def breaking(arm, prompt, *given):
        broken.append(prompt.prompt_id)
        if len(broken) == 1:
            raise ValueError("no room")
        return decode(arm, prompt, *given)

    monkeypatch.setattr(DecoderArm, "decode", breaking)
    assert main([str(file), "--data.max_prompts", "2"]) == 1
    printed = capsys.readouterr()
    assert "of 2 answers to 2 prompts" in printed.out
    assert f"1 of 2 prompts could not be learned from, e.g. {broken[0]!r}: ValueError: no room" in printed.err


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["--controller", "Fixed"], "controller is Fixed, which does not learn"),
        (["--controller.init_args.learn", "false"], "learn is false, so nothing would be learned"),
    ],
)
def test_a_controller_that_does_not_learn_is_refused(file, overrides, sentence):
    with pytest.raises(ConfigError, match=sentence):
        check_learning(load_config(file, overrides))


def test_a_file_of_neither_sort_is_refused(tmp_path, capsys):
    path = tmp_path / "neither.yaml"
    path.write_text("name: neither\n")
    assert main([str(path)]) == 2
    assert "neither a fit: section" in capsys.readouterr().err


def test_a_reset_arm_starts_from_its_remembered_state(file):
    """What a sweep's candidates learn from other prompts survives the resets of search and confirmation."""
    arm = learn(load_config(file, ["--data.max_prompts", "2"])).arm
    controller, drafter = arm.parts.controller, arm.parts.drafter
    learned, phrases = controller.state_dict()["q"], drafter.state_dict()["keys"]
    assert phrases.numel() > 0
    arm.remember()
    arm.reset()
    assert torch.equal(controller.state_dict()["q"], learned)
    assert torch.equal(drafter.state_dict()["keys"], phrases)
