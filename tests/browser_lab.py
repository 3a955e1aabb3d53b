"""A headless Chromium for the tests that look at pages: the network cut, its requests and its console on record."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.support.ui import WebDriverWait

CHROMIUM, CHROMEDRIVER = "/usr/bin/chromium", "/usr/bin/chromedriver"
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@contextmanager
def headless_chromium(reachable: str = "") -> Iterator[webdriver.Chrome]:
    """One browser with a fresh profile that resolves no name but `reachable`; a host without one skips the test."""
    if not Path(CHROMIUM).exists() or not Path(CHROMEDRIVER).exists():
        pytest.skip("no Chromium: apt-get install chromium chromium-driver fonts-noto-cjk")
    options = Options()
    options.binary_location = CHROMIUM
    for flag in FLAGS:
        options.add_argument(flag)
    options.add_argument("--host-resolver-rules=MAP * ~NOTFOUND" + (f" , EXCLUDE {reachable}" if reachable else ""))
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(CHROMEDRIVER))
    driver.set_page_load_timeout(60)
    yield driver
    driver.quit()


def wait(browser: webdriver.Chrome, condition: str, *arguments: object) -> Any:
    """Wait until a JavaScript expression is true, and return it."""
    script = f"return {condition}"
    return WebDriverWait(browser, 20).until(lambda d: d.execute_script(script, *arguments), condition)


def requested(browser: webdriver.Chrome) -> list[str]:
    """The address of each request since the log was last read."""
    messages = (json.loads(entry["message"])["message"] for entry in browser.get_log("performance"))
    return [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
