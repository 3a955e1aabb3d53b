"""What the site's tests prove about a page that the browser shows; test_planted_faults.py sees each of them fail."""

from __future__ import annotations

from pathlib import Path

from browser_lab import wait
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from site_lab import set_viewport

AXE = Path(__file__).parent / "vendor" / "axe-core" / "axe.min.js"
OPEN_ALL = "document.querySelectorAll('details').forEach(d => d.open = true)"


def outside(urls: list[str]) -> list[str]:
    """The requests that leave the machine."""
    return [url for url in urls if not url.startswith(("file:", "data:", "blob:", "about:", "http://127.0.0.1:"))]


def found(browser: Chrome, query: str) -> list[str]:
    """The addresses that the search box of this page offers for a query."""
    field = browser.find_element(By.CSS_SELECTOR, ".md-search__input")
    browser.execute_script("document.querySelector('[data-md-toggle=search]').click()")
    wait(browser, "document.querySelector('[data-md-toggle=search]').checked")
    field.send_keys(query)
    wait(browser, "/\\d|没有|No match/.test(document.querySelector('.md-search-result__meta').textContent)")
    links = "[...document.querySelectorAll('.md-search-result__link')].map(a => a.href)"
    return list(browser.execute_script(f"return {links}"))


def switched(browser: Chrome) -> str:
    """Where the language switch leads, and the language it ends in: "en http://..."."""
    before = browser.current_url
    browser.find_element(By.CSS_SELECTOR, ".nl-lang").click()
    wait(browser, "location.href !== arguments[0] && document.readyState === 'complete'", before)
    return str(browser.execute_script("return `${document.documentElement.lang} ${location.href}`"))


def copied(browser: Chrome, block: str) -> str:
    """What a reader's click on the copy button of the first such block puts on the clipboard (over http)."""
    origin = browser.execute_script("return location.origin")
    permissions = ["clipboardReadWrite", "clipboardSanitizedWrite"]
    browser.execute_cdp_cmd("Browser.grantPermissions", {"permissions": permissions, "origin": origin})
    button = wait(browser, f"document.querySelector('{block} button')")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", button)
    button.click()
    wait(browser, "document.querySelector('.md-dialog--active') !== null")
    read = "navigator.clipboard.readText().then(arguments[0], e => arguments[0](String(e)))"
    return str(browser.execute_async_script(read)).strip()


def undrawn(browser: Chrome) -> list[str]:
    """Formulas that are still source or an error, and figures without a drawing."""
    wait(browser, "document.querySelector('.katex') !== null")
    script = """
      const raw = [...document.querySelectorAll('.arithmatex')].filter(e => !e.querySelector('.katex'));
      const wrong = [...document.querySelectorAll('.katex-error')];
      const empty = [...document.querySelectorAll('.nl-figure')].filter(e => {
        const svg = e.querySelector('svg');
        return !svg || svg.getBoundingClientRect().height < 20 || !svg.querySelector('text');
      });
      return [...raw, ...wrong, ...empty].map(e => e.outerHTML.slice(0, 120));
    """
    return list(browser.execute_script(script))


def too_wide(browser: Chrome) -> list[str]:
    """On a phone 360 pixels wide: what sticks out of the page, and the numbers of result cards that are cut in two."""
    set_viewport(browser, 360, 740)
    browser.execute_script(OPEN_ALL)
    script = """
      const scrolls = '.nl-scroll, pre, .highlighttable, .md-typeset__scrollwrap, .md-search, .arithmatex, .jp-Cell';
      const wide = [...document.querySelectorAll('.md-content *, .md-header *')].filter(e => {
        const box = e.getBoundingClientRect();
        return !e.closest(scrolls) && box.width > 0 && box.right > 361;
      });
      const cut = [...document.querySelectorAll('.nl-block td > code')].filter(
        e => /^[-+.0-9e]+$/.test(e.textContent) && e.getClientRects().length > 1);
      const page = document.documentElement.scrollWidth > 360 ? [document.documentElement] : [];
      return [...page, ...wide, ...cut].map(e => e.outerHTML.slice(0, 120));
    """
    return list(browser.execute_script(script))


def grave(browser: Chrome) -> list[str]:
    """What axe finds serious or critical."""
    browser.execute_script(OPEN_ALL)
    browser.execute_script(AXE.read_text(encoding="utf-8"))
    script = """
      const done = arguments[0];
      const brief = v => `${v.impact} ${v.id}: ${v.nodes.slice(0, 3).map(n => n.html.slice(0, 120)).join(' | ')}`;
      const grave = v => ['serious', 'critical'].includes(v.impact);
      axe.run(document).then(r => done(r.violations.filter(grave).map(brief)));
    """
    return list(browser.execute_async_script(script))


def unprintable(browser: Chrome) -> list[str]:
    """On paper: answers that stay folded, and controls that are printed."""
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    browser.execute_script("window.dispatchEvent(new Event('beforeprint'))")
    script = """
      const shown = e => getComputedStyle(e).display !== 'none';
      const controls = [...document.querySelectorAll('.md-header, .md-sidebar, .md-footer')].filter(shown);
      return [...document.querySelectorAll('details:not([open])'), ...controls].map(e => e.outerHTML.slice(0, 120));
    """
    return list(browser.execute_script(script))
