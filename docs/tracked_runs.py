"""Draw the offline W&B runs of a study for ``measuring.md``: python docs/tracked_runs.py runs/tree_shape"""

import json
import subprocess
import sys
from pathlib import Path

from specexp.report.pictures import new_figure, png

COLUMNS = {
    "speedup": "speedup",
    "nodes": "nodes",
    "tokens_per_step": "tokens/step",
    "tokens_per_second": "tokens/s",
}
PICTURE = Path(__file__).with_name("pictures") / "runs.png"


def runs_of(folder: Path) -> list[dict]:
    """Return name, configuration and summary of the offline runs of a study, by name."""
    command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", "--summary"]
    found = [
        json.loads(subprocess.run([*command, str(run)], check=True, capture_output=True, text=True).stdout)
        for run in (folder / "wandb").glob("offline-run-*")
    ]
    return sorted(found, key=lambda run: str(run["name"]))


def main() -> None:
    """Write the picture."""
    heads = ["run", "parts", "device", *COLUMNS.values()]
    rows = []
    for run in (one for one in runs_of(Path(sys.argv[1])) if "trial" in one["config"]):
        figures = [run["summary"].get(name) for name in COLUMNS]
        shown = ["" if one is None else f"{one:.0f}" if one >= 100 else f"{one:.3g}" for one in figures]
        rows.append([run["name"], run["config"]["parts"], run["config"]["device_name"], *shown])
    figure, [[axes]] = new_figure(11, 0.6 + 0.28 * len(rows), "W&B runs of a study: one a trial", dpi=100)
    axes.axis("off")
    table = axes.table(
        rows, colLabels=heads, cellLoc="left", colWidths=[0.42, 0.22, 0.1, *[0.07] * 4], bbox=[0, 0, 1, 1]
    )
    table.auto_set_font_size(False)
    table.set_fontsize(8)
    PICTURE.write_bytes(png(figure))


if __name__ == "__main__":
    main()
