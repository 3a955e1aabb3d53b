"""One release, built once for all tests that look into it, and a browser that cannot reach out."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service

from nanolab.bundle import contents, release
from nanolab.evidence import repo_root

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
    "--host-resolver-rules=MAP * ~NOTFOUND",  # the network is cut
)


@dataclass(frozen=True)
class Package:
    """The built zip and the same unpacked; read only."""

    zip: Path
    tree: Path


@pytest.fixture(scope="session")
def package(tmp_path_factory: pytest.TempPathFactory) -> Package:
    """The release of the current commit."""
    directory = tmp_path_factory.mktemp("package")
    target = directory / "nanovllm-inference-lab-v6.zip"
    release.build(repo_root(), target, "v6")
    with zipfile.ZipFile(target) as opened:
        opened.extractall(directory)
    return Package(target, directory / contents.TOP)


@pytest.fixture(scope="module")
def chromium() -> Iterator[webdriver.Chrome]:
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
