"""Names and paths stay in the folder they belong to, foreign modules are named first, and aliases do not explode."""

import sys
import time

import pytest

from specexp.commands.run import main
from specexp.config import ConfigError, load_config

FILE = "drafter: {class_path: PromptLookup}\nbuilder: {class_path: Chain}\n"


@pytest.mark.parametrize(
    "name", ["../../x", "a/b", "..", ".", ".git", "/tmp/x", "a\\b", "c:x", "", "a\nb", "~", "-x", "x" * 200]
)
def test_a_name_is_a_plain_folder_name(write, name):
    with pytest.raises(ConfigError, match="must be a plain folder name such as tree_shape") as caught:
        load_config(write(FILE), [f"--name={name!r}" if "\n" not in name else '--name="a\\nb"'])
    assert str(caught.value).startswith("command line: name must be ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["tree_shape", "own model 2", "v1.2", "größe"])
def test_a_folder_name_is_allowed(write, name):
    assert load_config(write(FILE), ["--name", name]).get("name") == name


@pytest.mark.parametrize("key", ["output", "profile.to", "record.to", "sweep.export.to"])
def test_a_relative_path_to_write_to_stays_below_the_working_directory(write, tmp_path, key):
    space = "sweep: {space: {builder.init_args.length: {type: int, low: 1, high: 4}}}\n"
    file = write(FILE + (space if key.startswith("sweep") else ""))
    with pytest.raises(
        ConfigError, match=rf"command line: {key} must be absolute or a path below .*'runs/\.\./\.\./x'"
    ):
        load_config(file, [f"--{key}", "runs/../../x"])
    load_config(file, [f"--{key}", str(tmp_path / "x")])


def test_a_foreign_module_is_named_before_it_is_imported(write, tmp_path, monkeypatch, capsys):
    (tmp_path / "named_first.py").write_text(
        "import sys\nfrom specexp.drafters import PromptLookup as Mine\nprint('imported', file=sys.stderr)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    file = write("drafter: {class_path: named_first.Mine}\nbuilder: {class_path: specexp.builders.Chain}\n")
    assert main([str(file), "--dry-run"]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["named_first.Mine imports the module 'named_first', which is not part of specexp", "imported"]
    sys.modules.pop("named_first")


BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{b}: &{b} [{','.join(['*' + a] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)
MERGED = "a: &a {x: 1}\n" + "".join(
    f"{b}: &{b} {{<<: [{','.join(['*' + a] * 9)}]}}\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (BOMB, "its aliases expand to more than 100000 values"),
        (MERGED, "its aliases expand to more than 100000 values"),
        ("a: &a [*a]\n", "more than 100000 values"),
        ("a: " + "[" * 5000, "not valid YAML"),
        ("a: 2026-13-45\n", "not valid YAML"),
    ],
)
def test_yaml_that_would_explode_is_refused_at_once(write, text, sentence):
    start = time.process_time()
    with pytest.raises(ConfigError, match=sentence):
        load_config(write(text))
    assert time.process_time() - start < 10  # such a text once gave no answer within a minute
