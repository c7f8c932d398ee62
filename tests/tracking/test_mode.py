"""Online only where somebody is logged in."""

from __future__ import annotations

from pathlib import Path

import pytest

from specexp.tracking import logged_in, resolve_mode


@pytest.fixture(autouse=True)
def netrc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    for name in ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE", "WANDB_MODE", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    return tmp_path / "netrc"


def test_without_account_runs_are_offline() -> None:
    assert not logged_in()
    assert resolve_mode() == "offline"


def test_a_key_in_the_environment_means_online(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    assert resolve_mode() == "online"


def test_a_login_in_netrc_means_online(netrc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    netrc.write_text("machine api.wandb.ai\n  login user\n  password " + "0" * 40 + "\n")
    assert resolve_mode() == "online"
    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.example.org")
    assert resolve_mode() == "offline"


def test_the_environment_says_the_mode_and_the_configuration_overrules_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert resolve_mode() == "disabled"
    assert resolve_mode("offline") == "offline"


def test_online_without_account_is_offline_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    assert resolve_mode("online") == "offline"
    assert "wandb login" in caplog.text


def test_an_unknown_mode_is_refused_in_a_sentence() -> None:
    with pytest.raises(
        ValueError, match=r"W&B mode 'onlin' is not known: use one of online, offline, disabled"
    ):
        resolve_mode("onlin")
