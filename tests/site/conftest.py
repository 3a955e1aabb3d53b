"""A small site with every syntax in it, built once by the real configuration, and a browser that cannot reach out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from site_lab import Lab, fill_gallery, make_lab, set_viewport

CHROMIUM, CHROMEDRIVER = "/usr/bin/chromium", "/usr/bin/chromedriver"
CHROMIUM_FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",  # the network is cut
)


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
def chromium() -> Iterator[webdriver.Chrome]:
    """One headless browser with a fresh profile, no name resolution, and its network events logged."""
    if not Path(CHROMIUM).exists() or not Path(CHROMEDRIVER).exists():
        pytest.skip("no Chromium: apt-get install chromium chromium-driver fonts-noto-cjk")
    options = Options()
    options.binary_location = CHROMIUM
    for flag in CHROMIUM_FLAGS:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(CHROMEDRIVER))
    driver.set_page_load_timeout(60)
    yield driver
    driver.quit()


@pytest.fixture
def browser(chromium: webdriver.Chrome) -> webdriver.Chrome:
    """The browser at desktop width, light, with empty logs."""
    set_viewport(chromium, 1280, 900)
    chromium.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"media": "", "features": [{"name": "prefers-color-scheme", "value": "light"}]}
    )
    chromium.get_log("performance")
    return chromium
