"""An artifact runs as it was measured: with the recorded runtime, and a warning where runtime or dtype differ."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import made_artifacts as made

from specexp import load_artifact, load_pair
from specexp.config.artifacts import LoadedArtifact, save_artifact
from specexp.core.language_model import LanguageModel
from specexp.deploy.hugging_face.custom_generate import custom_generate
from specexp.deploy.server.loading import engine_of
from specexp.models.compiled import CompiledModel

PARTS = {
    "drafter": {"class_path": "DraftModel"},
    "builder": {"class_path": "Chain", "init_args": {"length": 2}},
}
Measured = Callable[..., LoadedArtifact]


@pytest.fixture
def measured(tmp_path: Path) -> Measured:
    """Writes an artifact with this provenance."""

    def write(**provenance: Any) -> LoadedArtifact:
        return save_artifact(tmp_path / "tuned", "composition", {"parts.json": PARTS}, provenance)

    return write


@pytest.mark.parametrize(
    ("recorded", "kind"), [("compiled", "compiled"), ("eager", "eager"), (None, "compiled")]
)
def test_the_recorded_runtime_decodes_and_drafts(
    measured: Measured, caplog: pytest.LogCaptureFixture, recorded: str | None, kind: str
) -> None:
    pair = load_pair("stdlib")
    artifact = measured(runtime=recorded, dtype=recorded and "bfloat16")
    if recorded is None:  # as before runtimes were recorded
        file = artifact.folder / "artifact.json"
        fields = json.loads(file.read_text())
        del fields["provenance"]["runtime"], fields["provenance"]["dtype"]
        file.write_text(json.dumps(fields))
        made.rehash(artifact.folder)
        artifact = load_artifact(artifact.folder)
    decoder = artifact.decoder(pair.target, pair.draft)
    assert decoder.parts.drafter is not None
    assert [model.kind for model in (decoder.model, *decoder.parts.drafter.models)] == [kind, kind]
    engine = engine_of(artifact, pair, lanes=1, waiting=1)
    assert engine.parts.drafter is not None
    assert [model.kind for model in (engine.target, *engine.parts.drafter.models)] == [kind, kind]
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("loaded", "runs"),
    [
        ({"mode": "eager"}, "eager and bfloat16"),
        ({"mode": "graphed"}, "graphed and bfloat16"),
        ({"target_dtype": "float32"}, "compiled and float32"),
    ],
)
def test_another_runtime_or_dtype_works_and_is_told_once(
    measured: Measured, caplog: pytest.LogCaptureFixture, loaded: dict[str, str], runs: str
) -> None:
    pair = load_pair("stdlib", **loaded)
    artifact = measured(runtime="compiled", dtype="bfloat16")
    for _ in range(2):
        decoder = artifact.decoder(pair.target, pair.draft)
        assert decoder.generate([5, 6, 7], max_new_tokens=4).token_ids
    assert caplog.messages == [
        f"{artifact.folder} was measured with runtime compiled and dtype bfloat16, and the target runs with {runs}: "
        "its measured speed does not apply"
    ]


def test_a_model_that_cannot_be_compiled_runs_by_its_own_code_and_the_one_warning_says_why(
    measured: Measured, caplog: pytest.LogCaptureFixture
) -> None:
    pair = load_pair("stdlib", target_dtype="float32")
    target = pair.target.double()
    artifact = measured(runtime="compiled", dtype="float32")
    assert isinstance(artifact.runtime(target), LanguageModel)
    assert len(caplog.messages) == 1
    assert caplog.messages[0].endswith(
        "and the target runs with eager and float64: its measured speed does not apply (running in eager mode, since "
        "the llama model is float64, not bfloat16, float16 or float32, so that there is no compiled pass of it)"
    )


@pytest.mark.parametrize("recorded", ["eager", "compiled"])
def test_generate_runs_as_measured(
    measured: Measured, monkeypatch: pytest.MonkeyPatch, recorded: str
) -> None:
    pair = load_pair("stdlib")
    passes = []
    for kind in (LanguageModel, CompiledModel):

        def counted(self: Any, *given: Any, run: Any = kind.tree_pass) -> Any:
            passes.append(self.kind)
            return run(self, *given)

        monkeypatch.setattr(kind, "tree_pass", counted)
    artifact = measured(runtime=recorded, dtype="bfloat16")
    fast = custom_generate(artifact, draft=pair.draft)
    pair.target.generate(torch.tensor([[5, 6, 7]]), max_new_tokens=4, custom_generate=fast)
    assert set(passes) == {recorded}
