"""The two languages kept in step: what must be equal in a pair of pages, and the lock that notices a one-sided change.

The lock of a page, `docs/parity/PAGE.json`, holds for each heading id the hash of the Chinese and of the English
section at the time somebody confirmed that both say the same. Hashes survive shallow clones and rebases, commit dates
do not.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from nanolab.manual import commands, programs
from nanolab.manual.errors import ManualError
from nanolab.manual.pages import SHELL, Fence, PageText, Part, lint, read
from nanolab.manual.texts import Language

LOCK_DIR = "docs/parity"
PASTED_LINES = 4  # this many consecutive lines of code that exist in the tree are a paste
CODE_ROOTS = ("src", "scripts")

# 3, 0.5, 1,024, 3.11.2, 3/0/3; not the digits inside a name, a path or an option
_NUMBER = re.compile(r"(?<![\w.#/-])(?:\d{1,3}(?:,\d{3})+|\d+)(?:[./]\d+)*(?![\w/])")
_EXCUSED = re.compile(r"<!--\s*parity:\s*numbers\s+([\d.,\s]+?)\s*-->")
_NOT_PROSE = re.compile(
    r"<!--.*?-->"  # comments
    r"|\]\([^)]*\)"  # link targets
    r"|\{[^{}\n]*\}"  # attribute lists
    r"|<[^>\n]*>"  # tags
    r"|`#![^`]*`",  # inline values are compared on their own
    re.DOTALL,
)
_INLINE_VALUE = re.compile(r"`#!value\s+([^`]+?)\s*`")
_IMAGE = re.compile(r"!\[[^\]]*\]\(([^)\s]+)")
_CJK = r"\u3400-\u9fff\uff00-\uffef\u3000-\u303f"
_LABELLED = {"labels"}  # options whose text belongs to the language


@dataclass(frozen=True)
class Difference:
    """One thing in which a pair of pages is out of step."""

    page: str
    section: str  # heading id; empty for the whole page
    why: str

    def __str__(self) -> str:
        place = f"{self.page}#{self.section}" if self.section else self.page
        return f"{place}: {self.why}"


def page_names(root: Path) -> list[str]:
    """Every page of either language, without its suffix."""
    names = set()
    for language in Language:
        docs = root / "docs" / language
        names |= {p.relative_to(docs).with_suffix("").as_posix() for p in docs.rglob("*.md")}
    return sorted(names)


def check(root: Path, names: Sequence[str] = ()) -> list[Difference]:
    """Everything that is out of step, in the pages called `names` (all when empty)."""
    code = _code_index(root)
    differences = []
    for name in names or page_names(root):
        differences.extend(check_page(root, name, code))
    if not names:
        differences.extend(_notebooks(root))
        differences.extend(_orphan_locks(root))
    return differences


def incomplete(root: Path) -> list[Difference]:
    """What is planned or there for readers and no page shows: pages, command sections, programs."""
    nav = yaml.safe_load((root / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    docs = root / "docs" / Language.ZH
    found = [Difference(page, "", "planned, not written") for page in _planned(nav) if not (docs / page).is_file()]
    fences = [f for path in docs.rglob("*.md") for f in read(path.read_text(encoding="utf-8")).fences]
    shown = {fence.include for fence in fences}
    found += [Difference(file, "", "not in the command reference") for file in programs.unlisted(root, Language.ZH)]
    for section in commands.load(root):
        if section.ref not in shown:
            found.append(Difference(f"{commands.COMMANDS_DIR}/{section.file}.sh", section.name, "no page shows this"))
    return found


def _planned(nav: list[Any]) -> Iterator[str]:
    for item in nav:
        target = next(iter(item.values())) if isinstance(item, dict) else item
        if isinstance(target, list):
            yield from _planned(target)
        else:
            yield target


def check_page(root: Path, name: str, code: dict[str, str] | None = None) -> list[Difference]:
    """One pair: both exist, both obey the page rules, equal structure, and the lock holds."""
    texts = {language: _markdown(root, language, name) for language in Language}
    missing = [language for language, text in texts.items() if text is None]
    if missing:
        return [Difference(name, "", f"docs/{missing[0]}/{name}.md does not exist")]
    found = []
    pages: list[PageText] = []
    for language, text in texts.items():
        assert text is not None  # excluded above
        pages.append(read(text))
        found += [Difference(name, "", f"{language}: {why}") for why in lint(text)]
        found += [Difference(name, "", f"{language}: {why}") for why in _pasted(pages[-1], code or {})]
    structure = list(_structure(name, *pages))
    return found + structure + ([] if structure else list(_lock_state(root, name, *pages)))


def confirm(root: Path, name: str) -> Path:
    """Record that both languages of a page say the same now; refused while its structure differs."""
    wrong = [d for d in check_page(root, name, _code_index(root)) if not isinstance(d, LockDifference)]
    if wrong:
        raise ManualError("not confirmed, these must be mended first:\n" + "\n".join(f"  {d}" for d in wrong))
    lock = {key: {"zh": zh, "en": en} for key, (zh, en) in _hashes(root, name).items()}
    path = lock_path(root, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(lock, indent=1) + "\n", encoding="utf-8")
    return path


class LockDifference(Difference):
    """Structure is equal, but somebody has to read both sides and confirm."""


def lock_path(root: Path, name: str) -> Path:
    return root / LOCK_DIR / f"{name}.json"


# -- structure ---------------------------------------------------------------------------------------------------------


def _structure(name: str, zh: PageText, en: PageText) -> Iterator[Difference]:
    heads = [[(h.level, h.id) for h in page.headings] for page in (zh, en)]
    if heads[0] != heads[1]:
        yield Difference(name, "", f"headings differ: {_first_difference(*heads)}")
        return
    if len(zh.parts) != len(en.parts):
        yield Difference(name, "", "only one language has text before the first heading")
        return
    for left, right in zip(zh.parts, en.parts, strict=True):
        for what, extract in _ASPECTS:
            ours, theirs = extract(left), extract(right)
            if ours != theirs:
                yield Difference(name, left.heading.id, f"{what} differ: {_first_difference(ours, theirs)}")
        numbers = _number_difference(left, right)
        if numbers:
            yield Difference(name, left.heading.id, numbers)


def _first_difference(zh: Sequence[object], en: Sequence[object]) -> str:
    for left, right in zip(zh, en, strict=False):
        if left != right:
            return f"zh {_show(left)}, en {_show(right)}"
    longer, more = ("zh", zh) if len(zh) > len(en) else ("en", en)
    return f"only {longer} has {_show(more[min(len(zh), len(en))])}"


def _show(value: object) -> str:
    text = " ".join(str(part) for part in value) if isinstance(value, tuple) else str(value)
    return repr(text if len(text) <= 100 else text[:97] + "...")


def _commands(part: Part) -> list[str]:
    return [fence.include for fence in part.fences if fence.language in SHELL]


def _embedded(part: Part, language: str) -> list[tuple[str, ...]]:
    """The options of each fence of this kind, without the texts that belong to a language."""
    return [
        tuple(f"{key}={value}" for key, value in sorted(fence.options.items()) if key not in _LABELLED)
        for fence in part.fences
        if fence.language == language
    ]


def _map_targets(part: Part) -> list[str]:
    lines = (line for f in part.fences if f.language == "map" for line in f.body.splitlines() if line.strip())
    return [line.split("|")[0].strip() for line in lines]


def _code(part: Part) -> list[str]:
    """Fences of a programming language are the same in both; `text` fences may hold words of a language."""
    return [f"{f.language}: {f.body}" for f in part.fences if f.language in {"python", "json", "toml", "diff", "yaml"}]


def _other_fences(part: Part) -> list[str]:
    return [fence.language for fence in part.fences]


_ASPECTS = (
    ("fences", _other_fences),
    ("commands", _commands),
    ("result blocks", lambda part: _embedded(part, "block")),
    ("code excerpts", lambda part: _embedded(part, "source")),
    ("figures", lambda part: [*_embedded(part, "figure"), *_IMAGE.findall(part.prose)]),
    ("inline values", lambda part: sorted(_INLINE_VALUE.findall(part.prose))),
    ("programs", lambda part: _embedded(part, "program")),
    ("map entries", _map_targets),
    ("code fences", _code),
)


def numbers(part: Part) -> set[str]:
    """The numbers written in digits in a section's prose and plain-text fences, thousands separators dropped."""
    plain = [f.body for f in part.fences if f.language in {"text", ""}]
    prose = _NOT_PROSE.sub(" ", part.prose)
    # A digit right beside a Chinese character is a word boundary for a reader, not for a regular expression.
    prose = re.sub(f"(?<=[{_CJK}])(?=[\\dA-Za-z])|(?<=[\\dA-Za-z])(?=[{_CJK}])", " ", "\n".join([prose, *plain]))
    return {match.replace(",", "") for match in _NUMBER.findall(prose)}


def _number_difference(zh: Part, en: Part) -> str:
    excused = {
        number.strip() for part in (zh, en) for match in _EXCUSED.findall(part.text) for number in match.split(",")
    }
    ours, theirs = numbers(zh), numbers(en)
    parts = [
        f"only in {language}: {', '.join(sorted(only))}"
        for language, only in (("zh", ours - theirs - excused), ("en", theirs - ours - excused))
        if only
    ]
    return f"numbers differ: {'; '.join(parts)}" if parts else ""


# -- pasted code -------------------------------------------------------------------------------------------------------


def _code_index(root: Path) -> dict[str, str]:
    """Every run of PASTED_LINES consecutive code lines in the tree, stripped and joined, and the file it stands in."""
    index: dict[str, str] = {}
    for folder in CODE_ROOTS:
        for path in sorted((root / folder).rglob("*.py")):
            lines = _code_lines(path.read_text(encoding="utf-8"))
            for start in range(len(lines) - PASTED_LINES + 1):
                index.setdefault("\n".join(lines[start : start + PASTED_LINES]), path.relative_to(root).as_posix())
    return index


def _code_lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


def _pasted(page: PageText, code: dict[str, str]) -> Iterator[str]:
    for fence in page.fences:
        if fence.language in {"python", "py", "text", ""}:
            source = _paste_source(fence, code)
            if source:
                yield f"line {fence.line}: this code exists in {source}; embed it with a source fence"


def _paste_source(fence: Fence, code: dict[str, str]) -> str:
    lines = _code_lines(fence.body)
    for start in range(len(lines) - PASTED_LINES + 1):
        source = code.get("\n".join(lines[start : start + PASTED_LINES]))
        if source:
            return source
    return ""


# -- the lock ----------------------------------------------------------------------------------------------------------


def _hashes(root: Path, name: str) -> dict[str, tuple[str, str]]:
    """Heading id -> hash of the section in each language; what stands before the first heading has the id ''."""
    sides = []
    for language in Language:
        text = _markdown(root, language, name)
        assert text is not None  # callers have checked that both exist
        sides.append({part.heading.id: _hash(part.text) for part in read(text).parts})
    return {key: (value, sides[1][key]) for key, value in sides[0].items()}


def _hash(text: str) -> str:
    """Trailing blanks and the number of blank lines do not count as a change."""
    lines = [line.rstrip() for line in text.splitlines()]
    return hashlib.sha256("\n".join(line for line in lines if line).encode()).hexdigest()[:16]


def _lock_state(root: Path, name: str, zh: PageText, en: PageText) -> Iterator[LockDifference]:
    path = lock_path(root, name)
    if not path.is_file():
        yield LockDifference(name, "", f"never confirmed; read both, then `parity.py confirm {name}`")
        return
    locked = json.loads(path.read_text(encoding="utf-8"))
    current = _hashes(root, name)
    for key, (ours, theirs) in current.items():
        before = locked.get(key)
        if before is None:
            yield LockDifference(name, key, "this section is new since the pair was confirmed")
            continue
        changed = [lang for lang, value in (("zh", ours), ("en", theirs)) if before[lang] != value]
        if len(changed) == 1:
            other = "en" if changed == ["zh"] else "zh"
            yield LockDifference(name, key, f"{changed[0]} changed, {other} did not")
        elif changed:
            yield LockDifference(name, key, "both languages changed; read them side by side and confirm")
    for key in locked:
        if key not in current:
            yield LockDifference(name, key, "this section is gone since the pair was confirmed")


def _orphan_locks(root: Path) -> Iterator[Difference]:
    names = set(page_names(root))
    for path in sorted((root / LOCK_DIR).rglob("*.json")):
        name = path.relative_to(root / LOCK_DIR).with_suffix("").as_posix()
        if name not in names:
            yield Difference(name, "", f"{LOCK_DIR}/{name}.json locks a page that does not exist")


def _notebooks(root: Path) -> Iterator[Difference]:
    """Notebooks come in pairs with equal code; the sentences between it are each language's own."""
    folders = [root / "docs" / language for language in Language]
    names = {
        p.relative_to(f).as_posix() for f in folders for p in f.rglob("*.ipynb") if ".ipynb_checkpoints" not in p.parts
    }
    for name in sorted(names):
        pair = [folder / name for folder in folders]
        absent = [path for path in pair if not path.is_file()]
        if absent:
            yield Difference(name, "", f"{absent[0].relative_to(root).as_posix()} does not exist")
            continue
        cells = [_code_cells(path) for path in pair]
        if cells[0] != cells[1]:
            yield Difference(name, "", f"code cells differ: {_first_difference(*cells)}")


def _code_cells(path: Path) -> list[str]:
    """Code without comments, which belong to a language."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    sources = ("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    return [re.sub(r"[ \t]*#[^\n]*", "", source).strip() for source in sources]


def _markdown(root: Path, language: Language, name: str) -> str | None:
    path = root / "docs" / language / f"{name}.md"
    return path.read_text(encoding="utf-8") if path.is_file() else None
