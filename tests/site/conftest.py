"""A small site with every syntax in it, built once by the real configuration, and a browser that cannot reach out."""

from __future__ import annotations

import functools
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser_lab import headless_chromium
from selenium import webdriver
from site_lab import Lab, fill_gallery, make_lab, set_viewport


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    """A lab of one's own."""
    return make_lab(tmp_path / "lab")


@pytest.fixture(scope="session")
def gallery(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """The gallery built in both languages; read only."""
    lab = make_lab(tmp_path_factory.mktemp("gallery") / "lab")
    fill_gallery(lab)
    for language in ("zh", "en"):
        done = lab.build(language)
        assert done.returncode == 0, done.stderr[-4000:]
    return lab


@pytest.fixture(scope="session")
def served(gallery: Lab) -> Iterator[str]:
    """The same site over http, for what a browser only does there."""
    handler = functools.partial(_Quiet, directory=str(gallery.root / "site"))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """The test's output is not an access log."""


@pytest.fixture(scope="session")
def chromium() -> Iterator[webdriver.Chrome]:
    """One headless browser with a fresh profile, no name resolution, and its network events logged."""
    with headless_chromium(reachable="127.0.0.1") as driver:
        yield driver


@pytest.fixture
def browser(chromium: webdriver.Chrome) -> webdriver.Chrome:
    """The browser at desktop width, light, with empty logs."""
    set_viewport(chromium, 1280, 900)
    chromium.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"media": "", "features": [{"name": "prefers-color-scheme", "value": "light"}]}
    )
    chromium.get_log("performance")
    return chromium
