"""Cuts a symbol's lines out of a file, with their real numbers."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from nanolab.errors import LabError
from nanolab.sources import EngineSource

from .topics import Part, Topic


@dataclass(frozen=True)
class Excerpt:
    file: str  # relative to the engine's root
    symbol: str
    first: int
    lines: tuple[str, ...]
    en: str
    zh: str


def symbol_range(source: str, symbol: str) -> tuple[int, int] | None:
    """First and last line of a function, class, method (`Class.method`) or assignment, decorators included."""
    nodes: list[ast.stmt] = ast.parse(source).body
    found: ast.stmt | None = None
    for name in symbol.split("."):
        found = next((node for node in nodes if name in names_of(node)), None)
        if found is None:
            return None
        nodes = getattr(found, "body", [])
    assert found is not None
    decorators = getattr(found, "decorator_list", [])
    return min([found.lineno, *(d.lineno for d in decorators)]), found.end_lineno or found.lineno


def names_of(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return {node.name}
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return {target.id for target in targets if isinstance(target, ast.Name)}


def locate(source: EngineSource, part: Part) -> Excerpt | None:
    """The first of the part's places that this engine has; None if it has none."""
    for module, symbol in part.places:
        path = source.package_dir / f"{module}.py"
        if not path.is_file():
            continue
        text = path.read_text("utf-8")
        try:
            found = symbol_range(text, symbol)
        except SyntaxError as error:
            raise LabError(f"{path} line {error.lineno} is not valid Python ({error.msg}); correct it first") from error
        if found:
            first, last = found
            lines = tuple(text.splitlines()[first - 1 : last])
            return Excerpt(f"{source.package}/{module}.py", symbol, first, lines, part.en, part.zh)
    return None


def excerpts(source: EngineSource, topic: Topic) -> Iterator[Excerpt]:
    """Every part of the topic that this engine has; LabError if one that it must have is gone."""
    for part in topic.parts:
        found = locate(source, part)
        if found is not None:
            yield found
        elif source.kind not in part.absent_from:
            wanted = " or ".join(f"{module}.py: {symbol}" for module, symbol in part.places)
            raise LabError(f"{source.package_dir} no longer has {wanted}; if you renamed it, read it there")


def render(excerpt: Excerpt) -> str:
    """Heading, the two notes, and the numbered lines."""
    last = excerpt.first + len(excerpt.lines) - 1
    width = len(str(last))
    numbered = (f"{excerpt.first + i:>{width}} | {line}".rstrip() for i, line in enumerate(excerpt.lines))
    head = f"== {excerpt.file}:{excerpt.first}-{last}  {excerpt.symbol}"
    return "\n".join([head, f"   {excerpt.zh}", f"   {excerpt.en}", *numbered, ""])
