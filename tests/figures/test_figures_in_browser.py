"""The figures as a browser lays them out on a phone: its own font metrics, not the estimate of `metrics`."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from nanolab.figures import FIGURES, LANGUAGES, render

pytestmark = pytest.mark.browser

MEASURE = """
const faults = [];
document.querySelectorAll('svg').forEach(svg => {
  const figure = svg.querySelector('title').textContent, width = svg.viewBox.baseVal.width;
  const texts = [...svg.querySelectorAll('text')].map(t => [t.textContent, t.getBBox()]);
  texts.forEach(([text, a], i) => {
    if (a.x < 0 || a.x + a.width > width) faults.push([figure, 'outside', text]);
    texts.slice(i + 1).forEach(([other, b]) => {
      const across = a.x < b.x + b.width - 1 && b.x < a.x + a.width - 1;
      const down = a.y < b.y + b.height - 3 && b.y < a.y + a.height - 3;
      if (across && down) faults.push([figure, text, other]);
    });
  });
});
return faults;
"""
COLOUR = "return getComputedStyle(document.querySelector('svg text')).fill"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All eighteen figures, inlined as the site does, in its palette wrapper."""
    figures = "".join(render(f, language) for language in LANGUAGES for f in FIGURES)
    file = tmp_path_factory.mktemp("figures") / "all.html"
    head = '<!doctype html><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    file.write_text(f'{head}<body data-md-color-scheme="default" style="margin:16px">{figures}', encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def browser(page: Path) -> Iterator[object]:
    chromium, chromedriver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or chromedriver is None:
        pytest.skip("needs chromium and chromedriver (Debian: apt-get install chromium chromium-driver)")
    from selenium.webdriver import Chrome, ChromeOptions
    from selenium.webdriver.chrome.service import Service

    options = ChromeOptions()
    options.binary_location = chromium
    for flag in ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"):
        options.add_argument(flag)
    options.add_argument(f"--user-data-dir={page.parent / 'profile'}")
    phone = {"width": 360, "height": 800, "pixelRatio": 1}
    options.add_experimental_option("mobileEmulation", {"deviceMetrics": phone})
    driver = Chrome(options=options, service=Service(chromedriver))
    try:
        driver.set_page_load_timeout(30)
        driver.get(page.as_uri())
        yield driver
    finally:
        driver.quit()


def test_fits_a_phone_and_no_text_collides(browser: object) -> None:
    run = browser.execute_script  # type: ignore[attr-defined]
    assert run("return document.querySelectorAll('svg').length") == 2 * len(FIGURES)
    assert run("return document.documentElement.scrollWidth") == 360
    assert run(MEASURE) == []


def test_the_palette_switch_reaches_the_figures(browser: object) -> None:
    run = browser.execute_script  # type: ignore[attr-defined]
    light = run(COLOUR)
    run("document.body.dataset.mdColorScheme = 'slate'")
    dark = run(COLOUR)
    run("document.body.style.setProperty('--fig-ink', 'rgb(1, 2, 3)')")
    own = run(COLOUR)
    assert light != dark
    assert own == "rgb(1, 2, 3)"
