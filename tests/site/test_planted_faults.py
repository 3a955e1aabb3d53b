"""Each proof that test_browser.py makes about a page, seen to fail: a good page, then the same with one fault in it."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import page_proofs
import pytest
from browser_lab import requested, wait
from selenium.webdriver import Chrome
from site_lab import Lab

pytestmark = pytest.mark.browser
LESSON = "ch5/5-2-requests-and-kv.html"


@pytest.fixture
def page(browser: Chrome, gallery: Lab) -> Chrome:
    """The lesson, from disk."""
    browser.get((gallery.root / "site" / LESSON).as_uri())
    wait(browser, "document.readyState === 'complete'")
    return browser


def plant(browser: Chrome, html: str) -> None:
    browser.execute_script(
        "document.querySelector('.md-content article').insertAdjacentHTML('beforeend', arguments[0])", html
    )


def test_a_request_that_leaves_is_seen(page: Chrome) -> None:
    assert page_proofs.outside(requested(page)) == []
    plant(page, "<img id='far' alt='' src='https://fonts.example.com/x.png'>")
    wait(page, "document.getElementById('far').complete")
    assert page_proofs.outside(requested(page)) == ["https://fonts.example.com/x.png"]


@pytest.mark.parametrize("query", ["候选", "prefill"])
def test_a_page_that_search_has_lost_is_missed(browser: Chrome, gallery: Lab, tmp_path: Path, query: str) -> None:
    copy = tmp_path / "site"
    shutil.copytree(gallery.root / "site", copy, ignore=shutil.ignore_patterns("en"))
    for index in (copy / "search").glob("search_index.js*"):
        before, brace, body = index.read_text(encoding="utf-8").partition("{")
        entries = json.loads(brace + body.rstrip().removesuffix(";"))
        entries["docs"] = [entry for entry in entries["docs"] if not entry["location"].startswith("ch5/")]
        index.write_text(before + json.dumps(entries), encoding="utf-8")
    browser.get((copy / "index.html").as_uri())
    assert not any(LESSON in link for link in page_proofs.found(browser, query))


def test_a_switch_that_leaves_the_page_is_seen(page: Chrome) -> None:
    page.execute_script("document.querySelector('.nl-lang').href = '../en/index.html'")
    assert not page_proofs.switched(page).endswith(LESSON)


def test_a_copied_prompt_is_seen(page: Chrome, served: str) -> None:
    page.get(f"{served}/{LESSON}")
    wait(page, "document.querySelector('.nl-cmd button') !== null")
    page.execute_script("document.querySelector('.nl-cmd code').prepend('$ ')")
    assert page_proofs.copied(page, ".nl-cmd").startswith("$ ")


@pytest.mark.parametrize(
    "fault",
    [
        r"<span class='arithmatex'>\(x^2\)</span>",
        r"<span class='arithmatex'><span class='katex'><span class='katex-error'>\frac</span></span></span>",
        "<figure class='nl-figure'><figcaption>a figure that was not drawn</figcaption></figure>",
        "<figure class='nl-figure'><svg viewBox='0 0 100 50'></svg></figure>",
    ],
)
def test_a_formula_or_figure_that_is_not_drawn_is_seen(page: Chrome, fault: str) -> None:
    assert page_proofs.undrawn(page) == []
    plant(page, fault)
    assert len(page_proofs.undrawn(page)) == 1


@pytest.mark.parametrize(
    "fault",
    [
        "<div style='width: 400px'>wide</div>",
        "<style>.nl-block td { max-width: 1em !important } .nl-block code { word-break: break-all !important }</style>",
    ],
)
def test_what_does_not_fit_a_phone_is_seen(page: Chrome, fault: str) -> None:
    assert page_proofs.too_wide(page) == []
    plant(page, fault)
    assert page_proofs.too_wide(page) != []


@pytest.mark.parametrize(
    ("fault", "rule"),
    [
        ("<img src='data:,'>", "image-alt"),
        ("<p style='color: #ccc; background: #fff'>too faint to read</p>", "color-contrast"),
        ("<button></button>", "button-name"),
    ],
)
def test_a_serious_accessibility_fault_is_seen(page: Chrome, fault: str, rule: str) -> None:
    plant(page, fault)
    assert any(rule in line for line in page_proofs.grave(page))


@pytest.mark.parametrize(
    "fault",
    [
        "<style>@media print { .md-header { display: block !important; } }</style>",
        "<script>addEventListener('beforeprint', () => document.querySelector('details').open = false)</script>",
    ],
)
def test_a_page_that_prints_badly_is_seen(page: Chrome, fault: str) -> None:
    assert page_proofs.unprintable(page) == []
    page.execute_script("window.dispatchEvent(new Event('afterprint'))")
    plant(page, fault)
    if "script" in fault:  # markup put in this way does not run
        page.execute_script(re.sub("</?script>", "", fault))
    assert page_proofs.unprintable(page) != []
