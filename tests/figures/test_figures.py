"""The nine figures: complete, deterministic, legible, the same picture in both languages, safe to inline."""

from __future__ import annotations

import importlib.util
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from types import ModuleType

import pytest
from click.testing import CliRunner

from nanolab.figures import FIGURES, LANGUAGES, draw, file_name, render
from nanolab.figures.canvas import MARGIN, WIDTH, Canvas, FigureError
from nanolab.figures.engines import beside_upstream
from nanolab.figures.kernels import TILES, Running
from nanolab.figures.metrics import text_width, wrap
from nanolab.figures.theme import COLOURS
from nanolab.principles.attention import attention
from nanolab.principles.sampling import softmax

ROOT = Path(__file__).resolve().parents[2]
SVG = "{http://www.w3.org/2000/svg}"

every_figure = pytest.mark.parametrize("figure_id", FIGURES)
both_languages = pytest.mark.parametrize("language", LANGUAGES)


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("script_figures", ROOT / "scripts/maintain/figures.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def texts(figure_id: str, language: str) -> str:
    return " ".join(extent.text for extent in draw(figure_id, language).texts)


def test_all_nine() -> None:
    assert list(FIGURES) == ["5-1", "5-2", "5-3", "b-1", "b-2", "b-3", "b-4", "b-5", "b-6"]


@every_figure
@both_languages
def test_texts_neither_collide_nor_leave_the_drawing(figure_id: str, language: str) -> None:
    canvas = draw(figure_id, language)
    assert canvas.overlaps() == []
    assert all(e.left >= MARGIN - 1 and e.right <= WIDTH - MARGIN + 1 for e in canvas.texts)


@every_figure
@both_languages
def test_the_file_is_one_accessible_svg_that_markdown_can_inline(figure_id: str, language: str) -> None:
    source = render(figure_id, language)
    root = ET.fromstring(source)

    assert root.tag == f"{SVG}svg"
    assert root.get("role") == "img"
    assert root.get("lang") == language
    title, description = root.find(f"{SVG}title"), root.find(f"{SVG}desc")
    assert title is not None
    assert description is not None
    assert title.text
    assert description.text
    assert root.get("aria-labelledby") == f"{title.get('id')} {description.get('id')}"
    assert all(i.startswith(f"fig-{figure_id}-") for i in re.findall(r'\bid="([^"]+)"', source))
    assert "\n\n" not in source  # a blank line ends a raw block in Markdown
    assert not re.search(r"^\s", source, flags=re.MULTILINE)
    assert root.get("width") is None


@every_figure
@both_languages
def test_nothing_is_fetched_and_nothing_runs(figure_id: str, language: str) -> None:
    source = render(figure_id, language)
    addresses = set(re.findall(r"https?://[^\"' ]+", source))
    assert addresses == {"http://www.w3.org/2000/svg"}
    for word in ("@import", "@font-face", "url(", "<script", "<image", "<foreignObject", "href"):
        assert word not in source


@every_figure
@both_languages
def test_colours_are_the_pages_variables(figure_id: str, language: str) -> None:
    source = render(figure_id, language)
    drawing = source.split("</style>")[1]
    assert "#" not in drawing  # no colour is fixed outside the style sheet
    assert "fill=" not in drawing
    for name in COLOURS:
        assert f"var(--fig-{name},#" in source
    for scheme in ("default", "slate"):
        assert f"[data-md-color-scheme={scheme}] .nl-fig" in source


@every_figure
def test_both_languages_draw_the_same_picture(figure_id: str) -> None:
    """Same boxes and arrows apart from paragraph lengths, and the same numbers in the labels."""

    def shapes(language: str) -> list[str]:
        return re.findall(r"<(rect|circle|path|polygon)\b", render(figure_id, language))

    def numbers(language: str) -> list[str]:
        return sorted(re.findall(r"\d+(?:\.\d+)?", texts(figure_id, language)))

    assert shapes("zh") == shapes("en")
    assert numbers("zh") == numbers("en")


@every_figure
def test_english_labels_hold_no_chinese_and_the_other_way_round(figure_id: str) -> None:
    chinese = re.compile(r"[\u4e00-\u9fff]")
    assert not chinese.search(render(figure_id, "en"))
    assert chinese.search(texts(figure_id, "zh"))


@every_figure
@both_languages
def test_same_bytes_every_time(figure_id: str, language: str) -> None:
    assert render(figure_id, language) == render(figure_id, language)


def test_numbers_of_the_lifecycle_and_chunk_cases() -> None:
    labels = texts("b-2", "en")
    for value in ("[0, 64, 160]", "[63, 159]", "[0, 188, 220]", "[0, 700, 732]", "[187, 219]", "512..699", "0..31"):
        assert value in labels


def test_numbers_of_the_three_ranges() -> None:
    labels = texts("5-2", "en")
    for value in ("3 / 0 / 3", "4 / 3 / 1", "700 / 0 / 512", "700 / 512 / 188", "t4", "t5", "t701"):
        assert value in labels
    assert "t702" not in labels


def test_numbers_of_the_three_limits() -> None:
    labels = texts("b-1", "en")
    for value in ("A 512", "A 188", "B 32", "188 + 32 = 220", "A takes 3 blocks", "B takes 1 block"):
        assert value in labels


def test_the_running_softmax_equals_the_whole_softmax() -> None:
    state = Running()
    for scores, values in TILES:
        state = state.add(scores, values)
    all_scores = [s for scores, _ in TILES for s in scores]
    all_values = [v for _, values in TILES for v in values]
    whole = float(softmax(all_scores) @ all_values)

    assert state.u / state.l == pytest.approx(whole)
    assert f"u / l = {whole:.3f}" in texts("b-5", "en")
    one_query = attention([[1.0]], [[s] for s in all_scores], [[v] for v in all_values], causal=False)
    assert state.u / state.l == pytest.approx(one_query.output[0, 0])


@both_languages
def test_the_bars_beside_upstream_are_the_blocks_numbers(language: str) -> None:
    row = {
        "job": "batch1",
        "nanoengine_tokens_per_s": 1234.4,
        "against_tokens_per_s": 411.6,
        "ratio": 3.0,
        "target": 2.5,
    }
    slower = {**row, "job": "mixed256", "ratio": 0.75}
    device, date = "Card X", "2031-02-03"
    block = {"result": {"table": [row, slower]}, "device": {"name": device}, "started_at": f"{date}T00:00:00Z"}
    canvas = beside_upstream(block, language)
    words = " ".join(extent.text for extent in canvas.texts)
    assert all(word in words for word in ("1,234", "412", "3.00×", "0.75×", device, date))
    assert canvas.overlaps() == []
    widths = [float(w) for w in re.findall(r'<rect[^>]* width="([\d.]+)"', canvas.svg())]
    assert widths[0] / widths[1] == pytest.approx(3.0, rel=0.01)
    assert widths[2] / widths[3] == pytest.approx(0.75, rel=0.01)


def test_a_text_too_wide_for_its_place_is_refused() -> None:
    canvas = Canvas("x", "en")
    with pytest.raises(FigureError, match=r"x: 'far too long for this box' is \d+ wide, its place 54"):
        canvas.box(0, 0, 60, 20, "far too long for this box")
    with pytest.raises(FigureError, match="spans"):
        canvas.text(350, 20, "beyond the right edge", anchor="start")
    with pytest.raises(FigureError, match="the drawing is 360 wide"):
        canvas.rect(300, 0, 100, 10)


def test_colliding_texts_are_found() -> None:
    canvas = Canvas("x", "en")
    canvas.text(100, 20, "one")
    canvas.text(105, 24, "two")
    canvas.text(105, 60, "three")
    assert canvas.overlaps() == [("one", "two")]


def test_unknown_figure_language_and_tone() -> None:
    with pytest.raises(FigureError, match="figure '9-9'"):
        draw("9-9", "en")
    with pytest.raises(FigureError, match="language 'fr'"):
        draw("5-1", "fr")
    with pytest.raises(FigureError, match="tone 'pink'"):
        Canvas("x", "en").rect(0, 0, 1, 1, tone="pink")


def test_wrap_breaks_between_words_and_between_characters() -> None:
    lines = wrap("the same code runs from top to bottom", 100, 12)
    assert " ".join(lines) == "the same code runs from top to bottom"
    assert len(lines) > 1
    assert all(text_width(line, 12) <= 100 for line in lines)

    lines = wrap("同一份代码、请求格式与日志从上到下贯穿。", 100, 12)
    assert "".join(lines) == "同一份代码、请求格式与日志从上到下贯穿。"
    assert not any(line[0] in "、。" for line in lines)


def test_committed_figures_are_up_to_date(script: ModuleType) -> None:
    result = CliRunner().invoke(script.main, ["check"])
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[-1] == "PASS"


def test_check_sees_a_changed_a_missing_and_a_foreign_file(script: ModuleType, tmp_path: Path) -> None:
    run = CliRunner().invoke
    assert run(script.main, ["build", "--dir", str(tmp_path)]).exit_code == 0
    assert len(list(tmp_path.iterdir())) == 2 * (len(FIGURES) + 1)
    assert run(script.main, ["check", "--dir", str(tmp_path)]).exit_code == 0

    changed, missing = tmp_path / file_name("5-2", "zh"), tmp_path / file_name("b-6", "en")
    changed.write_text(changed.read_text(encoding="utf-8").replace("700", "701"), encoding="utf-8")
    missing.unlink()
    (tmp_path / "fig-9-9.en.svg").write_text("<svg/>", encoding="utf-8")
    result = run(script.main, ["check", "--dir", str(tmp_path)])

    assert result.exit_code == 1
    assert result.stdout.splitlines()[-1] == "FAIL"
    assert "missing: fig-b-6.en.svg" in result.stdout
    assert "no drawing makes it: fig-9-9.en.svg" in result.stdout
    assert "differs from its drawing: fig-5-2.zh.svg" in result.stdout
