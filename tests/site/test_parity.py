"""The check of the two languages, proven by planting each kind of fault."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nanolab.manual import parity
from nanolab.manual.errors import ManualError

PAIR = {
    "zh": """# 5.2 请求 {#top}

开头有 3 个 id，跑 `#!value quick-A steps` 步，状态是 3/0/3。

```bash
--8<-- "docs/commands/5-2.sh:quick-a"
```

## 案例 {#case}

块大小是 256，共 1,024 个位置。[见后文](x.md#y9)

```block id="quick-A" fields="steps" labels="步数"
```

```source file="src/a.py" symbol="f"
```

```figure id="5-2"
三个范围。
```
""",
    "en": """# 5.2 Requests {#top}

It starts with 3 ids and takes `#!value quick-A steps` steps; the state is 3/0/3.

```bash
--8<-- "docs/commands/5-2.sh:quick-a"
```

## Case {#case}

The block size is 256; there are 1024 positions. [Later](x.md#y7)

```block id="quick-A" fields="steps" labels="steps"
```

```source file="src/a.py" symbol="f"
```

```figure id="5-2"
Three ranges.
```
""",
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for language, text in PAIR.items():
        put(tmp_path, language, text)
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.py").write_text("def f():\n    one = 1\n    two = 2\n    three = 3\n    return one\n")
    return tmp_path


def put(root: Path, language: str, text: str) -> None:
    path = root / "docs" / language / "ch5" / "page.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def found(root: Path) -> list[str]:
    return [str(d) for d in parity.check(root)]


def test_a_confirmed_pair_is_in_step(root: Path) -> None:
    assert found(root) == ["ch5/page: never confirmed; read both, then `parity.py confirm ch5/page`"]
    parity.confirm(root, "ch5/page")
    assert found(root) == []


@pytest.mark.parametrize(
    ("language", "before", "after", "why"),
    [
        ("en", "{#case}", "{#cases}", "headings differ"),
        ("en", "## Case", "### Case", "headings differ"),
        ("en", " {#case}", "", "needs an explicit"),
        ("zh", ":quick-a", ":quick-b", "commands differ"),
        ("en", 'id="quick-A" f', 'id="quick-B" f', "result blocks differ"),
        ("en", 'fields="steps"', 'fields="rounds"', "result blocks differ"),
        ("zh", 'symbol="f"', 'symbol="g"', "code excerpts differ"),
        ("zh", 'figure id="5-2"', 'figure id="5-3"', "figures differ"),
        ("en", "quick-A steps`", "quick-A rounds`", "inline values differ"),
        ("en", "is 256", "is 128", "numbers differ: only in zh: 256; only in en: 128"),
        ("zh", "1,024", "1,023", "only in zh: 1023; only in en: 1024"),
        ("zh", "3/0/3", "3/0/2", "numbers differ"),
        ("zh", "有 3 个 id", "有3个id 与 4", "only in zh: 4"),
        ("en", "The block", "```python\nprint(1)\n```\n\nThe block", "fences differ"),
        ("en", '--8<-- "docs/commands/5-2.sh:quick-a"', "python x.py", "must be one section of docs/commands"),
        ("en", 'id="quick-A" fields', "id=quick-A fields", "write block options"),
        ("en", "Three ranges.\n```", "Three ranges.", "never closed"),
        ("en", "The block size", "```text\n$ python x.py\n```\n\nThe block size", "a prompt"),
    ],
)
def test_a_planted_fault_is_found(root: Path, language: str, before: str, after: str, why: str) -> None:
    parity.confirm(root, "ch5/page")
    assert before in PAIR[language]
    put(root, language, PAIR[language].replace(before, after))
    assert any(why in line for line in found(root)), found(root)
    with pytest.raises(ManualError, match="must be mended"):
        parity.confirm(root, "ch5/page")


def test_digits_beside_chinese_count_as_the_same_number(root: Path) -> None:
    put(root, "zh", PAIR["zh"].replace("有 3 个 id", "有3个id"))
    assert not any("numbers" in line for line in found(root))


def test_a_number_can_be_excused(root: Path) -> None:
    put(root, "en", PAIR["en"].replace("is 256", "is 256, a power of 2 <!-- parity: numbers 2 -->"))
    assert not any("numbers" in line for line in found(root))


@pytest.mark.parametrize("file", ["src/a.py", "scripts/e2e/a.py"])
def test_pasted_code_is_found(root: Path, file: str) -> None:
    (root / file).parent.mkdir(parents=True, exist_ok=True)
    (root / "src/a.py").rename(root / file)
    pasted = "\n```python\n    one = 1\n\n    two = 2\n    three = 3\n    return one\n```\n"
    for language, text in PAIR.items():
        put(root, language, text + pasted)
    assert any(f"this code exists in {file}" in line for line in found(root))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"zh": ("块大小", "块的大小")}, "ch5/page#case: zh changed, en did not"),
        ({"en": ("The block size", "Block size")}, "ch5/page#case: en changed, zh did not"),
        ({"zh": ("块大小", "块的大小"), "en": ("The block", "A block")}, "ch5/page#case: both languages changed"),
    ],
)
def test_the_lock_names_the_section(root: Path, changes: dict[str, tuple[str, str]], expected: str) -> None:
    parity.confirm(root, "ch5/page")
    for language, (before, after) in changes.items():
        put(root, language, PAIR[language].replace(before, after))
    lines = found(root)
    assert len(lines) == 1
    assert lines[0].startswith(expected)
    parity.confirm(root, "ch5/page")
    assert found(root) == []


def test_new_and_removed_sections_are_named(root: Path) -> None:
    parity.confirm(root, "ch5/page")
    for language, text in PAIR.items():
        put(root, language, text.replace("{#case}", "{#other}"))
    assert found(root) == [
        "ch5/page#other: this section is new since the pair was confirmed",
        "ch5/page#case: this section is gone since the pair was confirmed",
    ]


def test_blank_lines_do_not_count_as_a_change(root: Path) -> None:
    parity.confirm(root, "ch5/page")
    put(root, "zh", PAIR["zh"].replace("\n\n", "\n\n\n"))
    assert found(root) == []


def test_a_page_without_its_twin(root: Path) -> None:
    (root / "docs" / "en" / "ch5" / "page.md").unlink()
    assert found(root) == ["ch5/page: docs/en/ch5/page.md does not exist"]


def test_a_lock_without_its_page(root: Path) -> None:
    parity.confirm(root, "ch5/page").rename(root / parity.LOCK_DIR / "gone.json")
    assert "gone: docs/parity/gone.json locks a page that does not exist" in found(root)


def test_what_is_planned_and_not_there_is_named(root: Path) -> None:
    (root / "mkdocs.yml").write_text("nav:\n  - A: ch5/page.md\n  - B:\n      - C: ch5/later.md\n")
    (root / "docs" / "commands").mkdir()
    (root / "docs" / "commands" / "5-2.sh").write_text(
        "".join(f"# tier: cpu\n# --8<-- [start:{n}]\ntrue\n# --8<-- [end:{n}]\n" for n in ("quick-a", "unused"))
    )
    (root / "scripts" / "e2e").mkdir(parents=True)
    (root / "scripts" / "e2e" / "new.py").touch()
    assert [str(d) for d in parity.incomplete(root)] == [
        "ch5/later.md: planned, not written",
        "scripts/e2e/new.py: not in the command reference",
        "docs/commands/5-2.sh#unused: no page shows this",
    ]


def _notebook(root: Path, language: str, code: str) -> None:
    path = root / "docs" / language / "notebooks" / "n.ipynb"
    path.parent.mkdir(exist_ok=True)
    cells = [{"cell_type": "markdown", "source": [language]}, {"cell_type": "code", "source": [code]}]
    path.write_text(json.dumps({"cells": cells}))


def test_notebooks_have_equal_code(root: Path) -> None:
    parity.confirm(root, "ch5/page")
    _notebook(root, "zh", "x = 1  # 一\n")
    assert found(root) == ["notebooks/n.ipynb: docs/en/notebooks/n.ipynb does not exist"]
    _notebook(root, "en", "x = 1  # one\n")
    assert found(root) == []
    _notebook(root, "en", "x = 2  # two\n")
    assert found(root)[0].startswith("notebooks/n.ipynb: code cells differ")
