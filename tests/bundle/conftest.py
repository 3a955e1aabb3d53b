"""One release, built once for all tests that look into it, and a browser that cannot reach out."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator

import pytest
from browser_lab import headless_chromium
from bundle_lab import Package
from selenium import webdriver

from nanolab.bundle import contents, release
from nanolab.evidence import repo_root


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
    with headless_chromium() as driver:
        yield driver
