"""Code shown in the manual: located by Python symbol or by named section, never by typed line numbers.

`Excerpt.first` and `.last` are the lines in the file as it is at build time, counted from 1, both included.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path

from nanolab.manual.errors import ManualError

MAX_WHOLE_FILE = 160  # a longer file must be shown by symbol or section

_SECTION = r"-+8<-+\s*\[{kind}:\s*{name}\s*\]"


@dataclass(frozen=True)
class Excerpt:
    """Some consecutive lines of one file of the tree."""

    file: str  # relative to the tree's root, with forward slashes
    first: int
    last: int
    code: str  # dedented, without a trailing newline

    @property
    def language(self) -> str:
        return _LANGUAGES.get(Path(self.file).suffix, "text")


_LANGUAGES = {
    ".py": "python",
    ".sh": "bash",
    ".toml": "toml",
    ".yml": "yaml",
    ".json": "json",
    ".jsonl": "json",
    ".patch": "diff",
    ".diff": "diff",
    ".cu": "cuda",
}


def extract(
    root: Path,
    file: str,
    *,
    symbol: str | None = None,
    section: str | None = None,
    start: str | None = None,
    end: str | None = None,
) -> Excerpt:
    """The lines of `symbol`, of `section`, or the whole short file; `start` and `end` are texts found inside that
    range and narrow it to the first line holding each (both included)."""
    path = _path_inside(root, file)
    lines = path.read_text(encoding="utf-8").splitlines()
    if symbol is not None and section is not None:
        raise ManualError(f"{file}: give a symbol or a section, not both")
    if symbol is not None:
        first, last = _symbol_lines(file, "\n".join(lines) + "\n", symbol)
    elif section is not None:
        first, last = _section_lines(file, lines, section)
    else:
        first, last = _whole_file(file, lines, narrowed=start is not None)
    first, last = _narrow(file, lines, first, last, start, end)
    return Excerpt(file, first, last, _dedent(lines[first - 1 : last]))


def _path_inside(root: Path, file: str) -> Path:
    path = (root / file).resolve()
    if not path.is_relative_to(root.resolve()):
        raise ManualError(f"{file!r} lies outside the tree")
    if not path.is_file():
        raise ManualError(f"no file {file!r} in the tree")
    return path


def _symbol_lines(file: str, source: str, symbol: str) -> tuple[int, int]:
    """Lines of a class, function, method (`Class.method`) or module-level assignment, decorators included."""
    nodes: list[ast.stmt] = ast.parse(source, file).body
    found: ast.stmt | None = None
    for name in symbol.split("."):
        found = next((n for n in nodes if name in _names(n)), None)
        if found is None:
            raise ManualError(f"{file} has no symbol {symbol!r} (looking for {name!r})")
        nodes = getattr(found, "body", [])
    assert found is not None  # split always gives one name
    decorators = getattr(found, "decorator_list", [])
    first = min([found.lineno, *(d.lineno for d in decorators)])
    return first, found.end_lineno or found.lineno


def _names(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return {node.name}
    if isinstance(node, ast.Assign):
        return {t.id for t in node.targets if isinstance(t, ast.Name)}
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return {node.target.id}
    return set()


def _section_lines(file: str, lines: list[str], name: str) -> tuple[int, int]:
    begin, finish = (re.compile(_SECTION.format(kind=k, name=re.escape(name))) for k in ("start", "end"))
    starts = [i for i, line in enumerate(lines, 1) if begin.search(line)]
    ends = [i for i, line in enumerate(lines, 1) if finish.search(line)]
    if len(starts) != 1 or len(ends) != 1 or ends[0] <= starts[0] + 1:
        raise ManualError(f"{file} has no section {name!r} (needs one [start:{name}] and one [end:{name}])")
    return starts[0] + 1, ends[0] - 1


def _whole_file(file: str, lines: list[str], *, narrowed: bool) -> tuple[int, int]:
    is_patch = Path(file).suffix in {".patch", ".diff"}
    if len(lines) > MAX_WHOLE_FILE and not is_patch and not narrowed:
        raise ManualError(f"{file} has {len(lines)} lines, more than {MAX_WHOLE_FILE}: show it by symbol or by section")
    if not lines:
        raise ManualError(f"{file} is empty")
    return 1, len(lines)


def _narrow(file: str, lines: list[str], first: int, last: int, start: str | None, end: str | None) -> tuple[int, int]:
    if start is not None:
        first = _line_with(file, lines, first, last, start)
    if end is not None:
        last = _line_with(file, lines, first, last, end)
    while last > first and not lines[last - 1].strip():
        last -= 1
    return first, last


def _line_with(file: str, lines: list[str], first: int, last: int, text: str) -> int:
    for number in range(first, last + 1):
        if text in lines[number - 1]:
            return number
    raise ManualError(f"{file}: {text!r} is not in lines {first} to {last}")


def _dedent(lines: list[str]) -> str:
    margin = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    return "\n".join(line[margin:] for line in lines)
