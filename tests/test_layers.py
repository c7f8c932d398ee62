"""The shape of the code: imports go to lower layers and make no cycle, and the whole keeps its size.

Imports inside functions and for type checking count too.
"""

import ast
import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[1]
COMMANDS = {"sweep", "fit", "verify", "profile", "deploy"}
LAYERS = [
    {"base"},
    {"core"},
    {"drafters", "builders", "verifiers", "controllers", "constraints"},
    {"models", "scheduling", "artifacts", "tracking", "data"},
    {"config"},
    {"bench"},
    {"report"},
    {"cluster"},
    {"engines", "replay"},
    {"servers"},
    COMMANDS,
    {"commands"},
]
LINES, LONGEST = 59_000, 700
"""The most lines of Python and C++ in ``specexp/``, and of one file: a guard against growth without a thought."""
ENTRY = {"specexp.__main__", "specexp.base.start"}
"""Modules that the shims of commands import."""
FLOOR = {package: floor for floor, packages in enumerate(LAYERS) for package in packages}


def imports(*tops: str) -> set[tuple[str, str]]:
    """Pairs of an importing and an imported module; ``from a import b`` is of ``a.b`` if that is one, or private."""
    files = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for top in tops or ("specexp",)
        for path in (ROOT / top).rglob("*.py")
    }
    pairs = set()
    for module, path in files.items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                pairs |= {(module, alias.name) for alias in node.names if alias.name in files}
            elif isinstance(node, ast.ImportFrom):
                assert not node.level, f"{path}: imports are absolute"
                for alias in node.names if node.module in files else ():
                    name = f"{node.module}.{alias.name}"
                    pairs.add((module, name if name in files or alias.name.startswith("_") else node.module))
    return {(importer, imported) for importer, imported in pairs if importer not in {"specexp", imported}}


def broken_rule(importer: str, imported: str) -> str | None:
    """The rule an import breaks by itself, or None."""
    above, below = ((*name.split("."), "")[1] for name in (importer, imported))
    home = [part.startswith("_") and not part.startswith("__") for part in imported.split(".")]
    if True in home and not f"{importer}.".startswith(".".join(imported.split(".")[: home.index(True)]) + "."):
        return "a private module belongs to its package"
    if above == below or imported in ENTRY:
        return None
    if "testing" in (above, below):
        return None if above == "testing" and below not in COMMANDS else "only tests import testing"
    if above in COMMANDS and below in COMMANDS:
        return "no command imports a command"
    if FLOOR.get(above, -1) <= FLOOR.get(below, len(LAYERS)):
        return "arrows go to lower layers, never upward or sideways"
    return None


def cycle(pairs: set[tuple[str, str]]) -> list[str]:
    """The modules on a cycle of imports, in order; empty if there is none."""
    below: dict[str, list[str]] = {}
    for importer, imported in sorted(pairs):
        below.setdefault(importer, []).append(imported)
    try:
        TopologicalSorter(below).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_imports_keep_to_the_layers_and_make_no_cycle() -> None:
    pairs = imports()
    rules = {f"{above} -> {below}": broken_rule(above, below) for above, below in pairs}
    assert cycle(imports("specexp", "experiments")) == []
    broken = sorted(f"{name}: {rule}" for name, rule in rules.items() if rule)
    assert not broken, "\n".join(broken)


def test_the_page_on_the_code_describes_every_package() -> None:
    page = (ROOT / "docs" / "code.md").read_text(encoding="utf-8")
    assert [package for package in FLOOR if not re.search(rf"^  .*\b{package}/", page, re.MULTILINE)] == []


def test_the_project_keeps_its_size() -> None:
    sizes = {
        str(path.relative_to(ROOT)): path.read_text(encoding="utf-8").count("\n")
        for path in (ROOT / "specexp").rglob("*")
        if path.suffix in {".py", ".cpp", ".h"}
    }
    print(f"specexp/ has {sum(sizes.values())} of {LINES} lines in {len(sizes)} files")
    assert sum(sizes.values()) <= LINES
    assert {path: lines for path, lines in sizes.items() if lines > LONGEST} == {}
