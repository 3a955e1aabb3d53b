"""Profiled steps as an SVG timeline: what the CPU did above, what the GPU did below, one panel a step."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from nanolab.figures.theme import style
from nanolab.gpu_evidence.profile import ProfiledStep, Span, family

__all__ = ["draw"]

WIDTH, LEFT, RIGHT = 760.0, 84.0, 12.0
LANE, PANEL = 20.0, 172.0
TONE = {
    "attention": "s-warm",
    "linear": "s-accent",
    "norm": "s-cool",
    "communication": "s-fill",
    "copy": "s-fill",
    "other": "s-plain",
}
TITLES = {"zh": "一轮 decode 与一轮 prefill 的时间线", "en": "A decode and a prefill step in time"}
LANES = {  # CPU ranges, launches, kernels, operators, milliseconds
    "zh": ("CPU 区间", "启动", "GPU kernel", "CPU 算子", "毫秒"),
    "en": ("CPU ranges", "launches", "GPU kernels", "operators", "ms"),
}


def draw(steps: Mapping[str, ProfiledStep], language: str) -> str:
    """The picture in one language, following the page's palette as every figure of the manual does."""
    ranges, launches, kernels, operators, unit = LANES[language]
    on_gpu = all(step.kind == "kernels" for step in steps.values())
    words = [ranges, launches, kernels if on_gpu else operators, unit]
    height = PANEL * len(steps) + 34
    body = [piece for at, (name, step) in enumerate(steps.items()) for piece in panel(name, step, at * PANEL, words)]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" class="nl-fig" viewBox="0 0 {WIDTH:g} {height:g}" role="img" '
            f'lang="{language}" aria-labelledby="fig-profile-title" style="min-width:640px">',
            f'<title id="fig-profile-title">{TITLES[language]}</title>',
            f"<style>{style()}</style>",
            *body,
            *legend({family(span.name) for step in steps.values() for span in step.work}, PANEL * len(steps) + 20),
            "</svg>\n",
        ]
    )


def panel(name: str, step: ProfiledStep, top: float, words: list[str]) -> list[str]:
    """One step: a headline, three lanes, an axis that ends with the step or with its last kernel."""
    end = max([step.span.end, *(span.end for span in step.work)])
    scale = (WIDTH - LEFT - RIGHT) / (end - step.span.start)

    def place(span: Span, y: float, height: float, tone: str) -> str:
        x, width = LEFT + (span.start - step.span.start) * scale, max(span.us * scale, 0.4)
        size = f'x="{x:.1f}" y="{y:g}" width="{width:.1f}" height="{height:g}"'
        shape = f'<rect class="shape {tone}" style="stroke-width:.3" {size}'
        if width < 6:  # nothing to point at
            return f"{shape}/>"
        return f"{shape}><title>{escape(span.name[:80])}: {span.us:.1f} us</title></rect>"

    facts = step.facts()
    headline = f"{name}: {step.span.us / 1e3:.2f} ms, {facts['launches']} launches, {facts['kernels']} kernels"
    pieces = [text(12, top + 18, headline, "bold"), place(step.span, top + 30, LANE, "s-fill")]
    pieces += [place(inner, top + 52, LANE, "s-fill") for inner in step.ranges]
    pieces += [label(inner, step, scale, top + 66) for inner in step.ranges if inner.us * scale > 60]
    pieces += [place(span, top + 78, LANE - 6, "s-plain") for span in step.launches]
    pieces += [place(span, top + 98, LANE + 6, TONE[family(span.name)]) for span in step.work]
    lanes = zip(words[:3], (top + 55, top + 89, top + 115), strict=True)
    pieces += [text(LEFT - 8, y, word, "t-soft", "end") for word, y in lanes]
    return pieces + axis(end - step.span.start, scale, top + 136, words[3])


def label(inner: Span, step: ProfiledStep, scale: float, y: float) -> str:
    return text(LEFT + (inner.start - step.span.start) * scale + 4, y, inner.name, "mono")


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:g}" font-size="11" class="{kind}" text-anchor="{anchor}">{escape(words)}</text>'


def axis(us: float, scale: float, y: float, unit: str) -> list[str]:
    """Ticks at a round distance, four to nine of them."""
    distance = next(d for d in (10**k * m for k in range(-3, 6) for m in (1, 2, 5)) if us / 1e3 / d <= 9)
    pieces = [f'<path class="stroke" d="M{LEFT:g} {y:g} H{WIDTH - RIGHT:g}"/>']
    count = int(us / 1e3 / distance)
    for tick in range(count + 1):
        x = LEFT + tick * distance * 1e3 * scale
        pieces += [
            f'<path class="stroke" d="M{x:.1f} {y:g} v4"/>',
            text(x, y + 16, f"{tick * distance:g}", "t-soft", "middle"),
        ]
    return [*pieces, text(LEFT - 8, y + 16, unit, "t-soft", "end")]


def legend(families: set[str], y: float) -> list[str]:
    """The tones of the families that the picture holds."""
    pieces, x = [], LEFT
    for name, tone in TONE.items():
        if name not in families:
            continue
        pieces += [
            f'<rect class="shape {tone}" x="{x:g}" y="{y - 9:g}" width="12" height="10"/>',
            text(x + 18, y, name),
        ]
        x += 40 + 7 * len(name)
    return pieces
