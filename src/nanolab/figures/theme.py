"""Colours and fonts of the figures: one meaning for each colour in all nine, in light and in dark.

The page may set `--fig-NAME` for every name below; without it the figure follows the site's own palette switch,
and standing alone it follows the reader's system. Fonts are the reader's own: nothing is fetched.
"""

from collections.abc import Mapping

# name: (light, dark)
COLOURS: Mapping[str, tuple[str, str]] = {
    "ink": ("#1f2733", "#e6eaf0"),  # text
    "soft": ("#566273", "#a9b4c2"),  # remarks, arrows
    "line": ("#8b97a6", "#74808f"),  # outlines of neutral boxes
    "fill": ("#f1f4f7", "#2a303a"),  # neutral boxes: known, given
    "accent": ("#4051b5", "#a3b1ff"),  # computed in this round
    "accent-soft": ("#e1e6fb", "#2d376f"),
    "warm": ("#a8480a", "#f3ad66"),  # chosen, new, changed
    "warm-soft": ("#fde9d2", "#553917"),
    "cool": ("#0b6b62", "#63d2c3"),  # kept: KV, weights, state
    "cool-soft": ("#d3efeb", "#154540"),
}

TONES = ("fill", "accent", "warm", "cool", "plain")  # of a filled shape; `plain` has no fill

SANS = "system-ui,-apple-system,'Segoe UI',Roboto,'Noto Sans CJK SC','PingFang SC','Microsoft YaHei',sans-serif"
MONO = "ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono','Noto Sans CJK SC',monospace"


def _variables(selector: str, column: int) -> str:
    values = ";".join(f"--f-{name}:var(--fig-{name},{pair[column]})" for name, pair in COLOURS.items())
    return f"{selector}{{{values}}}"


def style() -> str:
    """The figure's own style sheet. Inlined in a page it touches nothing outside `.nl-fig`."""
    light, dark = 0, 1
    rules = [
        _variables(".nl-fig", light),
        f"@media (prefers-color-scheme:dark){{{_variables('.nl-fig', dark)}}}",
        _variables("[data-md-color-scheme=default] .nl-fig", light),
        _variables("[data-md-color-scheme=slate] .nl-fig", dark),
        f"@media print{{{_variables('.nl-fig.nl-fig.nl-fig', light)}}}",
        ".nl-fig{display:block;margin:0 auto;width:100%;height:auto}",
        f".nl-fig text{{font-family:{SANS};fill:var(--f-ink)}}",
        f".nl-fig .mono{{font-family:{MONO}}}",
        ".nl-fig .bold{font-weight:600}",
        ".nl-fig .shape{stroke-width:1.2}",
        ".nl-fig .s-fill{fill:var(--f-fill);stroke:var(--f-line)}",
        ".nl-fig .s-plain{fill:none;stroke:var(--f-line)}",
        ".nl-fig .dashed{stroke-dasharray:4 3}",
        ".nl-fig .stroke{fill:none;stroke:var(--f-soft);stroke-width:1.4}",
        ".nl-fig .head{fill:var(--f-soft);stroke:none}",
    ]
    for tone in ("accent", "warm", "cool"):
        rules += [
            f".nl-fig .s-{tone}{{fill:var(--f-{tone}-soft);stroke:var(--f-{tone})}}",
            f".nl-fig .stroke.k-{tone}{{stroke:var(--f-{tone})}}",
            f".nl-fig .head.k-{tone}{{fill:var(--f-{tone})}}",
            f".nl-fig text.t-{tone}{{fill:var(--f-{tone})}}",
        ]
    rules.append(".nl-fig text.t-soft{fill:var(--f-soft)}")
    return "".join(rules)
