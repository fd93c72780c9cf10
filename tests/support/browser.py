"""Pictures of pages, by Chromium without a window; Debian's package `chromium` has it."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def picture(url: str, file: Path) -> int:
    """Writes a picture of a page, 1280 pixels wide, and returns its size in bytes."""
    assert CHROMIUM is not None
    quiet = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
    with tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True) as profile:
        subprocess.run(
            [
                CHROMIUM,
                *quiet,
                f"--user-data-dir={profile}",
                "--window-size=1280,1100",
                f"--screenshot={file}",
                url,
            ],
            check=True,
            capture_output=True,
            timeout=120,
        )
    return file.stat().st_size
