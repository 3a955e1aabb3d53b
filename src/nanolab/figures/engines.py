"""The recorded table of `bench-engines` as bars: this engine, upstream, and the target set before measuring."""

from collections.abc import Mapping
from typing import Any

from .canvas import MARGIN, SMALL, WIDTH, Canvas

JOBS = {
    "batch1": ("1 个请求，16 进 256 出", "1 request, 16 in, 256 out"),
    "batch16": ("16 个请求，128 进 32 出", "16 requests, 128 in, 32 out"),
    "mixed256": ("256 个请求，进出各 100 到 1024", "256 requests, 100 to 1024 in and out"),
    "eager1": ("1 个请求，不用 graph", "1 request, no graphs"),
}
SPAN = WIDTH - 2 * MARGIN - 46  # the longest bar leaves room for its number


def beside_upstream(block: Mapping[str, Any], language: str) -> Canvas:
    """One group of bars a job, drawn to ratios: upstream's bar is 1 wide in all of them."""
    c = Canvas("engines", language)
    t = c.pick
    rows = block["result"]["table"]
    c.name(
        t("与上游相比的吞吐", "Throughput beside upstream"),
        "; ".join(f"{row['job']}: {row['ratio']}x, {t('目标', 'target')} {row['target']}x" for row in rows),
    )
    unit = SPAN / max(max(row["ratio"], row["target"]) for row in rows)
    y = 8.0
    for row in rows:
        ours, theirs, target = (
            row["nanoengine_tokens_per_s"],
            row["against_tokens_per_s"],
            MARGIN + unit * row["target"],
        )
        c.text(MARGIN, y + 12, t(*JOBS[row["job"]]), anchor="start", bold=True, size=SMALL)
        c.rect(MARGIN, y + 22, unit * row["ratio"], 16, tone="accent", radius=2)
        c.text(
            max(MARGIN + unit * row["ratio"], target) + 6, y + 34.5, f"{row['ratio']:.2f}×", anchor="start", bold=True
        )
        c.text(MARGIN + 6, y + 34.5, f"{ours:,.0f}", anchor="start", size=SMALL, tone="accent")
        c.rect(MARGIN, y + 42, unit, 16, radius=2)
        c.text(MARGIN + 6, y + 54.5, f"{theirs:,.0f}", anchor="start", size=SMALL)
        c.line((target, y + 17), (target, y + 62), tone="warm", dashed=True)
        y += 74
    y = c.note(
        y + 10,
        t(
            "长条：每秒 token 数。上为本引擎，下为上游 nano-vLLM；右边是两者之比。虚线是测量之前定下的目标。",
            "Bars: tokens per second. Above this engine, below upstream nano-vLLM; beside them their ratio. The dashed "
            "line is the target set before measuring.",
        ),
    )
    device, date = block["device"]["name"], block["started_at"][:10]
    c.note(y, t(f"一次运行，{device}，{date}；合成权重。", f"One run, {device}, {date}; synthetic weights."))
    return c
