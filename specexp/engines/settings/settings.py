"""What one engine's speculation can be told, as its deployment reads it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import fields
from typing import Any, ClassVar

from pydantic import ConfigDict

from specexp.core.checked import Checked


class SettingsError(ValueError):
    """Settings that an engine would refuse or misread; one sentence."""


class Settings(metaclass=Checked):
    """Fields of one engine, by the engine's own names. A further engine is one frozen dataclass in a file beside.

    Bounds stand in the annotations; what fields demand of one another is checked when an object is made.

    Attributes:
        engine: what the engine is called.
        read_for: where and for which version its fields were read.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    engine: ClassVar[str]
    read_for: ClassVar[str]

    @abstractmethod
    def deployed(self) -> Any:
        """What the engine's deployment loads: JSON values, or the text of a file or of flags."""

    def given(self, *but: str) -> dict[str, Any]:
        """The fields that are set, in their order.

        Args:
            but: fields to leave out.
        """
        values = {one.name: getattr(self, one.name) for one in fields(self)}  # type: ignore[arg-type]
        return {name: value for name, value in values.items() if value is not None and name not in but}

    def refuse_unless(self, field: str, allowed: Collection[str], names: Sequence[str]) -> None:
        """Refuse fields that belong to other methods.

        Args:
            field: the field that chooses the method.
            allowed: methods that the others belong to.
            names: the others.

        Raises:
            SettingsError: one of them is set.
        """
        chosen = getattr(self, field)
        for name in names:
            if chosen not in allowed and getattr(self, name) is not None:
                raise SettingsError(
                    f"{self.engine}: {name} is for {field} {' and '.join(allowed)}, and it is {chosen!r}: leave it out"
                )
