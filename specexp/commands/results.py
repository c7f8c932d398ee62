"""``python -m specexp.results FILE ...``: joins tables of several machines into one page of results."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from specexp.artifacts.atomic_write import atomic_write
from specexp.base.messages import counted, near_file
from specexp.config.command import Options, answered, check_writable, current_result, say
from specexp.config.layers import ConfigError

BLOCK = re.compile(r'(<script type="application/json" id="results">\n).*?(</script>)', re.DOTALL)
_RATIO = re.compile(r"([\d.]+)x \[([\d.]+), >?([\d.]+)\]( \(([\d.]+)\))?")  # by category, tokens per step follow
_CONDITIONS = re.compile(
    r"^(specexp .*); (.*)\n(.*?), (.*); prompts of (.*); .*, (.*)\n`(.*?)`(; artifact `(.*)`)?$", re.M
)
_OVER_PLAIN = re.compile(r"(modelled )?(speedup|vs plain)")
_EXPECTED = "must be table.md of a run or confirm.md of a study"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = Options(prog="python -m specexp.results", description="Join tables into one page of results.")
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help=_EXPECTED[8:])
    parser.add_argument("--output", type=Path, default=Path("results.html"), help="the page (results.html)")
    given = parser.parse_args(arguments)
    return answered(lambda: _join(given.files, given.output))


def _join(given: Sequence[Path], page: Path) -> int:
    check_writable(page.parent, ConfigError(f"--output {page}"))
    if page.is_file() and BLOCK.search(page.read_text(encoding="utf-8", errors="replace")) is None:
        raise ConfigError(f"--output must be a new file or an earlier page of results, got {page}")
    for number, file in enumerate(given):
        if file.resolve() in [one.resolve() for one in given[:number]]:
            raise ConfigError(f"each FILE must be given once, got {file} twice")
    found = [_read(file) for file in given]
    rows = [{"run": number, **row} for number, (_, own) in enumerate(found) for row in own]
    atomic_write(page, with_results({"runs": [run for run, _ in found], "rows": rows}))
    current_result().page = str(page)
    return say(f"{page} has {counted(len(rows), 'result')} of {counted(len(found), 'file')}; open it in a browser")


def _read(file: Path) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """Return the conditions of a file's tables, and its speedups over plain decoding."""
    if not file.exists():
        raise ConfigError(f"{file} does not exist{near_file(file)}")
    if file.is_dir():
        inside = next((file / name for name in ("confirm.md", "table.md") if (file / name).is_file()), None)
        raise ConfigError(f"{file} {_EXPECTED}, but it is a folder{f': name {inside}' if inside else ''}")
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} {_EXPECTED}, but it cannot be read ({error})") from error
    lines, rows = _CONDITIONS.search(text), list(_rows(text))
    if lines is None or not rows:
        lacks = "names no conditions below its tables" if rows else "has no speedups over plain decoding"
        raise ConfigError(f"{file} {_EXPECTED}, but it {lacks}")
    commit, device, model, how, prompts, date, command, _, artifact = lines.groups()
    run = {"source": text.partition("\n")[0].strip("*# "), "model": model, "device": device, "costs": ""}
    run |= {"clock": "modelled" if "modelled" in text else "measured", "engine": f"specexp, {how}"}
    run |= {"command": command, "artifact": artifact or "", "commit": commit, "date": date}
    return run, [{**row, "task": prompts + row["task"]} for row in rows]


def _rows(text: str) -> Iterator[dict[str, Any]]:
    heads: list[str] = []
    for line in text.splitlines():
        cells = line.strip("| ").split(" | ") if line.startswith("|") else []
        heads = heads or cells if cells else []
        row = dict(zip(heads, cells, strict=False))
        for head, cell in row.items():
            kind = f": {head}" if heads[-1] == "all" != head else ""
            found = _RATIO.fullmatch(cell)
            steps = (found and found[5]) or row.get("tokens per step") or row.get("tokens/step") or ""
            if found and steps.replace(".", "", 1).isdecimal() and (kind or _OVER_PLAIN.fullmatch(head)):
                speedup = [float(found[number]) for number in (1, 2, 3)]
                method = cells[0].replace("\\|", "|")
                yield {"method": method, "task": kind, "speedup": speedup, "tokens_per_step": float(steps)}


def with_results(data: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Return the page with the data in its block of JSON, one run or row a line."""
    lists = [
        f'"{name}": [\n' + ",\n".join(json.dumps(one, ensure_ascii=False) for one in found) + "\n]"
        for name, found in data.items()
    ]
    block = ("{" + ",\n".join(lists) + "}\n").replace("</", "<\\/")
    page = files("specexp.report").joinpath("page/results.html").read_text(encoding="utf-8")
    return BLOCK.sub(lambda match: match[1] + block + match[2], page)
