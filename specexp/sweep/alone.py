"""The confirmation of a study that several workers share: one of them runs it, once nobody measures any more."""

from __future__ import annotations

import time
from collections.abc import Callable

from optuna import Study

from specexp.config.sweep import Sweep
from specexp.sweep.backend import StudyBackend
from specexp.sweep.concluded import CONCLUDED_BY, Concluded
from specexp.sweep.conclusion import conclude, concluded, digest_of_end
from specexp.sweep.database import locked
from specexp.sweep.output import StudyOutput
from specexp.sweep.worker import known_waiting, others_running

SECONDS = 2.0
"""Between two looks at who still measures."""


class _TakenOverError(Exception):
    """Another worker confirms, or confirmed, what this one has just measured."""


def conclude_alone(
    study: Study, settings: Sweep, backend: StudyBackend, output: StudyOutput, search: Callable[[], None]
) -> Concluded | None:
    """Conclude a searched study unless another worker does; None where one does, or did.

    A worker that dies over it gives the study back: whoever comes next concludes it. One whose lock the database lost
    meanwhile, in a restart, exports only if nobody else took it.

    Args:
        study: The study, searched.
        settings: Its sweep section, with a confirmation.
        backend: Who answered the search.
        output: Where the results go.
        search: Measures the known configurations of workers that died meanwhile.

    Raises:
        StudyError: As :func:`~specexp.sweep.conclusion.conclude`.
        OSError: Something cannot be written.
    """
    if settings.storage is None:
        return conclude(study, settings, backend, output)
    with locked(settings.storage, f"{study.study_name}: confirmation", wait=False) as still_held:
        if still_held is None:
            output.say("Another worker confirms the best trials.")
            return None
        others = others_running(study)
        if others:
            output.say("The best trials are confirmed once the other workers have measured their last.")
        while others or known_waiting(study):
            while others:
                time.sleep(SECONDS)
                others = others_running(study)
            search()  # even if nothing is left: trials.csv then has the last trials of the other workers
            others = others_running(study)
        known = concluded(study, settings, backend.study_config, output)
        if known is not None:
            return known
        end = digest_of_end(study, settings, backend.study_config)
        earlier = study.user_attrs.get(CONCLUDED_BY, {})
        if earlier.get("of") == end and settings.confirm is not None and not settings.confirm.again:
            output.say(f"The best trials were confirmed by {earlier['worker']}, in {earlier['folder']}.")
            return None

        def check_mine() -> None:
            if not still_held() or study.user_attrs.get(CONCLUDED_BY, {}) != earlier:
                raise _TakenOverError

        try:
            return conclude(study, settings, backend, output, check_mine)
        except _TakenOverError:
            output.say(
                "The database was restarted meanwhile, and another worker took over: it confirms and exports, and what "
                "was confirmed here is left."
            )
            return None
