"""实验手册.html in a real browser, opened from disk with the network cut."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from browser_lab import requested, wait
from bundle_lab import Package
from selenium.webdriver import Chrome

from nanolab.bundle import book

pytestmark = pytest.mark.browser

SETUP = "zh-ch5-5-1-setup"
MATHS = "zh-appendix-b-b-1-mathematics"


@pytest.fixture(scope="module")
def address(package: Package) -> str:
    return (package.tree / book.NAME).as_uri()


@pytest.fixture
def browser(chromium: Chrome, address: str) -> Chrome:
    """The manual freshly opened at its start, light, at desktop width."""
    size = {"width": 1280, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    chromium.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    light = {"features": [{"name": "prefers-color-scheme", "value": "light"}]}
    chromium.execute_cdp_cmd("Emulation.setEmulatedMedia", light)
    chromium.get(address)
    chromium.execute_script("localStorage.clear()")
    chromium.get_log("performance")
    chromium.get_log("browser")
    chromium.get("about:blank")
    chromium.get(address)
    wait(chromium, "document.readyState === 'complete'")
    return chromium


def test_one_file_is_all_it_needs(browser: Chrome, address: str) -> None:
    assert [url for url in requested(browser) if not url.startswith(("data:", "about:"))] == [address]
    assert [entry["message"] for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []


def test_formulas_are_drawn_with_their_fonts(browser: Chrome) -> None:
    drawn = browser.execute_script(
        "return [document.querySelectorAll('.arithmatex').length,"
        " document.querySelectorAll('.arithmatex > .katex, .arithmatex > .katex-display').length,"
        " document.querySelectorAll('.katex-error').length]"
    )
    assert drawn[0] == drawn[1] > 0
    assert drawn[2] == 0
    browser.execute_script(f"location.hash = '{MATHS}'")
    assert wait(browser, "document.fonts.check('16px KaTeX_Main')")


def test_figures_and_cards_are_there(browser: Chrome) -> None:
    counts = browser.execute_script(
        "return ['zh', 'en'].map(l => ['svg.nl-fig', '.nl-block', '.nl-source'].map(s =>"
        " document.querySelectorAll(`.book-language[data-language=${l}] ${s}`).length))"
    )
    assert counts[0] == counts[1]
    assert min(counts[0]) > 0


def shown(browser: Chrome) -> list[str]:
    script = "return [...document.querySelectorAll('.book-language')].filter(e => e.offsetHeight).map(e => e.lang)"
    languages: list[str] = browser.execute_script(script)
    return languages


def test_one_language_at_a_time_and_the_switch_keeps_the_place(browser: Chrome) -> None:
    assert shown(browser) == ["zh"]
    browser.execute_script(f"location.hash = '{SETUP}--working-copy'")
    at = "Math.abs(document.getElementById(arguments[0]).getBoundingClientRect().top - 60) < 60"
    wait(browser, at, f"{SETUP}--working-copy")
    browser.execute_script("document.querySelector('.book-switch').click()")
    twin = f"{SETUP}--working-copy".replace("zh-", "en-", 1)
    wait(browser, at, twin)
    assert shown(browser) == ["en"]
    assert browser.execute_script("return document.documentElement.lang") == "en"
    browser.execute_script("document.querySelector('.book-switch').click()")
    wait(browser, at, f"{SETUP}--working-copy")
    assert shown(browser) == ["zh"]


def test_an_anchor_of_the_other_language_opens_it(browser: Chrome, address: str) -> None:
    browser.get("about:blank")
    browser.get(f"{address}#en-ch5-5-1-setup--working-copy")
    wait(browser, "document.getElementById('en-ch5-5-1-setup--working-copy').getBoundingClientRect().top < 200")
    assert shown(browser) == ["en"]


def test_every_link_inside_leads_to_something_that_can_be_seen(browser: Chrome) -> None:
    dead = browser.execute_script(
        "return [...document.querySelectorAll('a[href^=\"#\"]')].map(a => a.getAttribute('href').slice(1))"
        ".filter(id => !document.getElementById(decodeURIComponent(id)))"
    )
    assert dead == []


def test_a_link_between_pages_scrolls_there(browser: Chrome) -> None:
    script = f"return document.querySelector('.book-contents a[href=\"#{MATHS}\"]')"
    browser.execute_script("arguments[0].click()", browser.execute_script(script))
    wait(browser, f"Math.abs(document.getElementById('{MATHS}').getBoundingClientRect().top - 60) < 60")
    wait(browser, f"document.querySelector('.book-contents a[href=\"#{MATHS}\"]').ariaCurrent === 'true'")


def test_dark_and_back_is_remembered(browser: Chrome, address: str) -> None:
    browser.execute_script("document.querySelector('.book-scheme').click()")
    assert browser.execute_script("return document.body.dataset.mdColorScheme") == "slate"
    browser.get("about:blank")
    browser.get(address)
    wait(browser, "document.body.dataset.mdColorScheme === 'slate'")
    browser.execute_script("document.querySelector('.book-scheme').click()")
    assert browser.execute_script("return document.body.dataset.mdColorScheme") == "default"


def test_copy_gives_only_the_command(browser: Chrome) -> None:
    browser.execute_script(
        "window.copied = []; navigator.clipboard.writeText = t => { window.copied.push(t); return Promise.resolve(); };"
        f"document.querySelector('#{SETUP} [data-section=\"5-1-setup:unzip\"] .book-copy').click()"
    )
    [copied] = browser.execute_script("return window.copied")
    assert copied.startswith('cd "$HOME"\n')
    assert "SHA256SUMS" in copied
    browser.execute_script("document.querySelector('.nl-source table .book-copy, .nl-source .book-copy').click()")
    source = browser.execute_script("return window.copied[1]")
    assert not source.lstrip()[:1].isdigit()  # no line numbers


def test_tabs_follow_each_other(browser: Chrome) -> None:
    browser.execute_script(
        "const label = [...document.querySelectorAll('.book-language[data-language=zh] .tabbed-labels label')]"
        ".find(l => l.textContent.trim() === 'CPU'); label.click()"
    )
    checked = browser.execute_script(
        "return [...document.querySelectorAll('.tabbed-set')].map(s => [...s.querySelectorAll(':scope > input')]"
        ".map(i => [document.querySelector(`label[for='${CSS.escape(i.id)}']`).textContent.trim(), i.checked]))"
    )
    with_cpu = [dict(tabs) for tabs in checked if "CPU" in dict(tabs)]
    assert len(with_cpu) > 2
    assert all(tabs["CPU"] for tabs in with_cpu)


def test_a_phone_shows_it_without_scrolling_sideways(browser: Chrome) -> None:
    size = {"width": 360, "height": 740, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    wait(browser, "window.innerWidth === 360")
    assert browser.execute_script("return document.documentElement.scrollWidth") <= 360
    contents_height = "document.querySelector('.book-contents').offsetHeight"
    assert browser.execute_script(f"return {contents_height}") == 0
    browser.execute_script("document.querySelector('.book-menu').click()")
    wait(browser, f"{contents_height} > 0")


def test_the_multi_page_site_opens_from_disk(browser: Chrome, package: Package) -> None:
    site = (package.tree / "site").as_uri()
    browser.get_log("performance")
    browser.get(f"{site}/en/ch5/5-1-setup.html")
    wait(browser, "document.querySelector('.md-content h1') !== null")
    assert [url for url in requested(browser) if not url.startswith((site, "data:", "about:", "blob:"))] == []


@pytest.mark.parametrize(("page", "word"), [("index.html", "调度器"), ("en/index.html", "scheduler")])
def test_the_multi_page_site_is_searched_from_disk(browser: Chrome, package: Package, page: str, word: str) -> None:
    site = (package.tree / "site").as_uri()
    browser.get(f"{site}/{page}")
    browser.execute_script("document.querySelector('[data-md-toggle=search]').click()")
    wait(browser, "document.querySelector('[data-md-toggle=search]').checked")
    browser.find_element("css selector", ".md-search__input").send_keys(word)
    wait(browser, "document.querySelectorAll('.md-search-result__link').length > 0")


def test_its_name_survives_an_address(address: str) -> None:
    assert address.endswith(quote(book.NAME))
