"""Prompts split over workers: the parts make the whole that one machine would have made."""

import shutil
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from specexp.bench.record import read_records
from specexp.cluster.shard import Shard, ends_last, forget_shards, shards_in, take_shard
from specexp.commands.run import main as run
from specexp.config import ConfigError
from specexp.replay.format.recording import MANIFEST, Recording
from specexp.replay.record.command import main as record

DRAFT = {"class_path": "DraftModel"}


@given(st.lists(st.integers()), st.integers(1, 7))
def test_the_shards_of_a_sequence_are_the_sequence(items, count):
    parts = [Shard(number, count).of(items) for number in range(count)]
    assert [item for part in parts for item in part] == items
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_a_shard_is_split_off_the_command_line():
    assert take_shard(["x.yaml", "--shard", "1/3", "--name", "y"]) == (Shard(1, 3), ["x.yaml", "--name", "y"])
    assert take_shard(["x.yaml", "--shard=0/2"]) == (Shard(0, 2), ["x.yaml"])
    assert take_shard(["x.yaml"]) == (None, ["x.yaml"])
    for wrong in ("3/3", "one", ""):
        with pytest.raises(ConfigError, match="such as 0/3, got"):
            take_shard(["x.yaml", f"--shard={wrong}"])


def test_parts_of_several_counts_are_not_put_together(tmp_path):
    for shard in (Shard(0, 2), Shard(1, 3)):
        shard.folder(tmp_path).mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"different counts \(2 and 3\)"):
        shards_in(tmp_path)


def files_of(folder):
    return {name: entry["sha256"] for name, entry in Recording(folder).manifest.files.items()}


def recorded(path, folder, *more):
    assert record([path, "--record.to", str(folder), *more]) == 0


def check_shards_record_the_same(path, folder, count, *more):
    whole, sharded = folder / "whole", folder / "sharded"
    recorded(path, whole, *more)
    for number in reversed(range(count)):  # in whatever order they end
        assert not (sharded / MANIFEST).exists()
        recorded(path, sharded, "--shard", f"{number}/{count}", *more)
    check_same(sharded, whole)
    killed = folder / "killed"
    for number in range(count):
        if number != 1:
            recorded(path, killed, "--shard", f"{number}/{count}", *more)
    recorded(path, killed, *more)  # what is missing is recorded, and all is put together
    check_same(killed, whole)
    recorded(path, killed, "--shard", f"1/{count}", *more)  # as it comes again when all is over
    check_same(killed, whole)


def check_same(sharded, whole):
    assert files_of(sharded) == files_of(whole)
    assert Recording(sharded).manifest.made_of == Recording(whole).manifest.made_of
    assert not shards_in(sharded)


@pytest.mark.slow
def test_a_recording_of_three_shards_is_that_of_one_machine_bit_by_bit(experiment, tmp_path):
    coverage = [{"class_path": "Chain", "init_args": {"length": 3}}]
    sections = {"turns_per_file": 3, "live_sample": 0, "coverage": coverage}
    path = experiment(drafter=DRAFT, record=sections, generation={"max_new_tokens": 4})
    check_shards_record_the_same(path, tmp_path, 3)


@pytest.mark.slow
def test_the_last_of_two_recording_workers_assembles_the_whole(experiment, tmp_path):
    path = experiment(drafter=DRAFT, record={"live_sample": 1}, generation={"max_new_tokens": 4})
    recorded(path, tmp_path / "whole")
    recorded(path, tmp_path / "sharded", "--on", "local", "--workers", "2")
    check_same(tmp_path / "sharded", tmp_path / "whole")
    assert Recording(tmp_path / "sharded").manifest.live_sample
    assert len([*(tmp_path / ".sharded-workers").glob("sharded_*_of_2.log")]) == 2


def test_state_that_carries_over_prompts_is_not_split(experiment, tmp_path, capsys):
    carries = {"class_path": "TokenRecycling", "init_args": {"k": 4, "state": "carry"}}
    path = experiment(drafter=carries, record={"live_sample": 0})
    assert record([path, "--record.to", str(tmp_path / "x"), "--shard", "0/2"]) == 2
    assert "TokenRecycling carries its state from prompt to prompt" in capsys.readouterr().err
    assert run([path, "--shard", "0/2"]) == 2
    assert "learns from prompt to prompt" in capsys.readouterr().err


@pytest.mark.slow
def test_an_evaluation_of_two_shards_has_the_tokens_of_one_machine(experiment, tmp_path):
    path = experiment(generation={"max_new_tokens": 4})
    folder = tmp_path / "runs" / "tiny"
    assert run([path]) == 0
    alone = {(one.arm, *one.key): one.token_ids for one in read_records(folder / "records.jsonl")}
    shutil.rmtree(folder)
    # The last shard assembles the whole, or the plain command if a shard was killed.
    for order in (("0/2", "1/2"), ("1/2", None)):
        for shard in order:
            assert not (folder / "table.md").exists()
            assert run([path, *(("--shard", shard) if shard else ())]) == 0
        found = read_records(folder / "records.jsonl")
        assert {(one.arm, *one.key): one.token_ids for one in found} == alone
        assert (folder / "table.md").exists()
        assert not shards_in(folder)
        shutil.rmtree(folder)


@pytest.fixture
def other_processor(monkeypatch):
    def change() -> None:
        for place in ("specexp.commands.run.device_name", "specexp.replay.record.command.device_name"):
            monkeypatch.setattr(place, lambda device: "Other, AVX2")

    return change


@pytest.mark.slow
def test_shards_of_several_kinds_of_devices_are_not_put_together(experiment, tmp_path, other_processor, capsys):
    path = experiment(drafter=DRAFT, record={"live_sample": 0}, generation={"max_new_tokens": 4})
    assert run([path, "--shard", "0/2"]) == 0
    recorded(path, tmp_path / "x", "--shard", "0/2")
    other_processor()
    capsys.readouterr()
    assert run([path, "--shard", "1/2"]) == 2
    assert "were decoded on several kinds of devices (" in capsys.readouterr().err
    assert record([path, "--record.to", str(tmp_path / "x"), "--shard", "1/2"]) == 2
    sentence = "0-of-2 holds a recording that was made with another device ("
    assert sentence in capsys.readouterr().err


def test_only_one_of_several_workers_assembles_the_whole(tmp_path):
    for number in range(2):
        Shard(number, 2).folder(tmp_path).mkdir(parents=True)
    with ends_last(tmp_path, lambda part: part.name != "0-of-2") as last:
        assert not last  # the first is missing
    with ends_last(tmp_path, Path.exists) as first, ends_last(tmp_path, Path.exists) as second:
        assert (first, second) == (True, False)
        forget_shards(tmp_path)
    with ends_last(tmp_path, Path.exists) as late:
        assert not late
