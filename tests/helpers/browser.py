"""Look at a page in a real browser: a script writes its findings into the page's title."""

import re
import shutil
import subprocess
from pathlib import Path

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")


def title_after(script: str, page: Path, folder: Path, width: int, dark: bool) -> str:
    """Return the title that ``script``, put at the end of the page, sets after the word LOOKED.

    Asserts that the browser's console is empty.
    """
    looked = folder / "looked.html"
    before, end, after = page.read_text(encoding="utf-8").rpartition("</body>")
    looked.write_text(before + script + end + after, encoding="utf-8")
    assert BROWSER is not None
    ran = subprocess.run(
        [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=10000", "--dump-dom",
         "--enable-logging=stderr", f"--window-size={width},900",
         f"--blink-settings=preferredColorScheme={0 if dark else 1}", looked.as_uri()],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert [line for line in ran.stderr.splitlines() if ":CONSOLE" in line] == []
    title = re.search(r"<title>LOOKED(.*?)</title>", ran.stdout)
    assert title is not None
    return title[1]
