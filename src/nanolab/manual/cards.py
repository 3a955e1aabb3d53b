"""How a result block looks: one card, one value in a sentence, and the index of all blocks.

Verdict and evidence type are always written as words; colour only repeats them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from nanolab.manual.blocks import Missing, Recorded
from nanolab.manual.errors import ManualError
from nanolab.manual.texts import Language, text

VIEWS = ("table", "json")
_GLYPH = {"PASS": "✓", "COLLECTED": "●", "FAIL": "✕", "REVIEW": "?", "PENDING": "…"}


def card(
    block: Recorded | Missing,
    language: Language,
    *,
    command_html: str,
    fields: Sequence[str] = (),
    labels: Sequence[str] = (),
    view: str = "table",
) -> str:
    """One block. `command_html` is the highlighted command, made by the caller, who has the highlighter."""
    if view not in VIEWS:
        raise ManualError(f"view={view!r}: one of {', '.join(VIEWS)}")
    if labels and len(labels) != len(fields):
        raise ManualError(f"block {block.id!r}: {len(labels)} labels for {len(fields)} fields")
    if isinstance(block, Missing):
        return _pending(block, language, command_html)
    chips = [_chip(text(language, f"evidence.{block.data['evidence']}"), str(block.data["evidence"]))]
    if (block.data.get("model") or {}).get("synthetic"):
        chips.append(_chip(text(language, "card.synthetic"), "synthetic"))
    if block.stale:
        chips.append(_chip(text(language, "card.stale"), "stale"))
    parts = [_head(block, language, title(block, language), chips)]
    if block.stale:
        parts.append(f'<p class="nl-block__why">{escape(text(language, "card.stale.why"))}</p>')
    if fields:
        named = list(zip(labels or fields, (block.value(f) for f in fields), strict=True))
        parts.append(_json(named) if view == "json" else _table(named, language, labelled=bool(labels)))
    parts.append(command_html)
    parts.append(_conditions(block, language))
    return _frame(block, language, parts)


def inline(block: Recorded | Missing, language: Language, path: str, spec: str = "") -> str:
    """One value inside a sentence, with its origin as the hover text."""
    if isinstance(block, Missing):
        label = escape(text(language, "verdict.PENDING"))
        return f'<span class="nl-value nl-value--pending" title="{escape(block.id)}">PENDING · {label}</span>'
    value = block.value(path)
    try:
        shown = format(value, spec) if spec else _plain(value)
    except (ValueError, TypeError) as error:
        raise ManualError(f"block {block.id!r}: {path}={value!r} cannot be shown as {spec!r}") from error
    kind = text(language, f"evidence.{block.data['evidence']}")
    origin = f"{block.id} · {path} · {kind} · {block.date}"
    return f'<span class="nl-value" title="{escape(origin)}">{escape(shown)}</span>'


def title(block: Recorded | Missing, language: Language) -> str:
    """The block's title in `language`; a block whose title is one string has it for both."""
    if isinstance(block, Missing):
        return block.id
    value = block.data.get("title", block.id)
    return str(value.get(language.value, block.id)) if isinstance(value, Mapping) else str(value)


def error_card(language: Language, why: str) -> str:
    """What `mkdocs serve` shows where a strict build stops."""
    return (
        f'<div class="nl-block nl-block--error" role="alert"><p><strong>{escape(text(language, "card.error"))}'
        f"</strong></p><p>{escape(why)}</p></div>"
    )


def _frame(block: Recorded | Missing, language: Language, parts: Sequence[str]) -> str:
    label = f"{text(language, 'card.region')}: {block.id}"
    return (
        f'<div class="nl-block nl-block--{block.verdict.lower()}" data-block="{escape(block.id)}" role="group" '
        f'aria-label="{escape(label)}">' + "".join(parts) + "</div>"
    )


def _head(block: Recorded | Missing, language: Language, name: str, chips: Sequence[str]) -> str:
    meaning = text(language, f"verdict.{block.verdict}")
    return (
        f'<header class="nl-block__head">{_verdict(block.verdict, meaning)}'
        f'<strong class="nl-block__title">{escape(name)}</strong>'
        f'<span class="nl-block__chips">{"".join(chips)}</span></header>'
    )


def _verdict(verdict: str, meaning: str = "") -> str:
    small = f"<small> {escape(meaning)}</small>" if meaning else ""
    return (
        f'<span class="nl-verdict nl-verdict--{verdict.lower()}"><span aria-hidden="true">{_GLYPH[verdict]}</span>'
        f" {verdict}{small}</span>"
    )


def _chip(label: str, kind: str) -> str:
    return f'<span class="nl-chip nl-chip--{escape(kind)}">{escape(label)}</span>'


def _pending(block: Missing, language: Language, command_html: str) -> str:
    why = f'<p class="nl-block__why">{escape(text(language, "card.pending"))}</p>'
    chips = [_chip(text(language, f"tier.{block.section.tier}"), f"tier-{block.section.tier}")]
    return _frame(block, language, [_head(block, language, block.id, chips), why, command_html])


def _table(named: Sequence[tuple[str, Any]], language: Language, *, labelled: bool) -> str:
    rows = []
    for name, value in named:
        head = escape(name) if labelled else f"<code>{escape(name)}</code>"
        rows.append(f'<tr><th scope="row">{head}</th><td>{_cell(value)}</td></tr>')
    header = f"<tr><th>{text(language, 'card.field')}</th><th>{text(language, 'card.value')}</th></tr>"
    return _scrolling(header, "".join(rows))


def _scrolling(head: str, rows: str) -> str:
    """A table that scrolls inside its own frame on a narrow screen."""
    table = f'<table class="nl-table"><thead>{head}</thead><tbody>{rows}</tbody></table>'
    return f'<div class="nl-scroll">{table}</div>'


def _cell(value: Any) -> str:
    """Scalars and short lists as code; a list of records as a table of its own."""
    if isinstance(value, list) and value and all(isinstance(row, Mapping) for row in value):
        columns = list(dict.fromkeys(key for row in value for key in row))
        head = "".join(f"<th>{escape(str(c))}</th>" for c in columns)
        body = "".join(
            "<tr>" + "".join(f"<td>{_cell(row[c]) if c in row else ''}</td>" for c in columns) + "</tr>"
            for row in value
        )
        return f'<table class="nl-table nl-inner"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
    if isinstance(value, Mapping) and value:
        rows = "".join(f'<tr><th scope="row">{escape(str(k))}</th><td>{_cell(v)}</td></tr>' for k, v in value.items())
        return f'<table class="nl-table nl-inner"><tbody>{rows}</tbody></table>'
    return f"<code>{escape(_plain(value))}</code>"


def _plain(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return f"{value:.6g}"
    return json.dumps(value, ensure_ascii=False)


def _json(named: Sequence[tuple[str, Any]]) -> str:
    excerpt = json.dumps(dict(named), ensure_ascii=False, indent=2)
    return f'<div class="highlight nl-json"><pre><code>{escape(excerpt)}</code></pre></div>'


def _conditions(block: Recorded, language: Language) -> str:
    data = block.data
    git = data.get("git") or {}
    dirty = f" ({text(language, 'card.dirty')})" if git.get("dirty") else ""
    rows = [
        ("card.id", block.id),
        ("card.date", f"{str(data['started_at']).replace('T', ' ')} · {_seconds(data.get('duration_s'))}"),
        ("card.device", describe(data.get("device"), ("name", "kind", "count", "driver", "cuda"))),
        ("card.engine", describe(data.get("engine"), ("kind", "package", "commit", "patches", "attention_backend"))),
        ("card.model", describe(data.get("model"), ("name", "config_sha256", "weights_sha256"))),
        ("card.versions", " · ".join(f"{k} {v}" for k, v in (data.get("versions") or {}).items() if v)),
        ("card.commit", f"{str(git.get('commit') or '')[:12]}{dirty}".strip()),
        ("card.notes", " ".join(str(n) for n in data.get("notes") or [])),
    ]
    items = "".join(
        f"<div><dt>{text(language, key)}</dt><dd>{escape(value)}</dd></div>" for key, value in rows if value
    )
    summary = f"{text(language, 'card.conditions')} · {block.date}"
    device = device_name(data)
    if device:
        summary += f" · {device}"
    return (
        f'<details class="nl-block__conditions" data-search-exclude><summary>{escape(summary)}</summary>'
        f"<dl>{items}</dl></details>"
    )


def device_name(data: Mapping[str, Any]) -> str:
    device = data.get("device") or {}
    return str(device.get("name") or device.get("kind") or "")


def describe(part: Any, keys: Sequence[str]) -> str:
    """The named members of a block's part on one line; hashes are cut to 12 characters."""
    if not isinstance(part, Mapping):
        return ""
    shown = []
    for key in keys:
        value = part.get(key)
        if value in (None, "", []):
            continue
        if key.endswith("sha256") or key == "commit":
            value = str(value)[:12]
        if isinstance(value, list):
            value = ", ".join(str(v) for v in value)
        shown.append(str(value) if key in {"name", "kind"} else f"{key} {value}")
    return " · ".join(shown)


def _seconds(value: Any) -> str:
    return f"{float(value):.3g} s" if isinstance(value, int | float) else ""


def index(blocks: Sequence[Recorded | Missing], language: Language, users: Mapping[str, str]) -> str:
    """Every block as one filterable table; `users` maps an id to links. Without JavaScript the whole table is shown."""
    if not blocks:
        return f"<p>{escape(text(language, 'index.empty'))}</p>"
    rows = [_index_row(block, language, users.get(block.id, "—")) for block in blocks]
    parts = ("title", "verdict", "type", "device", "date", "stale", "pages")
    columns = [f"index.{part}" for part in parts]
    head = "".join(f"<th>{text(language, key)}</th>" for key in columns)
    filters = "".join(_filter(blocks, language, name) for name in ("type", "device", "verdict", "stale"))
    count = escape(text(language, "index.count"))
    return (
        f'<div class="nl-index" data-count="{count}"><form class="nl-index__filters">{filters}'
        f'<output class="nl-index__count"></output></form>{_scrolling(f"<tr>{head}</tr>", "".join(rows))}</div>'
    )


def facets(block: Recorded | Missing, language: Language) -> dict[str, str]:
    """The four things by which the index filters, as they are written there."""
    if isinstance(block, Missing):
        return {"type": "—", "device": "—", "verdict": "PENDING", "stale": "—"}
    fresh = text(language, "card.stale" if block.stale else "index.fresh")
    return {
        "type": text(language, f"evidence.{block.data['evidence']}"),
        "device": device_name(block.data) or "—",
        "verdict": block.verdict,
        "stale": fresh,
    }


def _index_row(block: Recorded | Missing, language: Language, users: str) -> str:
    facet = facets(block, language)
    attributes = "".join(f' data-{name}="{escape(value)}"' for name, value in facet.items())
    date = block.date if isinstance(block, Recorded) else "—"
    cells = [
        f"{escape(title(block, language))}<br><small><code>{escape(block.id)}</code></small>",
        _verdict(block.verdict),
        escape(facet["type"]),
        escape(facet["device"]),
        f'<span class="nl-date">{date}</span>',
        escape(facet["stale"]),
        users,
    ]
    return (
        f'<tr id="evidence-{escape(block.id)}"{attributes}>' + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"
    )


def _filter(blocks: Sequence[Recorded | Missing], language: Language, name: str) -> str:
    values = sorted({facets(block, language)[name] for block in blocks})
    options = "".join(f"<option>{escape(value)}</option>" for value in values)
    label = text(language, f"index.{name}")
    return (
        f'<label>{label}<select name="{name}"><option value="">{text(language, "index.all")}</option>{options}'
        "</select></label>"
    )
