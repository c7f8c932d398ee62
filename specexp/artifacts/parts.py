"""Parts of a decoder from their ``class_path`` and ``init_args``: ``parts.json`` of an artifact."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from specexp.artifacts.error import ArtifactError
from specexp.wording import did_you_mean

if TYPE_CHECKING:
    from specexp.builders import TreeBuilder
    from specexp.controllers import Controller
    from specexp.drafters import Drafter
    from specexp.verifiers import Verifier

PARTS = "parts.json"
FAMILIES = {
    "drafter": "Drafter",
    "builder": "TreeBuilder",
    "verifier": "Verifier",
    "controller": "Controller",
}
"""Families of parts and the class every member derives from; ``specexp.<family>s`` holds it."""


class Parts(NamedTuple):
    """What :class:`specexp.Decoder` takes after the target: ``Decoder(target, *parts)``."""

    drafter: Drafter | None
    builder: TreeBuilder | None
    verifier: Verifier | None = None
    controller: Controller | None = None


def check_parts(content: Any, where: str) -> dict[str, Any]:
    """The content of ``parts.json``: null or ``{"class_path": ..., "init_args": {...}}`` for each family.

    Raises:
        ArtifactError: it is not that; ``where`` names the file.
    """
    if not isinstance(content, dict):
        raise ArtifactError(
            f"{where} is no object; one with drafter, builder, verifier and controller is expected"
        )
    for family, spec in content.items():
        if family not in FAMILIES:
            raise ArtifactError(f"{where} has the unknown part {family!r}{did_you_mean(family, FAMILIES)}")
        if spec is None:
            continue
        if not isinstance(spec, dict) or not isinstance(spec.get("class_path"), str):
            raise ArtifactError(f"{where}: {family}.class_path is missing; the name of a class is expected")
        if not isinstance(spec.get("init_args", {}), dict):
            raise ArtifactError(f"{where}: {family}.init_args is no object; arguments by name are expected")
        if unknown := sorted(spec.keys() - {"class_path", "init_args"}):
            raise ArtifactError(f"{where}: {family} has the unknown field {unknown[0]!r}")
    return content


def instantiate(family: str, spec: Mapping[str, Any], where: str) -> Any:
    """The part that a specification describes.

    Only a class of the family is ever called: any other ``class_path`` is refused.

    Args:
        family: ``drafter``, ``builder``, ``verifier`` or ``controller``.
        spec: ``class_path``, short for our own parts, and ``init_args``.
        where: file, for messages.

    Raises:
        ArtifactError: the class does not exist, is of another family, or refuses its arguments.
    """
    from jsonargparse import ArgumentParser

    home = import_module(f"specexp.{family}s")
    parser = ArgumentParser(exit_on_error=False)
    try:
        parser.add_subclass_arguments(getattr(home, FAMILIES[family]), family)
        with warnings.catch_warnings(action="ignore"):  # what jsonargparse thinks of a path it then refuses
            return parser.instantiate(parser.parse_object({family: dict(spec)}))[family]
    except (Exception, SystemExit) as error:
        short = spec["class_path"].rpartition(".")[2]
        known = [name for name in vars(home) if name in getattr(home, "__all__", ())]
        hint = "" if short in known else did_you_mean(short, known)
        raise ArtifactError(
            f"{where}: {family} {spec['class_path']!r} cannot be made ({_reason(error)}){hint}"
        ) from error


def _reason(error: BaseException) -> str:
    """The one telling line of jsonargparse's tree of reasons, led by the keys down to it."""
    text = str(error).partition("Errors:\n")[2] or str(error)
    lines = [line.strip(" -") for line in text.partition("- Expected a <class 'NoneType'>")[0].splitlines()]
    told = [line for line in lines if line and not line.startswith(("For further information", "Parser key"))]
    keys = re.findall(r'Parser key "(\w+)"', text)
    return ": ".join([*keys, (told or [type(error).__name__])[-1].split(" [type=")[0]])
