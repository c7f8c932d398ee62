"""Without a network a model's hub id is answered at once, in one sentence."""

import time
from pathlib import Path

import pytest

from specexp.models.pair import load_pair, load_tokenizer
from specexp.models.sources import PairError, check_reachable


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")  # nobody listens there


@pytest.mark.usefixtures("no_network")
def test_an_unreachable_hub_id_is_refused_at_once() -> None:
    load_pair("stdlib")  # what the imports take
    started = time.perf_counter()
    with pytest.raises(PairError, match=r"'nobody/nothing' is neither a local folder nor in the cache \(.*\), "
                       r"and the hub cannot be reached .*127\.0\.0\.1:9: .*: name a local") as caught:  # fmt: skip
        load_pair("nobody/nothing")
    assert time.perf_counter() - started < 10  # the client's own retries take most of a minute
    assert caught.value.argument == "target"
    with pytest.raises(PairError, match="draft 'nobody/nothing' is neither a local folder"):
        load_pair("stdlib", "nobody/nothing")
    with pytest.raises(PairError, match="target 'nobody/nothing' is neither a local folder"):
        load_tokenizer("nobody/nothing")


def test_offline_mode_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(PairError, match=r"cannot be reached \(HF_HUB_OFFLINE is set\)"):
        check_reachable("target", "nobody/nothing")


def test_local_folders_need_no_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from huggingface_hub import constants

    def ask(endpoint: str) -> str:
        raise AssertionError("the hub was asked")

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr("specexp.models.sources._why_unreachable", ask)
    assert load_tokenizer("stdlib").eos_token_id is not None
    with pytest.raises(PairError, match=r"without config\.json"):
        load_pair(str(tmp_path))
