"""The single file: every address inside it, every word of the site in it."""

from __future__ import annotations

from pathlib import Path

import pytest
from bundle_lab import SITE, write

from nanolab.bundle import article, book, fold
from nanolab.errors import LabError


@pytest.fixture
def lab(tmp_path: Path) -> Path:
    write(tmp_path, SITE)
    return tmp_path


def change(lab: Path, page: str, old: str, new: str) -> None:
    text = (lab / "site" / page).read_text(encoding="utf-8")
    assert old in text
    (lab / "site" / page).write_text(text.replace(old, new), encoding="utf-8")


@pytest.fixture
def html(lab: Path) -> str:
    return book.build(lab, lab / "site")


@pytest.mark.parametrize(
    "part",
    [
        '<h1 id="zh-index--top">',
        '<a href="#zh-ch5-one--case-a">案例 A</a>',
        '<a href="#en-index">English</a>',
        '<a href="https://example.org/x?a=1&amp;b=2">',
        '<a href="#zh-index">回去</a> <a href="#zh-ch5-one--case-a">A</a>',
        '<input id="en-ch5-one--__tabbed_1_1" name="en-ch5-one--__tabbed_1" type="radio">',
        '<label for="en-ch5-one--__tabbed_1_1">',
        'aria-labelledby="zh-ch5-one--f-title zh-ch5-one--f-desc" fill="url(#zh-ch5-one--f-ink)"',
        '<select name="type">',  # the evidence index reads it
        "3 &lt; 4 &amp;&nbsp;x",
        '<section class="book-page" id="en-ch5-one">',
        '<li class="book-level-1"><span>Chapter 5</span></li><li class="book-level-2"><a href="#en-ch5-one">One</a>',
    ],
)
def test_ids_and_links_are_made_unique(html: str, part: str) -> None:
    assert part in html


def test_pages_that_are_not_built_are_not_listed(html: str) -> None:
    assert "以后" not in html
    assert "Later" not in html


def test_everything_is_inside(html: str) -> None:
    assert book.problems(html) == []
    assert 'src="data:image/svg+xml;base64,' in html
    assert 'url("data:font/woff2;base64,' in html
    assert "K.woff)" not in html  # not shipped, so not listed
    assert "sourceMappingURL" not in html
    assert r"var a = '<\/script>'" in html


def test_drawings_in_styles_survive(html: str) -> None:
    assert """url("data:image/svg+xml;charset=utf-8,<svg fill='x(y)'/>")""" in html
    assert """url('data:image/svg+xml,<svg viewBox="0 0 1 1"><path d="M0(0)"/></svg>')""" in html


def test_what_two_pages_bring_stands_once(html: str) -> None:
    assert html.count("window.n = ") == 1
    assert html.count("line-height: 125%") == 1


def test_a_notebooks_rules_stay_with_notebooks() -> None:
    text = (
        '\n@charset "UTF-8";.jupyter-wrapper .a{b:c}pre { d: e }x,y:not(.z){f:g}@media print{table{h:i}}'
        "@keyframes k{from{l:m}50%, 70%{n:o}}.p[q='r{s}']{t:u}"
    )
    assert fold.notebook_style(fold.style(text, Path())) == (
        ".jupyter-wrapper .a{b:c}:where(.jupyter-wrapper) :is(pre){ d: e }"
        ":where(.jupyter-wrapper) :is(x,y:not(.z)){f:g}"
        "@media print{:where(.jupyter-wrapper) :is(table){h:i}}@keyframes k{from{l:m}50%, 70%{n:o}}.p[q='r{s}']{t:u}"
    )


def test_the_text_is_that_of_the_site(lab: Path, html: str) -> None:
    assert book.text_differences(html, lab / "site") == []
    changed = html.replace("回去", "回来", 1)
    assert changed != html
    [line] = book.text_differences(changed, lab / "site")
    assert line.startswith("ch5/one.html says something else")
    assert "回去" in line
    cut = html.replace('<section class="book-page" id="en-index">', '<section class="book-page" id="en-gone">')
    assert book.text_differences(cut, lab / "site") == [
        "section en-gone is no page of the site",
        f"en/index.html is not in {book.NAME}",
    ]


@pytest.mark.parametrize(
    ("page", "old", "new", "why"),
    [
        ("index.html", "ch5/one.html#case-a", "ch5/one.html#case-z", "zh-ch5-one--case-z"),
        ("index.html", "ch5/one.html#case-a", "ch5/gone.html", "is no page"),
        ("index.html", "assets/img/dot.svg", "assets/img/gone.svg", "gone.svg"),
        ("index.html", "assets/img/dot.svg", "https://example.org/dot.svg", "from outside"),
        ("index.html", 'id="top"', 'id="top"></h1><h1 id="top"', "stands 2 times"),
        ("index.html", "<form>", '<form><img srcset="a.png 2x">', "srcset"),
        ("index.html", "<form>", '<form><script src="x.js">1</script>', "loads a script"),
        ("index.html", '<article class="md-content__inner md-typeset">', "<article>", "has no article"),
        ("assets/css/site.css", "../img/dot.svg", "../img/gone.svg", "gone.svg"),
        ("assets/css/site.css", ".b{", "@import 'x.css';.b{", "@import"),
    ],
)
def test_what_would_not_work_from_disk_stops_the_build(lab: Path, page: str, old: str, new: str, why: str) -> None:
    change(lab, page, old, new)
    with pytest.raises(LabError, match=why):
        book.build(lab, lab / "site")


@pytest.mark.parametrize(
    ("tag", "found"),
    [
        ('<img src="x.png">', 'needs another file'),
        ('<link href="https://example.org/x.css">', 'needs another file'),
        ('<a href="site/index.html">', 'needs another file'),
        ('<a href="#nowhere">', "'nowhere'"),
        ("<style>a{b:url(x.png)}</style>", "x.png"),
    ],
)  # fmt: skip
def test_problems_sees(html: str, tag: str, found: str) -> None:
    [line] = book.problems(html.replace("</body>", f"{tag}</body>"))
    assert found in line


def test_a_page_knows_its_anchor() -> None:
    assert article.prefix_of("ch5/5-1-setup.html") == "zh-ch5-5-1-setup"
    assert article.prefix_of("en/index.html") == "en-index"


def test_an_unknown_kind_of_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.unknownkind").write_text("x")
    with pytest.raises(LabError, match=r"x\.unknownkind"):
        fold.data_uri(tmp_path / "x.unknownkind")
