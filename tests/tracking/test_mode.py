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


KEY = {"WANDB_API_KEY": "0" * 40}
LOGIN = "machine api.wandb.ai\n  login user\n  password " + "0" * 40 + "\n"


@pytest.mark.parametrize(
    ("login", "environment", "mode", "expected"),
    [
        ("", {}, None, "offline"),
        ("", KEY, None, "online"),
        (LOGIN, {}, None, "online"),
        (LOGIN, {"WANDB_BASE_URL": "https://wandb.example.org"}, None, "offline"),
        ("", {"WANDB_MODE": "disabled"}, None, "disabled"),
        ("", {"WANDB_MODE": "disabled"}, "offline", "offline"),
    ],
)
def test_runs_are_online_only_with_an_account(netrc, monkeypatch, login, environment, mode, expected) -> None:
    netrc.write_text(login)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert logged_in() is (expected == "online")
    assert resolve_mode(mode) == expected


def test_online_without_account_is_offline_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    assert resolve_mode("online") == "offline"
    assert "wandb login" in caplog.text


def test_an_unknown_mode_is_refused_in_a_sentence() -> None:
    with pytest.raises(
        ValueError, match=r"W&B mode 'onlin' is not known: use one of online, offline, disabled"
    ):
        resolve_mode("onlin")
