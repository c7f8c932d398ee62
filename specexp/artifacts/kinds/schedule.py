"""A tuned execution strategy: how several sequences are decoded together, and the parts of each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from specexp.artifacts.artifact import Artifact
from specexp.artifacts.error import ArtifactError
from specexp.artifacts.parts import PARTS
from specexp.config import ConfigError
from specexp.config.annotations import PartOf
from specexp.config.check import Checker
from specexp.core.messages import type_and_line
from specexp.core.parts import Parts

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from specexp.core.language_model import LanguageModel
    from specexp.scheduling import Execution, Executor

SCHEDULE = "schedule.json"
_FAMILY = Annotated[Any, PartOf("specexp.scheduling.Execution")]
_PLAIN = ("Serial", "specexp.scheduling.Serial", "specexp.scheduling.serial.Serial")


class ScheduleArtifact(Artifact):
    """``schedule.json``: an execution strategy as ``class_path`` and ``init_args``, e.g. ``{"class_path": "Scheduled",
    "init_args": {"n": 3}}``.

    ``parts.json`` holds what every sequence is decoded with; the draft model itself is the deployment's. A schedule
    runs in our own loop, also inside Hugging Face's ``generate``. Engines that batch requests themselves take no
    strategy from outside: of a schedule only the drafts can be exported.

    Attributes:
        execution: the strategy.
        schedule: the checked content of the file, defaults filled in.

    Example:
        >>> schedule = load_artifact("artifacts/schedule/best")  # doctest: +SKIP
        >>> with schedule.open(pair.target, pair.draft) as executor:  # doctest: +SKIP
        ...     run = executor.run([Job(prompt, sequence=number) for number in range(6)])
    """

    kind = "schedule"
    required = (SCHEDULE,)

    @classmethod
    def payloads_of(cls, parts: Mapping[str, Any], attributes: Mapping[str, Any]) -> dict[str, Any] | None:
        """Of a candidate with an execution strategy under which something is drafted."""
        execution = attributes.get("execution")
        if execution is None or execution["class_path"] in _PLAIN or parts.get("drafter") is None:
            return None
        return {SCHEDULE: dict(execution), PARTS: dict(parts)}

    def read(self, payloads: Mapping[str, Any]) -> None:
        """A strategy whose constructor takes its arguments."""
        from specexp.scheduling import Serial

        content, where = payloads[SCHEDULE], self._where(SCHEDULE)
        if not isinstance(content, dict):
            raise ArtifactError(f"{where} is no object; one with class_path and init_args is expected")
        checker = Checker(lambda key: where)
        try:
            self.schedule: dict[str, Any] = checker.value(content, _FAMILY, ())
            self.execution: Execution = checker.build(self.schedule, _FAMILY, ())
        except ConfigError as error:
            raise ArtifactError(str(error)) from error
        except (Exception, SystemExit) as error:  # of a module that is imported, or a constructor
            raise ArtifactError(f"{where}: the strategy cannot be made ({type_and_line(error)})") from error
        if isinstance(self.execution, Serial):
            raise ArtifactError(
                f"{where}: class_path is {content['class_path']!r}, plain decoding; a strategy that drafts is "
                "expected, such as Scheduled"
            )

    def open(self, target: PreTrainedModel | LanguageModel, draft: PreTrainedModel | None = None) -> Executor:
        """The strategy at work on the model this artifact belongs to. Close it, or use it in a ``with`` statement.

        Every executor has parts of its own, in their initial state; what one learns no other one knows.

        Args:
            target: the model.
            draft: the draft model, for a drafter that needs one.

        Raises:
            ArtifactError: it belongs to another model, or a part is not recorded or cannot be made.
            ValueError: the drafter needs a draft model and none is given, or the parts cannot work so.
        """
        from specexp.core.language_model import LanguageModel

        model = target if isinstance(target, LanguageModel) else LanguageModel(target)
        self.check(model.model)
        return self.execution.open(model, self.new_parts(draft))

    def new_parts(self, draft: PreTrainedModel | None = None) -> Parts:
        """Parts in their initial state, made anew at every call.

        Args:
            draft: the draft model, for a drafter that needs one.

        Raises:
            ArtifactError: a part is not recorded or cannot be made.
            ValueError: the drafter needs a draft model and none is given.
        """
        parts = Parts(
            self._needed("drafter"), self._needed("builder"), self._made("verifier"), self._made("controller")
        )
        assert parts.drafter is not None
        parts.drafter.use_draft_model(draft)
        return parts
