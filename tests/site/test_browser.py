"""The built site in a real browser, from disk, with the network cut."""

from __future__ import annotations

from pathlib import Path

import pytest
from browser_lab import requested, wait
from page_proofs import (
    copied,
    found,
    grave,
    outside,
    switched,
    too_wide,
    undrawn,
    unprintable,
)
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from site_lab import Lab, set_viewport

pytestmark = pytest.mark.browser

LESSON = "ch5/5-2-requests-and-kv.html"
PAGES = ("index.html", LESSON, "evidence.html", "notebooks/attention-and-cache.html")
ALL_PAGES = (*PAGES, *(f"en/{page}" for page in PAGES))


@pytest.fixture
def site(gallery: Lab) -> str:
    return (gallery.root / "site").as_uri()


@pytest.mark.parametrize("page", ALL_PAGES)
def test_a_page_is_whole_without_a_network(browser: Chrome, site: str, page: str) -> None:
    browser.get_log("browser")
    browser.get(f"{site}/{page}")
    wait(browser, "document.readyState === 'complete' && document.querySelector('.md-content h1') !== null")
    urls = requested(browser)
    assert f"{site}/{page}" in urls
    assert outside(urls) == []
    errors = [entry["message"] for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
    assert errors == []


def test_over_http_nothing_is_fetched_from_outside(browser: Chrome, served: str) -> None:
    browser.get(f"{served}/{LESSON}")
    wait(browser, "document.querySelector('.katex') !== null")
    urls = requested(browser)
    assert len(urls) > 5
    assert outside(urls) == []


@pytest.mark.parametrize(
    ("page", "query", "target"),
    [
        ("index.html", "调度器", "index.html"),
        ("index.html", "候选", LESSON),
        ("index.html", "prefill", LESSON),
        ("index.html", "num_cached", LESSON),
        (LESSON, "预填充", LESSON),
        ("en/index.html", "scheduler", "en/index.html"),
        ("en/evidence.html", "candid", f"en/{LESSON}"),
    ],
)
def test_search_finds(browser: Chrome, site: str, page: str, query: str, target: str) -> None:
    browser.get(f"{site}/{page}")
    links = found(browser, query)
    assert any(link.startswith(f"{site}/{target}") for link in links), links
    assert outside(requested(browser)) == []


@pytest.mark.parametrize("page", PAGES)
def test_the_switch_stays_on_the_page(browser: Chrome, site: str, page: str) -> None:
    anchor = "#results" if page == LESSON else ""
    browser.get(f"{site}/{page}{anchor}")
    assert switched(browser) == f"en {site}/en/{page}{anchor}"
    assert switched(browser) == f"zh {site}/{page}{anchor}"


def test_copy_gives_only_the_command(browser: Chrome, served: str) -> None:
    expected = "source env.sh\npython scripts/e2e/quick_walk.py --case A --out runs/walk-A.json"
    browser.get(f"{served}/{LESSON}")
    assert copied(browser, ".nl-cmd") == expected


def test_copy_leaves_line_numbers_out(browser: Chrome, served: str) -> None:
    expected = "@property\ndef exit_code(self) -> int:\n    return _EXIT_CODES[self]"
    browser.get(f"{served}/{LESSON}")
    assert copied(browser, ".nl-source") == expected


def test_formulas_are_drawn(browser: Chrome, site: str) -> None:
    browser.get(f"{site}/{LESSON}")
    wait(browser, "document.querySelectorAll('.arithmatex .katex').length === 2")
    assert undrawn(browser) == []
    assert wait(browser, "document.fonts.check('16px KaTeX_Main')")
    browser.get(f"{site}/notebooks/attention-and-cache.html")
    wait(browser, "document.querySelector('.jupyter-wrapper .katex') !== null")


def _background(browser: Chrome) -> tuple[float, float]:
    """Lightness of the page and of a result card, 0 to 1."""
    script = """
      const light = e => { const c = getComputedStyle(e).backgroundColor.match(/[0-9.]+/g).map(Number);
                           return (c[0] + c[1] + c[2]) / 765; };
      return [light(document.body), light(document.querySelector('.nl-block'))];
    """
    page, card = browser.execute_script(script)
    return page, card


def test_dark_follows_the_system_and_the_button_and_the_language(browser: Chrome, site: str) -> None:
    browser.get(f"{site}/{LESSON}")
    browser.execute_script("localStorage.clear()")
    browser.refresh()
    assert min(_background(browser)) > 0.9
    browser.execute_script("document.querySelector('label[for=__palette_1]').click()")
    wait(browser, "document.body.getAttribute('data-md-color-scheme') === 'slate'")
    assert max(_background(browser)) < 0.2
    browser.find_element(By.CSS_SELECTOR, ".nl-lang").click()
    wait(browser, "location.pathname.includes('/en/')")
    wait(browser, "document.body.getAttribute('data-md-color-scheme') === 'slate'")
    browser.execute_script("localStorage.clear()")
    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    )
    browser.get(f"{site}/index.html")
    browser.get(f"{site}/{LESSON}")
    assert max(_background(browser)) < 0.2
    browser.execute_script("localStorage.clear()")


@pytest.mark.parametrize("page", ALL_PAGES)
def test_a_phone_needs_no_sideways_scrolling(browser: Chrome, site: str, page: str) -> None:
    set_viewport(browser, 360, 740)
    browser.get(f"{site}/{page}")
    assert too_wide(browser) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("page", ALL_PAGES)
def test_axe_finds_nothing_serious(browser: Chrome, site: str, page: str, scheme: str) -> None:
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": features})
    browser.get(f"{site}/{page}")
    assert grave(browser) == []


def test_tabs_are_remembered_across_pages_and_languages(browser: Chrome, site: str) -> None:
    browser.get(f"{site}/{LESSON}")
    browser.execute_script(
        "[...document.querySelectorAll('.tabbed-labels label')].find(l => l.textContent.trim() === 'GPU').click()"
    )
    browser.get(f"{site}/en/{LESSON}")
    checked = "[...document.querySelectorAll('.tabbed-set > input')].findIndex(i => i.checked) === 1"
    wait(browser, checked)
    browser.execute_script("localStorage.clear()")


def test_the_index_filters(browser: Chrome, site: str) -> None:
    browser.get(f"{site}/en/evidence.html")
    rows = "[...document.querySelectorAll('.nl-index tbody tr')].filter(r => !r.hidden).map(r => r.id)"
    wait(browser, f"{rows}.length === 4")
    choose = """
      const s = document.querySelector(`.nl-index select[name=${arguments[0]}]`);
      s.value = arguments[1]; s.dispatchEvent(new Event('change'));
    """
    for name, value, expected in (
        ("verdict", "PENDING", ["evidence-walk-missing"]),
        ("verdict", "", None),
        ("type", "arithmetic", ["evidence-walk-fail"]),
        ("type", "", None),
        ("stale", "stale", ["evidence-walk-stale"]),
    ):
        browser.execute_script(choose, name, value)
        shown = browser.execute_script(f"return {rows}")
        assert len(shown) == 4 if expected is None else shown == expected
    count = browser.execute_script("return document.querySelector('.nl-index__count').textContent")
    assert count == "showing 1 of 4"


def test_the_keyboard_reaches_search_and_the_switch(browser: Chrome, site: str) -> None:
    browser.get(f"{site}/{LESSON}")
    body = browser.find_element(By.TAG_NAME, "body")
    body.send_keys("/")
    wait(browser, "document.activeElement.classList.contains('md-search__input')")
    browser.switch_to.active_element.send_keys(Keys.ESCAPE)
    for _ in range(40):
        body.send_keys(Keys.TAB)
        if browser.execute_script("return document.activeElement.classList.contains('nl-lang')"):
            break
    else:
        pytest.fail("the language switch is not in the tab order")


def test_print_shows_the_answers_and_hides_the_chrome(browser: Chrome, site: str, tmp_path: Path) -> None:
    browser.get(f"{site}/{LESSON}")
    assert unprintable(browser) == []
    browser.execute_script("window.dispatchEvent(new Event('afterprint'))")
    assert browser.execute_script("return document.querySelectorAll('details:not([open])').length") > 0
