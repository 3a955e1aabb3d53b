"""Figures B-4 to B-6: the residual in two paths, FlashAttention's running sums, and a CUDA graph's life."""

import math
from dataclasses import dataclass

from .canvas import LINE, MARGIN, SMALL, WIDTH, Canvas

RIGHT = WIDTH - MARGIN
INNER = RIGHT - MARGIN


# -- B-4 -------------------------------------------------------------------------------------------------------


def residual_paths(c: Canvas) -> None:
    t = c.pick
    c.name(
        t("残差：数学写法与代码写法", "The residual in mathematics and in code"),
        t(
            "左：h = x + Attn(Norm1 x)，y = h + MLP(Norm2 h)。"
            "右：hidden_states 与 residual 分开传递，相加发生在融合的 norm 里。",
            "Left: h = x + Attn(Norm1 x), y = h + MLP(Norm2 h). Right: hidden_states and residual travel apart and "
            "are added inside the fused norm.",
        ),
    )
    left, right, width = MARGIN, 190, 158
    c.text(left + width / 2, 24, t("数学", "mathematics"), bold=True)
    c.text(right + width / 2, 24, t("代码", "code"), bold=True)
    _mathematics(c, left)
    _code(c, right)
    y = c.note(
        512,
        t(
            "右边的加法没有消失：它在下一个融合 norm 的入口完成，少读写一遍显存。",
            "The additions on the right have not gone: each happens at the entry of the next fused norm, "
            "which saves one pass over memory.",
        ),
    )
    c.text(MARGIN, y + 8, "h = x + Attn(Norm1(x))", anchor="start", mono=True, size=SMALL)
    c.text(MARGIN, y + 8 + LINE, "y = h + MLP(Norm2(h))", anchor="start", mono=True, size=SMALL)


def _mathematics(c: Canvas, left: float) -> None:
    box, spine, skip = 92.0, left + 46, left + 130
    c.text(spine, 58, "x", mono=True)
    y = 64.0
    for norm, module, name in (("Norm1", "Attn", "h"), ("Norm2", "MLP", "y")):
        c.arrow((spine, y), (spine, y + 36))
        c.line((spine, y + 16), (skip, y + 16), tone="cool")
        c.box(left, y + 36, box, 30, norm)
        c.arrow((spine, y + 66), (spine, y + 86))
        c.box(left, y + 86, box, 30, module, tone="accent")
        c.arrow((spine, y + 116), (spine, y + 142))
        c.circle(spine, y + 153, 11, "warm")
        c.text(spine, y + 157.5, "+", bold=True)
        c.arrow((skip, y + 16), (skip, y + 153), (spine + 11, y + 153), tone="cool")
        c.line((spine, y + 164), (spine, y + 176))
        c.text(spine - 14, y + 180, name, mono=True)
        y += 176
    c.arrow((spine, y), (spine, y + 22))


def _code(c: Canvas, left: float) -> None:
    t = c.pick
    hidden, residual, width = left + 46, left + 130, 158.0
    c.text(hidden, 50, "hidden", mono=True, size=SMALL)
    c.text(residual - 8, 50, "residual", mono=True, size=SMALL)
    y = 64.0
    for norm, module, kept in (("Norm1", "Attn", "x"), ("Norm2", "MLP", "h")):
        c.arrow((hidden, y - 6), (hidden, y + 22))
        c.arrow((residual, y - 6), (residual, y + 22), tone="cool")
        c.box(
            left,
            y + 22,
            width,
            48,
            t(f"相加，再 {norm}", f"add, then {norm}"),
            t("和留作 residual", "sum kept as residual"),
            tone="warm",
            bold=True,
        )
        c.arrow((hidden, y + 70), (hidden, y + 94))
        c.box(left, y + 94, 92, 30, module, tone="accent")
        c.line((residual, y + 70), (residual, y + 176), tone="cool")
        c.line((hidden, y + 124), (hidden, y + 176))
        c.text(residual + 14, y + 114, kept, mono=True, tone="cool")
        y += 176
    c.arrow((hidden, y - 6), (hidden, y + 22))
    c.arrow((residual, y - 6), (residual, y + 22), tone="cool")
    c.box(
        left,
        y + 22,
        width,
        48,
        t("下一层的 Norm1", "next layer's Norm1"),
        "y = hidden + residual",
        tone="warm",
        bold=True,
        dashed=True,
    )


# -- B-5 -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Running:
    """FlashAttention's state of one query: maximum m, sum l of exp(s - m), numerator u = sum of exp(s - m) v."""

    m: float = -math.inf
    l: float = 0.0  # noqa: E741  the papers' name
    u: float = 0.0

    def add(self, scores: tuple[float, ...], values: tuple[float, ...]) -> "Running":
        """One more tile. When the maximum moves, l and u are rescaled by exp(m_old - m_new) (Dao et al. 2022)."""
        m = max(self.m, *scores)
        rescale = math.exp(self.m - m)
        weights = [math.exp(s - m) for s in scores]
        u = rescale * self.u + sum(w * v for w, v in zip(weights, values, strict=True))
        return Running(m, rescale * self.l + sum(weights), u)


TILES = (((1.0, 2.0), (10.0, 20.0)), ((3.0, 0.0), (30.0, 40.0)))  # scores and values of one query, two tiles


def flash_attention(c: Canvas) -> None:
    t = c.pick
    c.name(
        t("FlashAttention 的三个累计量", "FlashAttention's three running values"),
        t(
            "一个 query 依次读两个 tile，只保留最大值 m、指数和 l、分子 u；最大值变了就重新缩放，最后才做一次除法。",
            "One query reads two tiles in turn and keeps only the maximum m, the sum l and the numerator u; they are "
            "rescaled when the maximum changes, and divided once at the end.",
        ),
    )
    c.text(MARGIN, 24, t("一个 query，两个 tile", "one query, two tiles"), anchor="start", bold=True)
    state, y = Running(), 38.0
    for i, (scores, values) in enumerate(TILES):
        before, state = state, state.add(scores, values)
        _tile(c, y, i + 1, scores, values)
        if i == 0:
            says = t("第一个 tile：从零开始", "first tile: start from zero")
        else:
            factor = math.exp(before.m - state.m)
            says = t(
                f"最大值 {before.m:g} -> {state.m:g}：旧 l、u 乘 {factor:.3f}",
                f"maximum {before.m:g} -> {state.m:g}: old l, u times {factor:.3f}",
            )
        c.arrow((WIDTH / 2, y + 56), (WIDTH / 2, y + 80))
        c.text(WIDTH / 2, y + 98, says, size=SMALL, tone="soft")
        for j, (name, value) in enumerate((("m", f"{state.m:g}"), ("l", f"{state.l:.3f}"), ("u", f"{state.u:.3f}"))):
            c.box(MARGIN + j * 114, y + 108, 108, 32, f"{name} = {value}", tone="warm", mono=True)
        c.arrow((WIDTH / 2, y + 140), (WIDTH / 2, y + 164))
        y += 164
    c.box(MARGIN, y, INNER, 34, f"u / l = {state.u / state.l:.3f}", tone="accent", mono=True)
    c.text(WIDTH / 2, y + 52, t("只在最后除一次", "divided once, at the end"), size=SMALL, tone="soft")

    y += 88
    c.text(MARGIN, y, t("tile 不是页", "A tile is not a page"), anchor="start", bold=True)
    _ruler(c, y + 12, 256, 2, "cool", t("KV 页：256 个位置，为管理而定", "KV page: 256 positions, for bookkeeping"))
    _ruler(
        c, y + 66, 128, 4, "accent", t("计算 tile：这里取 128，为芯片而定", "compute tile: here 128, to suit the chip")
    )


def _tile(c: Canvas, y: float, number: int, scores: tuple[float, ...], values: tuple[float, ...]) -> None:
    t = c.pick
    c.rect(MARGIN, y, INNER, 56, "fill")
    c.text(MARGIN + 10, y + 34, f"tile {number}", anchor="start", bold=True)
    for row, (name, numbers) in enumerate(((t("分数 s", "scores s"), scores), (t("值 v", "values v"), values))):
        c.text(MARGIN + 92, y + 22 + row * 22, name, anchor="start", size=SMALL, tone="soft")
        for column, n in enumerate(numbers):
            c.text(MARGIN + 200 + column * 60, y + 22 + row * 22, f"{n:g}", anchor="end", mono=True)


def _ruler(c: Canvas, y: float, size: int, count: int, tone: str, label: str) -> None:
    w = INNER / count
    for i in range(count):
        c.rect(MARGIN + i * w, y, w, 22, tone, radius=0)
        c.text(MARGIN + (i + 0.5) * w, y + 15.5, f"{i * size}..{(i + 1) * size - 1}", size=SMALL, limit=w)
    c.text(MARGIN, y + 38, label, anchor="start", size=SMALL, tone="soft")


# -- B-6 -------------------------------------------------------------------------------------------------------

BUCKETS = (1, 2, 4, 8, 16)
BATCH = 9


def cuda_graph(c: Canvas) -> None:
    t = c.pick
    bucket = min(b for b in BUCKETS if b >= BATCH)
    padded = bucket - BATCH
    c.name(
        t("捕获、更新缓冲区、回放", "Capture, update the buffers, replay"),
        t(
            f"初始化时为每个桶捕获一次执行计划；"
            f"每一步把 {BATCH} 个请求写进 {bucket} 行的固定缓冲区，其余 {padded} 行填充且不写 KV；然后一次启动回放。",
            f"At initialisation a plan is captured for each bucket; each step writes {BATCH} requests into "
            f"fixed buffers of {bucket} rows, the other {padded} are padding that must not write KV; "
            "then one launch replays.",
        ),
    )
    c.text(MARGIN, 24, t("1. 捕获", "1. capture"), anchor="start", bold=True)
    c.text(
        RIGHT,
        24,
        t("初始化时，每个桶一次", "at initialisation, once per bucket"),
        anchor="end",
        size=SMALL,
        tone="soft",
    )
    for i, b in enumerate(BUCKETS):
        c.box(MARGIN + i * 68, 36, 64, 32, str(b), tone="accent" if b == bucket else "fill", mono=True)
    c.note(
        88,
        t(
            "记下的是 kernel 序列与缓冲区地址，不是数值。",
            "What is recorded: the kernels and the buffers' addresses, not the values.",
        ),
    )

    top = 140.0
    c.text(MARGIN, top, t("2. 更新固定缓冲区", "2. update the fixed buffers"), anchor="start", bold=True)
    c.text(RIGHT, top, t("每一步", "every step"), anchor="end", size=SMALL, tone="soft")
    w = INNER / bucket
    for i in range(bucket):
        real = i < BATCH
        c.rect(MARGIN + i * w, top + 14, w, 30, "warm" if real else "plain", radius=0, dashed=not real)
    middle = MARGIN + BATCH * w
    c.bracket(MARGIN, middle - 3, top + 54, t(f"{BATCH} 个真实请求", f"{BATCH} real requests"))
    c.bracket(middle + 3, RIGHT, top + 54, t(f"{padded} 行填充", f"{padded} rows of padding"))
    rows = (
        ("slot_mapping", t("真实 slot", "real slots"), "-1"),
        ("context_lens", t("真实长度", "real lengths"), "0"),
    )
    for i, (name, real_value, pad_value) in enumerate(rows):
        y = top + 96 + i * 21
        c.text(MARGIN, y, name, anchor="start", mono=True, size=SMALL)
        c.text(MARGIN + 104, y, real_value, anchor="start", size=SMALL, tone="warm")
        c.text((middle + RIGHT) / 2 + 26, y, pad_value, mono=True, size=SMALL)
    c.note(top + 140, t("-1 与 0 使填充行不写也不读 KV。", "-1 and 0: a padded row neither writes nor reads KV."))

    c.arrow((WIDTH / 2, top + 152), (WIDTH / 2, top + 178))
    top += 200
    c.text(MARGIN, top, t("3. 回放", "3. replay"), anchor="start", bold=True)
    c.text(RIGHT, top, t("每一步，一次启动", "every step, one launch"), anchor="end", size=SMALL, tone="soft")
    c.box(
        MARGIN,
        top + 14,
        INNER,
        48,
        t(f"桶 {bucket} 的图", f"the graph of bucket {bucket}"),
        t("同样的 kernel，同样的地址，新的数值", "same kernels, same addresses, new values"),
        tone="accent",
        bold=True,
    )
    c.arrow((WIDTH / 2, top + 62), (WIDTH / 2, top + 86))
    c.box(
        MARGIN,
        top + 86,
        INNER,
        32,
        t(f"只取前 {BATCH} 行 logits", f"only the first {BATCH} rows of logits are used"),
        tone="warm",
    )
    c.note(
        top + 140,
        t(
            "没有能装下的桶（例如 17 个请求）时，改走 eager。",
            "When no bucket is large enough (17 requests, say), the step runs eager.",
        ),
    )
