"""Sphinx: pages in MyST Markdown, and a reference that is written from the signatures before every build."""

import importlib.metadata
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from reference import write_reference  # noqa: E402

write_reference(HERE / "reference")

project = "specexp"
release = importlib.metadata.version("specexp")
extensions = ["myst_parser"]
myst_enable_extensions = ["deflist", "colon_fence"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = "specexp"
html_show_copyright = False
html_theme_options = {"navigation_with_keys": True}
