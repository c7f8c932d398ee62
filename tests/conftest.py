"""Settings every test shares."""

import gc
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import yaml

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("WANDB_MODE", "offline")
# Here and in all programs that tests start: small models are fastest on one thread, and where a program asks for more,
# threads that wait must not keep the cores from other tests.
os.environ.update(OMP_NUM_THREADS="1", OMP_WAIT_POLICY="PASSIVE")
os.getloadavg = lambda: (0.0, 0.0, 0.0)  # or else commands warn that the tests keep the machine busy

for name, number in {"few": 6, "all": 100}.items():
    hypothesis.settings.register_profile(
        name,
        max_examples=number,
        deadline=None,  # the first example of a model compiles kernels
        derandomize=True,
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
    )


def pytest_configure(config: pytest.Config) -> None:
    """By default a property is tried on a few of its examples."""
    if config.option.markexpr == "unit":
        config.option.markexpr = "unit and not slow"
    hypothesis.settings.load_profile("few" if "not slow" in config.option.markexpr else "all")


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """None for folders, which is a worker a core; single files are done before workers have started."""
    return None if all(Path(argument).is_dir() for argument in config.args) else 0


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The README's commands first: they take longest, and no worker should begin them last.

    Of tests marked ``variants(n)``, all but the first ``n`` cases are slow; with ``variants(n, parameter)``, all but
    those of the first ``n`` values of a parameter. Under ``-m slow`` all properties are tried again, on all examples.
    """
    items.sort(key=lambda item: item.path.name != "test_readme.py")
    seen: dict[str, dict[str, int]] = {}
    for item in items:
        if marker := item.get_closest_marker("variants"):
            most, *parameter = marker.args
            cases = seen.setdefault(item.nodeid.partition("[")[0], {})
            case = str(item.callspec.params[parameter[0]]) if parameter else item.nodeid
            if cases.setdefault(case, len(cases)) >= most:
                item.add_marker("slow")
    for item in items if config.option.markexpr == "slow" else []:
        if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
            item.add_marker("slow")


def pytest_collection_finish(session: pytest.Session) -> None:
    """A million objects of imported libraries stay to the end: collecting garbage need not look at them every time.

    Under ``-m unit`` a test fails if it makes a model or starts a process other than the compiler.
    """
    gc.freeze()
    if session.config.option.markexpr == "unit and not slow" and session.items:
        start = subprocess.Popen.__init__

        def checked_start(self: Any, command: Any, *given: Any, **named: Any) -> None:
            assert "++" in str(command), f"a unit test started {command}"
            start(self, command, *given, **named)

        def refused(self: Any, *given: Any, **named: Any) -> None:
            raise AssertionError(f"a unit test made a {type(self).__name__}")

        subprocess.Popen.__init__ = checked_start  # type: ignore[method-assign]
        if models := sys.modules.get("transformers.modeling_utils"):
            models.PreTrainedModel.__init__ = refused


@pytest.fixture(autouse=True, scope="session")
def _quiet() -> None:
    """Transformers' advice about small models is noise."""
    import transformers

    transformers.logging.set_verbosity_error()


@pytest.fixture(scope="session")
def specexp_data() -> Path:
    """The folder with the real files."""
    folder = os.environ.get("SPECEXP_DATA")
    if not folder:
        pytest.skip("SPECEXP_DATA is not set; it names a folder with the prompt sets in their original formats")
    return Path(folder)


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory) -> str:
    """A random Llama whose every byte is a token, saved with its tokenizer."""
    import torch
    from helpers.small_models import byte_tokenizer
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("model")
    tokenizer = byte_tokenizer()
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=192,
        initializer_range=0.2,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="session")
def study_model(tmp_path_factory):
    """Another small random model with the same tokenizer, for studies."""
    from helpers.small_models import FULL_ATTENTION, build, byte_tokenizer

    folder, tokenizer = tmp_path_factory.mktemp("model"), byte_tokenizer()
    tokenizer.save_pretrained(folder)
    build("Llama", {**FULL_ATTENTION["Llama"], "vocab_size": len(tokenizer)}).save_pretrained(folder)
    return folder


@pytest.fixture
def experiment(tmp_path, model_folder):
    """Writes an experiment file over four conversations and gives its path."""
    questions = tmp_path / "question.jsonl"
    rows = [
        {"question_id": n, "category": "math" if n % 2 else "writing", "turns": [f"ab{n} ab{n}", "and?"]}
        for n in range(6)
    ]
    questions.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def write(**sections) -> str:
        content = {
            "name": "tiny",
            "question": "Which is fastest?",
            "pair": {"target": model_folder, "draft": model_folder, "target_dtype": "float32"},
            "data": {"prompts": {"class_path": "MTBench", "init_args": {"path": str(questions)}}},
            "drafter": {"class_path": "TokenRecycling", "init_args": {"k": 4}},
            "builder": {"class_path": "Chain", "init_args": {"length": 3}},
            "verifier": {"class_path": "KeyedSampling", "init_args": {"temperature": 0.7}},
            "generation": {"max_new_tokens": 10},
            "trainer": {"enable_progress_bar": False},
            "output": str(tmp_path / "runs"),
            "tracking": {"mode": "disabled"},
            **sections,
        }
        path = tmp_path / "tiny.yaml"
        path.write_text(yaml.safe_dump(content))
        return str(path)

    return write
