"""Plain words: rules for docstrings, comments, messages, pages and names that a program can check.

A rule of ``LIMITS`` has violations: lower its limit with them. All other rules have none.
"""

import ast
import io
import re
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# without the changelog, which quotes names that are gone
PAGES = {ROOT / "README.md", *(ROOT / "docs").glob("*.md")} - {ROOT / "docs" / "changelog.md"}
CODE_BLOCK = re.compile(r"^```.*?^```", re.M | re.S)
CLAUSE = r"(What|Whatever|Who|Whom|Whose|Whoever|Which|How|Where|When|Why|Of|Those)\b"
UNCLEAR = r"\b(told(?! apart)|tells|hears?|heard|nobody|somebody(?!/)|whoever|thereby|foresee|onward)\b|—"
NAMES = r"_*(told|seen|asked|said|alone|places|heard|foresee|onward|standing|nobody)_*"
SPOKEN = "told|tells|said|says|asked|asks|heard|hears|knows|whose|nobody|somebody|behind|anew|apart|seldom"
TEST_NAMES = rf"test_(.*_)?({SPOKEN})(_.*)?"
LIMITS = {
    r"\bwhose\b": 12,
    r"\b(says|said|asks|asked|knows)\b": 3,
    r"\b(?<!there )(is|are) no\b": 2,
    r"\bbeside\b": 0,
    r"^Whether\b": 1,
    "sentences of docstrings above 30 words": 6,
    "names that do not explain themselves": 40,
    "tests with names that are not plain claims": 0,
}
BRITISH = (
    r"(?i)colour|neighbour|labelled|licence|artefact|recognis|\b(centre|grey)\b"
    r"|(quant|normal|optim|token|vector|synchron|minim|maxim)is(e|ed|es|ing)\b"
)
"""Spellings that are not American. Keys of saved files keep theirs, such as ``modelled`` and ``utilisation``."""
REPLACED = r"twin|carries|makes_do|HitCounter|record_hits|Strategy|write_whole|teach|taught|is_grouped"
"""Names for which the glossary has another word."""


def sources() -> list[Path]:
    return [path for top in ("specexp", "experiments") for path in sorted((ROOT / top).rglob("*.py"))]


@cache
def prose() -> list[tuple[str, str, str]]:
    """The kind (``docstring``, ``message``, ``comment`` or ``page``), place and text of all prose."""
    found = [("page", path.name, CODE_BLOCK.sub("", path.read_text("utf-8"))) for path in PAGES]
    for path in sources():
        code, docstrings = path.read_text("utf-8"), set[ast.expr]()
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.Expr):
                docstrings.add(node.value)  # before its value is walked
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
                kind = "docstring" if node in docstrings else "message"
                found.append((kind, f"{path.relative_to(ROOT)}:{node.lineno}", node.value.strip()))
        for token in tokenize.generate_tokens(io.StringIO(code).readline):
            if token.type == tokenize.COMMENT:
                found.append(("comment", f"{path.relative_to(ROOT)}:{token.start[0]}", token.string))
    return found


def long_sentences(kind: str) -> Iterator[str]:
    for where, text in [(where, text) for one, where, text in prose() if one == kind]:
        before_lists = re.split(r"^\s*(?:Args|Attributes|Example|Raises|Returns|Yields):$", text, flags=re.M)
        for paragraph in re.split(r"\n\s*\n|\n(?=\s*(?:-|\d\.) )|\||::\n", before_lists[0]):
            sentences = re.split(r"(?<=[.!?])\s+", " ".join(paragraph.split()))
            yield from (f"{where}: {one}" for one in sentences if len(one.split()) > 30)


@cache
def names() -> list[tuple[str, str, bool]]:
    """The place of each name that a module gives, the name, and whether it is a function's or class's."""
    given = []
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            found = [getattr(node, attribute, None) for attribute in ("name", "arg", "id", "attr")]
            name = next((one for one in found if isinstance(one, str)), None)
            if name and not isinstance(getattr(node, "ctx", None), ast.Load):
                place = f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}: {name}"
                given.append((place, name, hasattr(node, "name")))
    return given


def violations(rule: str) -> list[str]:
    if rule.startswith("sentences"):
        return list(long_sentences("docstring"))
    if rule.startswith("names"):
        return [place for place, name, _ in names() if re.fullmatch(NAMES, name, re.I)]
    if rule.startswith("tests"):
        defined = re.compile(rf"^ *(?:async )?def ({TEST_NAMES})\(", re.M)
        files = sorted((ROOT / "tests").rglob("test_*.py"))
        return [found[1] for path in files for found in defined.finditer(path.read_text(encoding="utf-8"))]
    return [where for _, where, text in prose() for _ in re.findall(rule, text)]


@pytest.mark.parametrize("rule", LIMITS)
def test_violations_become_fewer(rule: str) -> None:
    found = violations(rule)
    assert len(found) <= LIMITS[rule], found


def test_spelling_is_american() -> None:
    texts = [(where, text) for _, where, text in prose()] + [(place, name) for place, name, _ in names()]
    assert [(where, found[0]) for where, text in texts if (found := re.search(BRITISH, text))] == []


def test_docstrings_and_pages_are_plain() -> None:
    texts = Counter(kind for kind, _, _ in prose())
    assert min(texts["docstring"], texts["message"], texts["comment"]) > 500
    assert [one for one in prose() if one[0] == "docstring" and re.match(CLAUSE, one[2])] == []
    assert [(where, found[0]) for _, where, text in prose() if (found := re.search(UNCLEAR, text))] == []
    assert list(long_sentences("page")) == []


def test_no_name_is_replaced_or_shared() -> None:
    assert [place for place, name, defined in names() if defined and re.fullmatch(REPLACED, name)] == []
    files: dict[str, list[Path]] = defaultdict(list)
    for path in (ROOT / "specexp").rglob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                files[node.name].append(path)
    assert {name: shared for name, shared in files.items() if len(shared) > 1} == {}
