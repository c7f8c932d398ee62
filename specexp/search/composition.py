"""Candidates as overrides of an experiment's composition."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specexp.config import Config, ConfigError, apply_overrides, build_strategy, check_key
from specexp.search.study import digest_of

if TYPE_CHECKING:
    from specexp.decoder import Decoder
    from specexp.evaluation import Generation
    from specexp.models.language_model import LanguageModel
    from specexp.models.pair import ModelPair
    from specexp.verifiers import Verifier

PARTS = ("drafter", "builder", "controller")
SHARED = ("pair", "data", "verifier", "generation")


class Composition:
    """The experiment's composition, and every candidate of a study as overrides of it.

    Args:
        config: the resolved experiment.
        hits: hits file of the study's recording: the ``hits`` of every :class:`FittedTree` that names none.
    """

    def __init__(self, config: Config, hits: Path | None = None) -> None:
        self.config = config
        self.hits = hits
