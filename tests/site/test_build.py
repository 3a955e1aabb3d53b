"""What a strict build refuses, and what it writes: each fault is planted in a copy and must stop the build."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import pytest
import yaml
from site_lab import Lab, fill_gallery, make_lab

from nanolab.evidence import repo_root

pytestmark = pytest.mark.slow

LESSON = "ch5/5-2-requests-and-kv.html"
PAGE = "# Page {#page}\n\n"
REMOTE = re.compile(r"""(?:src|href)=["']?(?:https?:)?//|@import|url\(["']?https?:|import\(["']https?:""")


FAULTS = [
    ('```block id="nobody"\n```', "no section of docs/commands says '# block: nobody'"),
    ('```block id="broken"\n```', "is not a valid result block"),
    ('```block id="walk-A" fields="stepz"\n```', "has no value 'stepz'"),
    ('```block id="walk-A" field="steps"\n```', "unknown option field"),
    ('```block id="walk-A" view="chart"\n```', "one of table, json"),
    ("It is `#!value walk-A budgets`.", "has no value 'budgets'"),
    ("It is `#!value walk-A steps|.2q`.", "cannot be shown as '.2q'"),
    ('```source file="src/nanolab/verdicts.py" symbol="Gone"\n```', "no symbol 'Gone'"),
    ('```source file="src/nanolab/verdicts.py" tree="old"\n```', "current or baseline"),
    ('```figure id="9-9"\nA caption.\n```', "no figure docs/figures/fig-9-9.zh.svg"),
    ('```figure id="5-2"\n```', "must not be empty"),
    ("```map\nch5/x.md | only two\n```", "a line is"),
    ("```bash\npython x.py\n```", "must be one section of docs/commands"),
    ("## No id\n", "needs an explicit {#id}"),
    ("[link](nowhere.md)", "nowhere.md"),
    ("[link](evidence.md#nowhere)", "#nowhere"),
    ("```block id=walk-A\n```", 'options as key="value"'),  # last: what follows an unread fence is read wrongly
]


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The warnings of one strict build of one page that holds every fault; strict counts each of them."""
    lab = make_lab(tmp_path_factory.mktemp("faulty") / "lab")
    fill_gallery(lab)
    lab.write("docs/evidence/broken.json", '{"id": "broken"}')
    lab.write("docs/zh/evidence.md", "# Evidence {#evidence-index}\n")  # the index would report `broken` once more
    lab.write("docs/zh/index.md", PAGE + "\n\n".join(page for page, _ in FAULTS) + "\n")
    done = lab.build("zh")
    assert done.returncode != 0
    assert re.search(r"Aborted with \d+ warnings in strict mode", done.stdout), done.stderr
    warnings = re.split(r"^(?=WARNING|INFO)", done.stderr, flags=re.MULTILINE)
    return [line for line in warnings if line.startswith("WARNING")]


@pytest.mark.parametrize("why", [why for _, why in FAULTS])
def test_a_fault_stops_the_build(faulty: list[str], why: str) -> None:
    assert [line for line in faulty if why in line]


def test_the_pages_around_a_fault_do_not_warn(faulty: list[str]) -> None:
    assert all("index.md" in line or "broken.json" in line for line in faulty), faulty


@pytest.mark.parametrize(
    ("file", "text", "why"),
    [
        ("index.md", f'{PAGE}```bash\n--8<-- "docs/commands/5-2-requests-and-kv.sh:gone"\n```\n', "gone"),
        ("stray.md", PAGE, "stray.md"),  # a page that no navigation entry leads to
    ],
)
def test_a_missing_section_or_entry_stops_the_build(lab: Lab, file: str, text: str, why: str) -> None:
    fill_gallery(lab)
    lab.write(f"docs/zh/{file}", text)
    done = lab.build("zh")
    assert done.returncode != 0
    assert why in done.stderr


def test_nothing_points_outside(gallery: Lab) -> None:
    pages = sorted((gallery.root / "site").rglob("*.html"))
    assert len(pages) >= 10
    for page in pages:
        html = re.sub(r"<a\b[^>]*>", "", page.read_text(encoding="utf-8"))  # a link is not a request
        assert not REMOTE.search(html), (page, REMOTE.search(html))
        assert 'rel="alternate"' not in html


@pytest.mark.parametrize(
    "fault",
    [
        '<script src="https://cdn.example.com/x.js"></script>',
        "<img src=//example.com/x.png>",
        '<link rel="stylesheet" href="http://example.com/x.css">',
        "<style>@import 'x.css'</style>",
        "<style>a { background: url('https://example.com/x.png') }</style>",
        "<script type=module>import('https://example.com/x.mjs')</script>",
    ],
)
def test_an_address_outside_is_seen(fault: str) -> None:
    assert REMOTE.search(fault)


def test_every_page_leads_to_its_twin(gallery: Lab) -> None:
    site = gallery.root / "site"
    pages = [p for p in site.rglob("*.html") if p.name != "404.html"]
    for page in pages:
        match = re.search(r'<a class="nl-lang" href="([^"]+)"', page.read_text(encoding="utf-8"))
        assert match, page
        relative = page.relative_to(site)
        expected = relative.relative_to("en") if relative.parts[0] == "en" else Path("en") / relative
        assert (page.parent / match[1]).resolve() == (site / expected).resolve()


def test_a_card_says_all_that_a_reader_needs(gallery: Lab) -> None:
    html = (gallery.root / "site" / "en" / "ch5" / "5-2-requests-and-kv.html").read_text(encoding="utf-8")
    card = html[html.index('data-block="walk-A"') : html.index('data-block="walk-stale"')]
    for part in ("PASS", "real engine, CPU", "synthetic weights", "2026-11-30", "torch 2.13.0", "x86_64", "--case"):
        assert part in card
    assert ">stale<" not in card
    stale = html[html.index('data-block="walk-stale"') : html.index('data-block="walk-fail"')]
    assert ">stale<" in stale
    pending = html[html.index('data-block="walk-missing"') :]
    assert "PENDING" in pending
    assert "quick_walk.py" in pending
    assert "elsewhere" not in html  # another page's section makes this block too; a page shows its own
    assert "Last verified 2026-11-30" in html
    assert "1 pending" in html


def test_the_index_names_the_pages_that_use_a_block(gallery: Lab) -> None:
    html = (gallery.root / "site" / "evidence.html").read_text(encoding="utf-8")
    for row in re.findall(r'<tr id="evidence-walk-[a-zA-Z]+".*?</tr>', html, re.DOTALL):
        assert f'<a href="{LESSON}">5.2</a>' in row


def test_a_link_to_a_planned_page_keeps_its_words(gallery: Lab) -> None:
    html = (gallery.root / "site" / "index.html").read_text(encoding="utf-8")
    assert '<span class="nl-planned" title="这一页还没有写">5.3</span>' in html


def test_line_numbers_are_those_of_the_file(gallery: Lab) -> None:
    source = (repo_root() / "src/nanolab/verdicts.py").read_text().splitlines()
    line = next(i for i, text in enumerate(source, 1) if "def exit_code" in text) - 1
    html = (gallery.root / "site" / "ch5" / "5-2-requests-and-kv.html").read_text(encoding="utf-8")
    assert f"第 {line}–{line + 2} 行" in html


def test_a_notebook_that_fails_stops_the_build(lab: Lab) -> None:
    fill_gallery(lab)
    path = lab.root / "docs/zh/notebooks/attention-and-cache.ipynb"
    notebook = json.loads(path.read_text(encoding="utf-8"))
    next(cell for cell in notebook["cells"] if cell["cell_type"] == "code")["source"] = ["assert 1 == 2, 'planted'"]
    path.write_text(json.dumps(notebook), encoding="utf-8")
    done = lab.build("zh")
    assert done.returncode != 0
    assert "planted" in done.stderr


def test_notebooks_ran(gallery: Lab) -> None:
    html = (gallery.root / "site" / "notebooks" / "attention-and-cache.html").read_text(encoding="utf-8")
    assert re.search(r"<pre>42\s*</pre>", html)


@pytest.mark.parametrize("folder", ["docs/shared/vendor", "tests/site/vendor"])
def test_vendored_files_are_those_of_their_packages(folder: str) -> None:
    vendor = repo_root() / folder
    packages = json.loads((vendor / "MANIFEST.json").read_text())["packages"]
    recorded = set()
    for package in packages:
        assert "LICENSE" in package["files"]
        for name, digest in package["files"].items():
            path = vendor / package["directory"] / name
            recorded.add(path)
            assert hashlib.sha256(path.read_bytes()).hexdigest() == digest, name
    assert recorded == {p for p in vendor.rglob("*") if p.is_file() and p.name != "MANIFEST.json"}


def test_both_navigations_list_the_same_pages() -> None:
    trees = [yaml.safe_load((repo_root() / name).read_text())["nav"] for name in ("mkdocs.yml", "mkdocs.en.yml")]
    zh, en = (list(_pages(tree)) for tree in trees)
    assert zh == en
    assert len(zh) == len(set(zh))


def _pages(nav: list) -> list[str]:  # type: ignore[type-arg]
    found = []
    for item in nav:
        target = next(iter(item.values())) if isinstance(item, dict) else item
        found += _pages(target) if isinstance(target, list) else [target]
    return found
