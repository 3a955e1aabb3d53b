"""Small labs for the bundle's tests: a git repository with a few files, and a built site of a few pages."""

from __future__ import annotations

import importlib.util
import subprocess
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from nanolab.evidence import repo_root


@dataclass(frozen=True)
class Package:
    """The built zip and the same unpacked; read only."""

    zip: Path
    tree: Path


def load_program() -> ModuleType:
    """scripts/maintain/bundle.py as a module."""
    path = repo_root() / "scripts" / "maintain" / "bundle.py"
    spec = importlib.util.spec_from_file_location("bundle_program", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")


def git(root: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=Reader", "-c", "user.email=reader@example.org"]
    done = subprocess.run(["git", "-C", str(root), *identity, *arguments], capture_output=True, text=True, check=True)
    return done.stdout


def repository(root: Path, files: dict[str, str]) -> Path:
    """A git repository whose one commit holds `files`."""
    root.mkdir(parents=True)
    git(root, "init", "--quiet")
    write(root, files)
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "-m", "first")
    return root


PAGE = """<!doctype html><html lang="{language}"><head>
<link rel="stylesheet" href="{up}assets/css/site.css">
<style>:root{{--icon:url('data:image/svg+xml,<svg viewBox="0 0 1 1"><path d="M0(0)"/></svg>')}}</style>
</head><body><article class="md-content__inner md-typeset">
{body}
</article>
<script src="{up}assets/js/site.js" defer></script>
</body></html>"""

CSS = """@charset "UTF-8";.a{background:url("data:image/svg+xml;charset=utf-8,<svg fill='x(y)'/>")}
@font-face{font-family:K;src:url(fonts/K.woff2) format("woff2"),url(fonts/K.woff) format("woff")}
.b{background:url('../img/dot.svg')}"""

ZH = """<h1 id="top">开始<a class="headerlink" href="#top">&para;</a></h1>
<p>去 <a href="ch5/one.html#case-a">案例 A</a>，或 <a href="en/index.html">English</a>，或 <a href="https://example.org/x?a=1&amp;b=2">外面</a>。</p>
<p><img alt="点" src="assets/img/dot.svg"> 3 &lt; 4 &amp;&nbsp;x</p>
<form><select name="type"><option value="">全部</option></select></form>"""
ONE = """<h1 id="one">{title}</h1><h2 id="case-a">A</h2>
<p><a href="../index.html">{back}</a> <a href="#case-a">A</a></p>
<div class="tabbed-set"><input id="__tabbed_1_1" name="__tabbed_1" type="radio">
<label for="__tabbed_1_1">GPU</label></div>
<svg aria-labelledby="f-title f-desc" fill="url(#f-ink)"><title id="f-title">t</title><desc id="f-desc">d</desc></svg>
<style>pre {{ line-height: 125% }}</style><script>window.n = (window.n || 0) + 1</script>"""

SITE = {
    "site/index.html": PAGE.format(language="zh", up="", body=ZH),
    "site/ch5/one.html": PAGE.format(language="zh", up="../", body=ONE.format(title="一", back="回去")),
    "site/en/index.html": PAGE.format(language="en", up="", body='<h1 id="top">Start</h1>'),
    "site/en/ch5/one.html": PAGE.format(language="en", up="../", body=ONE.format(title="One", back="Back")),
    "site/assets/css/site.css": CSS,
    "site/assets/css/fonts/K.woff2": "font",
    "site/assets/js/site.js": "var a = '</script>';\n//# sourceMappingURL=site.js.map\n",
    "site/assets/img/dot.svg": "<svg xmlns='http://www.w3.org/2000/svg'/>",
    "site/assets/manual/favicon.svg": "<svg xmlns='http://www.w3.org/2000/svg'/>",
    "mkdocs.yml": "nav:\n  - 开始: index.md\n  - 第 5 章:\n      - ch5/one.md\n      - 以后: ch5/later.md\n",
    "mkdocs.en.yml": "nav:\n  - Start: index.md\n  - Chapter 5:\n      - ch5/one.md\n      - Later: ch5/later.md\n",
}
