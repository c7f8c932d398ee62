"""One meaning for one word: class names are not shared, and no word that the glossary has replaced comes back."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
ONE_THING = {"GSM8K"}  # the benchmark, as prompts to continue and as a task to reason about
REPLACED = {
    "twin": "for_new_sequence",
    "carries": "shares_state",
    "makes_do": "accepts_fewer_candidates",
    "HitCounter": "AcceptanceCounter",
    "record_hits": "count_acceptances",
    "Strategy": "Parts",
    "write_whole": "atomic_write",
    "teach": "warm_start",
    "taught": "warm_started",
    "is_grouped": "is_multi_sequence",
}


def definitions() -> Iterator[tuple[Path, str, bool]]:
    """Every class, function and field that is defined, with its file, and whether it is a public class of a module."""
    for path in (ROOT / "specexp").rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                public = (
                    isinstance(node, ast.ClassDef) and not node.name.startswith("_") and node in tree.body
                )
                yield path.relative_to(ROOT), node.name, public
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                yield path.relative_to(ROOT), node.target.id, False


def test_no_two_classes_share_a_name() -> None:
    files: dict[str, list[str]] = defaultdict(list)
    for path, name, public in definitions():
        if public and name not in ONE_THING:
            files[name].append(str(path))
    assert files
    assert {name: where for name, where in files.items() if len(where) > 1} == {}


def test_no_replaced_word_comes_back() -> None:
    found = [f"{path}: {name}, now {REPLACED[name]}" for path, name, _ in definitions() if name in REPLACED]
    assert found == []
