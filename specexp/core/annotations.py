"""What the annotation of an argument allows: read once, checked by pydantic, and said in words."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from enum import Enum
from functools import cached_property
from os import PathLike
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError
from pydantic_core import PydanticSerializationError, to_json

from specexp.core.references import Reference

INVALID = object()
"""What :meth:`Allowed.read` gives for a value that is not allowed."""


@dataclass(frozen=True)
class PartOf:
    """Marks a value as ``class_path`` and ``init_args`` of a subclass of ``base``.

    Named by its dotted path, so that the family is imported only when such a part is given.
    """

    base: str


@dataclass(frozen=True)
class SpecOf(PartOf):
    """Marks a part that is checked and handed on as written: whoever builds it may vary it first."""


@dataclass(frozen=True)
class CallOf:
    """Marks a value as the arguments of a class, named by its dotted path."""

    component: str


class Allowed:
    """What an annotation allows.

    Args:
        annotation: with its bounds, as in ``Annotated[int, Field(ge=1)]``.

    Example:
        >>> Allowed(int | None).words
        'an integer, or null'
    """

    def __init__(self, annotation: Any) -> None:
        self.annotation = annotation

    @cached_property
    def members(self) -> tuple[Allowed, ...]:
        """The alternatives of a union; the annotation itself if it is none."""
        if get_origin(self.annotation) in (Union, types.UnionType):
            return tuple(inner for one in get_args(self.annotation) for inner in Allowed(one).members)
        return (self,)

    @cached_property
    def kind(self) -> Any:
        """The annotation without its metadata, an alias of the language's as what it stands for."""
        kind = self.annotation.__origin__ if hasattr(self.annotation, "__metadata__") else self.annotation
        if (alias := getattr(kind, "__value__", None)) is not None:  # numpy's NDArray is one from 2.5 on
            return alias[get_args(kind)] if get_args(kind) else alias
        return kind

    @cached_property
    def mark(self) -> PartOf | CallOf | None:
        """The marker of a part or a call among the metadata."""
        extras = getattr(self.annotation, "__metadata__", ())
        return next((extra for extra in extras if isinstance(extra, PartOf | CallOf)), None)

    @cached_property
    def reference(self) -> Reference | None:
        """How a value may be given by reference; None where it may not."""
        extras = (extra for one in self.members for extra in getattr(one.annotation, "__metadata__", ()))
        return next((extra for extra in extras if isinstance(extra, Reference)), None)

    @cached_property
    def is_part(self) -> bool:
        """Whether a value is given as ``class_path`` and ``init_args``."""
        if isinstance(self.mark, PartOf):
            return True
        kind = self.kind
        return self.reference is None and (
            isinstance(kind, type)
            and get_origin(kind) is None
            and kind.__module__ not in ("builtins", "pathlib", "datetime", "decimal")
            and not is_dataclass(kind)
            and not issubclass(kind, Enum | PathLike)
            and kind is not Any
        )

    @cached_property
    def is_section(self) -> bool:
        """Whether a value is a mapping of the fields of a dataclass."""
        return self.reference is None and isinstance(self.kind, type) and is_dataclass(self.kind)

    @cached_property
    def is_list(self) -> bool:
        """Whether it is a list of something."""
        return get_origin(self.kind) in (list, Sequence)

    @cached_property
    def is_mapping(self) -> bool:
        """Whether it is a mapping to something."""
        return get_origin(self.kind) in (dict, Mapping)

    @cached_property
    def inner(self) -> Allowed | None:
        """What the items of a list or the values of a mapping may be."""
        return Allowed(get_args(self.kind)[-1]) if self.is_list or self.is_mapping else None

    @cached_property
    def is_nested(self) -> bool:
        """Whether parts or sections are inside, which are read by their own signatures."""
        return any(
            one.is_part or one.mark or one.is_section or (one.inner is not None and one.inner.is_nested)
            for one in self.members
        )

    @cached_property
    def choices(self) -> tuple[Any, ...]:
        """Values that a ``Literal`` lists."""
        found = (get_args(one.kind) for one in self.members if get_origin(one.kind) is Literal)
        return tuple(choice for choices in found for choice in choices)

    @cached_property
    def _kinds(self) -> frozenset[Any]:
        return frozenset(
            one.kind
            for one in self.members
            if one.mark is None and (isinstance(one.kind, type) or one.kind is Any)
        )

    @cached_property
    def takes_null(self) -> bool:
        """Whether null is allowed."""
        return not self._kinds.isdisjoint((type(None), Any))

    @cached_property
    def takes_text(self) -> bool:
        """Whether any text is allowed."""
        return str in self._kinds

    @cached_property
    def _adapter(self) -> TypeAdapter[Any] | None:
        """None of a type that only Python code can give."""
        try:
            return TypeAdapter(self.annotation)
        except (PydanticSchemaGenerationError, PydanticUserError):
            return None

    @property
    def is_checked(self) -> bool:
        """Whether pydantic reads it, and not everything passes."""
        return self._adapter is not None and Any not in self._kinds

    def read(self, value: Any) -> Any:
        """A value without parts inside, as the argument takes it, or :data:`INVALID`.

        Strictly, as of a JSON file: ``"8"`` and ``true`` are no integers, 8 is a float as well.
        """
        if Any in self._kinds:
            return value
        if value is None:
            return None if self.takes_null else INVALID
        if self.reference is not None:
            if isinstance(value, str) or self._is_meant(value):
                return value
            if not any(one.is_list for one in self.members):
                return INVALID
        if self._adapter is None:
            return value
        if (isinstance(value, bool) and not self._takes(value)) or value != value:  # nan passes every bound
            return INVALID
        try:
            return self._adapter.validate_json(to_json(value), strict=True)
        except (ValidationError, PydanticSerializationError):
            return INVALID

    def takes(self, value: Any) -> bool:
        """Whether Python code may give a value: what a file may say, and the objects that it can only describe.

        Other sequences count as lists and numpy's numbers as numbers; an iterator is not looked into.
        """
        if getattr(value, "ndim", None) == 0:
            value = value.item()
        return hasattr(value, "__next__") or any(one._takes_one(value) for one in self.members)

    def _takes_one(self, value: Any) -> bool:
        if value is None or self.kind is Any:
            return self.takes_null
        if self.reference is not None and isinstance(value, str):  # a path is followed by who reads a file
            return False
        if self.is_list and (self.reference is None or not self._is_meant(value)):
            if not isinstance(value, Iterable) or isinstance(value, str | bytes | Mapping):
                return False
            value, inner = list(value), self.inner
            if inner is not None and (inner.is_nested or self.read(value) is INVALID):
                return (bool(value) or inner.is_nested) and all(inner.takes(item) for item in value)
        kind = get_origin(self.kind) or self.kind
        if kind in _IN_FILES or not isinstance(kind, type):
            return self.read(value) is not INVALID
        try:
            return isinstance(value, kind) or (not self.is_part and self.read(value) is not INVALID)
        except TypeError:  # a protocol that is not checked
            return True

    def culprit(
        self, value: Any, fits: Callable[[Allowed, Any], bool]
    ) -> tuple[tuple[str, ...], Any, Allowed]:
        """Of a value that is not allowed the first one inside it that is not: the steps to it, itself, what is allowed.

        Args:
            value: Any value.
            fits: Whether a value is allowed.
        """
        for one in self.members:
            items: Iterable[tuple[Any, Any]] = ()
            if one.is_list and isinstance(value, list | tuple):
                items = enumerate(value)
            elif one.is_mapping and isinstance(value, Mapping):
                items = value.items()
            for at, item in items:
                if one.inner is not None and not fits(one.inner, item):
                    steps, found, allowed = one.inner.culprit(item, fits)
                    return (str(at), *steps), found, allowed
        return (), value, self

    def _is_meant(self, value: Any) -> bool:
        """Whether it is the object that a reference stands for, given in Python."""
        kinds = (get_origin(one.kind) or one.kind for one in self.members)
        return any(isinstance(kind, type) and kind is not list and isinstance(value, kind) for kind in kinds)

    def _takes(self, value: bool) -> bool:
        return bool in self._kinds or any(choice is value for choice in self.choices)

    @cached_property
    def words(self) -> str:
        """What is allowed in a file: ``an integer of at least 1 and at most 64, or null``."""
        return self._words(python=False)

    @cached_property
    def words_in_python(self) -> str:
        """What is allowed in Python code, where nothing is described or referred to."""
        return self._words(python=True)

    def _words(self, python: bool) -> str:
        alternatives = dict.fromkeys(one._own_words(python) for one in self.members)
        return ", or ".join(sorted(alternatives, key=lambda text: text in ("null", "None")))

    def _own_words(self, python: bool) -> str:
        if self.reference is not None and not python:
            path = f"the path of {'an' if self.reference.kind[0] in 'aeiou' else 'a'} {self.reference.kind}"
            return f"{Allowed(self.kind).words}, or {path}" if self.is_list else path
        if self.is_part:
            name = self.mark.base.rpartition(".")[2] if isinstance(self.mark, PartOf) else self.kind.__name__
            return f"a {name}" if python else f"a {name} given as class_path and init_args"
        if get_origin(self.kind) is Literal:
            return "one of " + ", ".join(str(choice) for choice in self.choices)
        if self.is_list:
            most = self._limit("max_length")
            return ("a list" if most is None else f"a list of at most {most}") + (
                f", each {self.inner._words(python)}"
                if self.inner is not None and self.inner.kind is not Any
                else ""
            )
        if self.is_mapping and (key := Allowed(get_args(self.kind)[0])).kind not in (str, Any):
            return f"a mapping in which every key is {key.words}"
        if self.is_mapping or self.is_section or self.mark:
            return "a mapping"
        if python and self.kind in (bool, type(None)):
            return "True or False" if self.kind is bool else "None"
        kind = Callable if get_origin(self.kind) is Callable else self.kind
        text = _NAMES.get(kind, getattr(kind, "__name__", str(kind)))
        limits = " and ".join(f"{word} {limit:g}" for word, limit in self.bounds.items())
        return f"{text} of {limits}" if limits else text

    @cached_property
    def bounds(self) -> dict[str, float]:
        """Limits by what they are called: ``at least``, ``more than``, ``at most``, ``less than``."""
        return {word: limit for name, word in _BOUNDS if (limit := self._limit(name)) is not None}

    def allows_length(self, items: list[Any]) -> bool:
        """Whether a list may have as many items, which is checked before any of them is."""
        least, most = self._limit("min_length"), self._limit("max_length")
        return (least is None or len(items) >= least) and (most is None or len(items) <= most)

    def _limit(self, name: str) -> float | None:
        extras = (
            item
            for extra in getattr(self.annotation, "__metadata__", ())
            for item in (extra, *getattr(extra, "metadata", ()))
        )
        return next((limit for extra in extras if (limit := getattr(extra, name, None)) is not None), None)


_NAMES = {int: "an integer", float: "a number", str: "a text", bool: "true or false", type(None): "null",
          dict: "a mapping", list: "a list", Any: "a value", Callable: "a function"}  # fmt: skip
_IN_FILES = (bool, int, float, str, list, dict, Sequence, Mapping)
_BOUNDS = (("ge", "at least"), ("gt", "more than"), ("le", "at most"), ("lt", "less than"))
