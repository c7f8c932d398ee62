"""Every command takes a GGUF file for a target: the embedded pair's, by a path in the place of its name."""

import pytest

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed: pip install 'specexp[llama-cpp]'")
pytest.importorskip("gguf", reason="gguf is not installed: pip install 'specexp[llama-cpp]'")

from experiments.passes.gguf_writer import main as write
from specexp import load_artifact
from specexp.commands.run import main as run
from specexp.fit.command import main as fit
from specexp.replay.advice.what_if import main as what_if
from specexp.replay.record.command import main as record
from specexp.sweep.command import main as sweep

pytestmark = pytest.mark.slow
SHORT = ["--data.max_prompts", "2", "--generation.max_new_tokens", "12", "--generation.threads", "1"]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gguf")
    write(["stdlib", str(folder)])
    return ["--pair.target", str(folder / "target.gguf"), "--pair.draft", str(folder / "draft.gguf")]


def test_a_sweep_confirms_without_the_loops_that_run_no_such_file(files, tmp_path, capsys):
    arguments = ["experiments/demo.yaml", *files, *SHORT, "--n-trials", "2"]
    to = ["--output", str(tmp_path), "--sweep.export.to", str(tmp_path / "trees")]
    assert sweep([*arguments, *to, "--sweep.confirm.data.max_prompts", "2"]) in (0, None)
    said = capsys.readouterr().out
    assert "plain decoding" in said
    assert "hf-eager" not in said
    assert load_artifact(tmp_path / "trees" / "best-tree").builder is not None


def test_a_recording_is_made_and_answers_what_if(files, tmp_path, capsys):
    common = [*files, *SHORT, "--record.to", str(tmp_path / "recording"), "--output", str(tmp_path)]
    assert record(["experiments/replay/record.yaml", *common]) in (0, None)
    assert what_if(["experiments/replay/what_if.yaml", *common, "--what_if.profiles", "[]"]) in (0, None)
    assert "A100-like GPU" in capsys.readouterr().out


def test_outputs_are_those_of_its_plain_decoding_and_other_loops_are_left_out(files, tmp_path, capsys):
    arguments = ["experiments/papers/post_use_pre_cut/main.yaml", *files, *SHORT, "--output", str(tmp_path)]
    assert run([*arguments, "--name", "gguf"]) in (0, None)
    said = capsys.readouterr().out
    assert "Transformers cannot run a GGUF file, so it has no loop for" in said
    assert "2/2" in said


def test_a_controller_learns_on_it(files, tmp_path):
    arguments = ["experiments/papers/post_use_pre_cut/q_learning.yaml", *files, *SHORT, "--output", str(tmp_path)]
    assert fit([*arguments, "--fit.export.to", str(tmp_path / "table")]) in (0, None)
