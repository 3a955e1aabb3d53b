"""The manual's nine figures, drawn as SVG in both languages by code: `scripts/maintain/figures.py build`.

Contract: `render(figure_id, language)` returns the whole file, the same bytes on every machine. A drawing function
takes a Canvas and knows nothing of files; numbers come from the teaching cases or are computed here. Two more
are drawn from what was recorded: `engines` from its block, `requests` from a log, which it names.
"""

from collections.abc import Callable, Mapping

from . import batch, chapter5, kernels
from .canvas import Canvas, FigureError

LANGUAGES = ("zh", "en")

FIGURES: Mapping[str, Callable[[Canvas], None]] = {
    "5-1": chapter5.seven_stages,
    "5-2": chapter5.three_ranges,
    "5-3": chapter5.candidate_to_output,
    "b-1": batch.three_limits,
    "b-2": batch.concatenated_rows,
    "b-3": batch.cpu_to_gpu,
    "b-4": kernels.residual_paths,
    "b-5": kernels.flash_attention,
    "b-6": kernels.cuda_graph,
}


def draw(figure_id: str, language: str) -> Canvas:
    """The finished drawing, with the extents of its texts for checks."""
    if figure_id not in FIGURES:
        raise FigureError(f"figure {figure_id!r}: one of {', '.join(FIGURES)}")
    canvas = Canvas(figure_id, language)
    FIGURES[figure_id](canvas)
    return canvas


def render(figure_id: str, language: str) -> str:
    return draw(figure_id, language).svg()


def file_name(figure_id: str, language: str) -> str:
    """`fig-5-1.zh.svg`, as the manual's `figure` fence looks for it."""
    return f"fig-{figure_id}.{language}.svg"
