"""A study continues only if specexp made it, and only with the prompts' tokens that it measured."""

from types import SimpleNamespace

import optuna
import pytest
from helpers.fake_bench import opened, settings
from optuna.storages import JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend

from specexp.sweep import storage as storages
from specexp.sweep.bench import Bench
from specexp.sweep.storage import open_storage
from specexp.sweep.study_config import StudyError
from specexp.sweep.workers import CONFIRMATIONS, open_confirmations


@pytest.fixture(params=["database", "journal"])
def chosen(request, tmp_path):
    url = f"sqlite:///{tmp_path / 'studies.db'}" if request.param == "database" else None
    return settings(storage=url)


def theirs(chosen, folder):
    """The storage as another program opens it."""
    if chosen.storage is None:
        return JournalStorage(JournalFileBackend(str(folder / "journal.log")))
    return RDBStorage(chosen.storage)


@pytest.mark.slow
@pytest.mark.parametrize("direction", ["maximize", "minimize"])
def test_a_study_of_another_program_is_refused_and_stays_as_it_is(chosen, tmp_path, direction):
    study = optuna.create_study(storage=theirs(chosen, tmp_path), study_name="fake", direction=direction)
    study.optimize(lambda trial: trial.suggest_int("x", 1, 8), n_trials=2)
    with pytest.raises(StudyError, match=r"study 'fake' that specexp did not make: .*--name NEW"):
        opened(chosen, tmp_path)
    again = optuna.load_study(storage=theirs(chosen, tmp_path), study_name="fake")
    assert (len(again.trials), again.user_attrs, again.direction.name) == (2, {}, direction.upper())


def test_a_confirmation_study_of_another_program_is_refused(chosen, tmp_path):
    study = optuna.create_study(storage=theirs(chosen, tmp_path), study_name=f"fake{CONFIRMATIONS}")
    study.optimize(lambda trial: trial.suggest_int("x", 1, 8), n_trials=1)
    with pytest.raises(StudyError, match="specexp did not make"):
        open_confirmations("fake", open_storage(chosen.storage, tmp_path))


def test_an_empty_study_of_another_program_in_a_database_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(storages, "MARK_SECONDS", 0.0)
    chosen = settings(storage=f"sqlite:///{tmp_path / 'studies.db'}")
    optuna.create_study(storage=chosen.storage, study_name="fake", direction="maximize")
    with pytest.raises(StudyError, match="specexp did not make"):
        opened(chosen, tmp_path)


def test_a_process_that_died_before_it_marked_its_study_leaves_one_that_continues(tmp_path):
    chosen = settings()
    optuna.create_study(storage=theirs(chosen, tmp_path), study_name="fake", direction="maximize")
    assert "made_of" in opened(chosen, tmp_path).user_attrs


class Data:
    def __init__(self, digest, varying):
        self.digest, self.workload = digest, self
        self.preparation, self.varying = self, varying


class Rendering(Bench):
    """A study whose prompts have these digests, by stage; None is the search."""

    def __init__(self, digests, varying=""):
        self.digests, self.varying = digests, varying
        stages = tuple(one for one in digests if one is not None)
        self.config = SimpleNamespace(sweep=SimpleNamespace(stages=stages), data_of=lambda stage: stage)

    def data(self, stage=None):
        return Data(self.digests[stage], self.varying)


def test_a_study_continues_only_with_the_tokens_that_it_measured(tmp_path):
    trials = opened(settings(), tmp_path)
    Rendering({None: "a", "confirm": "b"}).check_rendered(trials)
    Rendering({None: "a", "confirm": "b"}).check_rendered(trials)
    Rendering({None: "a", "learn": "c"}).check_rendered(trials)  # a new stage
    for wrong in ({None: "x", "confirm": "b"}, {None: "a", "confirm": "x"}):
        with pytest.raises(StudyError, match=r"other tokens, because the template prints the time: .*--name NEW"):
            Rendering(wrong, "the template prints the time").check_rendered(trials)
    assert set(trials.user_attrs["rendered"].values()) == {"a", "b", "c"}
