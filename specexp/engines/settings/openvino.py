"""OpenVINO GenAI: fields of the ``generation_config.json`` beside its model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import Field
from typing_extensions import override

from specexp.engines.settings.settings import Settings, SettingsError


@dataclass(frozen=True)
class OpenVinoSettings(Settings):
    """Its fields by their own names; what is None is left to OpenVINO GenAI.

    Whether a draft model or prompt lookup drafts is said when the pipeline is made, not here.

    Args:
        num_assistant_tokens: length of the chain; of a tree its nodes.
        assistant_confidence_threshold: least probability of a drafted token, by itself; the length is then dynamic.
        max_ngram_size: longest n-gram that prompt lookup looks up.
        branching_factor: branches of an EAGLE3 tree.
        tree_depth: its depth; 0 drafts a chain.

    Raises:
        SettingsError: fields contradict one another.
    """

    engine: ClassVar[str] = "openvino"
    read_for: ClassVar[str] = "OpenVINO GenAI 2026.4"

    num_assistant_tokens: Annotated[int, Field(ge=1)] | None = None
    assistant_confidence_threshold: Annotated[float, Field(gt=0, lt=1)] | None = None
    max_ngram_size: Annotated[int, Field(ge=1)] | None = None
    branching_factor: Annotated[int, Field(ge=1)] | None = None
    tree_depth: Annotated[int, Field(ge=1)] | None = None

    def __post_init__(self) -> None:
        length = self.num_assistant_tokens
        if self.assistant_confidence_threshold is not None and length is not None:
            raise SettingsError(
                "openvino: num_assistant_tokens and assistant_confidence_threshold exclude each other: give one of them"
            )
        if self.max_ngram_size is not None and length is None:
            raise SettingsError("openvino: max_ngram_size needs num_assistant_tokens, and none is given")
        if self.tree_depth is not None:
            depth, width = self.tree_depth, self.branching_factor or 1
            most = width**2 * (depth - 1) + width
            if length is None or not depth <= length <= most:
                raise SettingsError(
                    f"openvino: num_assistant_tokens is {length}; of a tree of depth {depth} and {width} "
                    f"branches, which is EAGLE3's alone, {depth} to {most} are allowed"
                )
        elif self.branching_factor is not None:
            raise SettingsError("openvino: branching_factor is for EAGLE3's tree_depth, and none is given")

    @override
    def deployed(self) -> dict[str, Any]:
        """Keys of ``generation_config.json``."""
        return self.given()
