"""Building the manual in a clean tree: both languages, strictly, from disk alone."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from nanolab.errors import LabError

__all__ = ["CONFIGS", "build", "copy"]

CONFIGS = {"zh": "mkdocs.yml", "en": "mkdocs.en.yml"}  # the first build cleans site/, so the order matters
# Of no use to a reader of the files: source maps, the list for search engines, word splitters of other languages.
_LEFT_OUT = ("*.map", "sitemap.xml", "sitemap.xml.gz", "wordcut.js", "tinyseg.js")
# The rest of the caller's environment could change a page.
_KEPT = ("PATH", "HOME", "TMPDIR", "OMP_NUM_THREADS", "LD_LIBRARY_PATH", "VIRTUAL_ENV")


def build(root: Path, epoch: int) -> Path:
    """Build `root/site` in both languages; the same sources and date give the same files."""
    environment = {name: os.environ[name] for name in _KEPT if name in os.environ}
    environment |= {"SOURCE_DATE_EPOCH": str(epoch), "TZ": "UTC", "LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "0"}
    environment |= {"NO_MKDOCS_2_WARNING": "1", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(root / "src")}
    for config in CONFIGS.values():
        command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", config]
        done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise LabError(
                f"the manual does not build: mkdocs build --strict -f {config} ended with {done.returncode}\n"
                + done.stderr[-4000:]
            )
    return root / "site"


def copy(site: Path, destination: Path) -> None:
    """Copy the built site without what only a web server needs."""
    shutil.copytree(site, destination, ignore=shutil.ignore_patterns(*_LEFT_OUT))
