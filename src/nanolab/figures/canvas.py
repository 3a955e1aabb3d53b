"""A small drawing board for the figures: boxes, texts, arrows and brackets, collected into one SVG.

Deterministic: the same calls give the same bytes. Every text is measured when it is placed (`metrics`): one that
leaves the drawing or its box raises FigureError, and `overlaps()` names the pairs that would collide.
"""

from dataclasses import dataclass
from html import escape
from itertools import combinations

from .metrics import text_width, wrap
from .theme import TONES, style

WIDTH = 360  # a phone's column; on a larger screen the drawing is scaled up to MAX_WIDTH
MAX_WIDTH = 460
MARGIN = 12
SIZE, SMALL, LINE = 13.0, 12.0, 17.0  # font sizes, and the distance between baselines


class FigureError(ValueError):
    """A drawing that cannot be read: a text too wide for its place."""


@dataclass(frozen=True)
class Extent:
    """Where a text lies."""

    text: str
    left: float
    top: float
    right: float
    bottom: float

    def meets(self, other: "Extent") -> bool:
        across = self.left < other.right and other.left < self.right
        down = self.top < other.bottom and other.top < self.bottom
        return across and down


def _n(value: float) -> str:
    """Shortest decimal: 12, 12.5."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


class Canvas:
    """One figure in one language. `pick(zh, en)` chooses a label; y grows downwards."""

    def __init__(self, figure_id: str, language: str) -> None:
        if language not in ("zh", "en"):
            raise FigureError(f"language {language!r}: figures are drawn in zh and en")
        self.figure_id = figure_id
        self.language = language
        self.texts: list[Extent] = []
        self._parts: list[str] = []
        self._bottom = 0.0
        self._title = self._description = ""

    # -- words ---------------------------------------------------------------------------------------------

    def pick(self, zh: str, en: str) -> str:
        return zh if self.language == "zh" else en

    def name(self, title: str, description: str) -> None:
        """What a screen reader says instead of the drawing."""
        self._title, self._description = title, description

    # -- shapes --------------------------------------------------------------------------------------------

    def rect(
        self, x: float, y: float, w: float, h: float, tone: str = "fill", dashed: bool = False, radius: float = 5
    ) -> None:
        if tone not in TONES:
            raise FigureError(f"tone {tone!r}: one of {', '.join(TONES)}")
        self._reach(x + w, y + h)
        dash = " dashed" if dashed else ""
        geometry = f'x="{_n(x)}" y="{_n(y)}" width="{_n(w)}" height="{_n(h)}" rx="{_n(radius)}"'
        self._parts.append(f'<rect class="shape s-{tone}{dash}" {geometry}/>')

    def circle(self, x: float, y: float, r: float, tone: str = "fill") -> None:
        self._reach(x + r, y + r)
        self._parts.append(f'<circle class="shape s-{tone}" cx="{_n(x)}" cy="{_n(y)}" r="{_n(r)}"/>')

    def line(self, *points: tuple[float, float], tone: str = "", dashed: bool = False) -> None:
        classes = "stroke" + (f" k-{tone}" if tone else "") + (" dashed" if dashed else "")
        path = " ".join(f"{'L' if i else 'M'}{_n(x)} {_n(y)}" for i, (x, y) in enumerate(points))
        for x, y in points:
            self._reach(x, y)
        self._parts.append(f'<path class="{classes}" d="{path}"/>')

    def arrow(self, *points: tuple[float, float], tone: str = "", dashed: bool = False) -> None:
        """A line through `points` with a head at the last one. Its last leg is horizontal or vertical."""
        (x0, y0), (x, y) = points[-2:]
        dx, dy = (x > x0) - (x < x0), (y > y0) - (y < y0)
        self.line(*points[:-1], (x - 6 * dx, y - 6 * dy), tone=tone, dashed=dashed)
        back_x, back_y = x - 8 * dx, y - 8 * dy
        corners = [(x, y), (back_x + 4 * dy, back_y + 4 * dx), (back_x - 4 * dy, back_y - 4 * dx)]
        path = " ".join(f"{_n(a)},{_n(b)}" for a, b in corners)
        self._parts.append(f'<polygon class="head{f" k-{tone}" if tone else ""}" points="{path}"/>')

    def bracket(self, left: float, right: float, y: float, label: str, tone: str = "", below: bool = True) -> None:
        """A span from `left` to `right` with its label; the label sits away from what is spanned."""
        tick = -5 if below else 5
        self.line((left, y + tick), (left, y), (right, y), (right, y + tick), tone=tone)
        half = text_width(label, SMALL) / 2
        centre = min(max((left + right) / 2, MARGIN + half), WIDTH - MARGIN - half)
        self.text(centre, y + 14 if below else y - 6, label, size=SMALL, tone=tone)

    # -- texts ---------------------------------------------------------------------------------------------

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        anchor: str = "middle",
        size: float = SIZE,
        bold: bool = False,
        mono: bool = False,
        tone: str = "",
        limit: float | None = None,
    ) -> None:
        """One line with its baseline at `y`. `limit`: the width it must not exceed."""
        width = text_width(text, size, bold, mono)
        if limit is not None and width > limit:
            raise FigureError(f"{self.figure_id}: {text!r} is {width:.0f} wide, its place {limit:.0f}")
        left = x - {"start": 0.0, "middle": width / 2, "end": width}[anchor]
        if left < 0 or left + width > WIDTH:
            raise FigureError(f"{self.figure_id}: {text!r} spans {left:.0f}..{left + width:.0f} of 0..{WIDTH}")
        self.texts.append(Extent(text, left, y - 0.8 * size, left + width, y + 0.22 * size))
        self._reach(left + width, y + 0.3 * size)
        names = [n for n, on in (("mono", mono), ("bold", bold), (f"t-{tone}", bool(tone))) if on]
        attributes = f'x="{_n(x)}" y="{_n(y)}" font-size="{_n(size)}"'
        attributes += f' class="{" ".join(names)}"' if names else ""
        attributes += f' text-anchor="{anchor}"' if anchor != "start" else ""
        self._parts.append(f"<text {attributes}>{escape(text, quote=False)}</text>")

    def note(self, y: float, text: str, *, x: float = MARGIN, width: float = 0, tone: str = "soft") -> float:
        """A paragraph from the left, broken into lines; returns the baseline after it."""
        for line in wrap(text, width or WIDTH - x - MARGIN, SMALL):
            self.text(x, y, line, anchor="start", size=SMALL, tone=tone)
            y += LINE
        return y

    def box(
        self,
        x: float,
        y: float,
        w: float,
        h: float,
        *lines: str,
        tone: str = "fill",
        bold: bool = False,
        mono: bool = False,
        size: float = SIZE,
        dashed: bool = False,
    ) -> None:
        """A rectangle with centred lines; with `bold` the first line is the heading of the others."""
        self.rect(x, y, w, h, tone, dashed)
        baseline = y + h / 2 - (len(lines) - 1) * LINE / 2 + 0.36 * size
        for i, line in enumerate(lines):
            heading = bold and i == 0
            small = size if heading or not bold else SMALL
            self.text(x + w / 2, baseline + i * LINE, line, size=small, bold=heading, mono=mono, limit=w - 6)

    # -- result --------------------------------------------------------------------------------------------

    def _reach(self, x: float, y: float) -> None:
        if x > WIDTH:
            raise FigureError(f"{self.figure_id}: drawn at x = {x:.0f}, the drawing is {WIDTH} wide")
        self._bottom = max(self._bottom, y)

    def overlaps(self) -> list[tuple[str, str]]:
        """Pairs of texts that would be drawn over each other."""
        return [(a.text, b.text) for a, b in combinations(self.texts, 2) if a.meets(b)]

    def svg(self) -> str:
        """The file: no blank line and no leading space, so that Markdown leaves it alone when inlined."""
        title_id, description_id = f"fig-{self.figure_id}-title", f"fig-{self.figure_id}-desc"
        height = _n(self._bottom + MARGIN)
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="nl-fig" viewBox="0 0 {WIDTH} {height}" role="img" '
            f'lang="{self.language}" aria-labelledby="{title_id} {description_id}" '
            f'style="min-width:0;max-width:{MAX_WIDTH}px">'
        )
        lines = [
            head,
            f'<title id="{title_id}">{escape(self._title, quote=False)}</title>',
            f'<desc id="{description_id}">{escape(self._description, quote=False)}</desc>',
            f"<style>{style()}</style>",
            *self._parts,
            "</svg>",
        ]
        return "\n".join(lines) + "\n"
