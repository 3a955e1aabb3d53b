"""Figures of chapter 5: the seven stages, the three ranges of one sequence, and how a candidate becomes output."""

from dataclasses import dataclass

from .canvas import MARGIN, SMALL, WIDTH, Canvas

RIGHT = WIDTH - MARGIN


# -- 5-1 -------------------------------------------------------------------------------------------------------


def seven_stages(c: Canvas) -> None:
    t = c.pick
    c.name(
        t("一个项目的七个阶段", "One project in seven stages"),
        t(
            "从单卡基线到可测量的推理服务，5.1 到 5.7 依次相连；同一份代码、请求格式与日志贯穿始终。",
            "From a single-GPU baseline to a measurable inference service, 5.1 to 5.7 in order; the same code, "
            "request format and logs are carried through.",
        ),
    )
    observe, change, verify = t("观察", "observe"), t("改动", "change"), t("验证", "verify")
    stages = [
        (
            "5.1",
            t("搭好环境", "Setup"),
            t("单卡基线跑通，计数正确", "a single-GPU baseline, counts right"),
            verify,
            "fill",
        ),
        (
            "5.2",
            t("跟踪请求与 KV", "Requests and KV"),
            t("案例 A 到 D；15 行 logits 对照", "cases A to D; 15 rows of logits"),
            observe,
            "cool",
        ),
        (
            "5.3",
            t("最小服务", "Smallest service"),
            t("一个 owner 循环，事件日志，HTTP", "one owner loop, event log, HTTP"),
            change,
            "warm",
        ),
        (
            "5.4",
            t("第一次改调度", "First scheduling change"),
            t("阶段交替，批次轮转", "alternate phases, rotate the batch"),
            change,
            "warm",
        ),
        (
            "5.5",
            t("走进 GPU", "Into the GPU"),
            t("读时间线；eager 对 graph", "read a timeline; eager, graph"),
            observe,
            "cool",
        ),
        (
            "5.6",
            t("两张卡", "Two cards"),
            t("隔离两个副本；观察 TP=2", "isolate two replicas; watch TP=2"),
            change,
            "warm",
        ),
        (
            "5.7",
            t("收尾", "Close the loop"),
            t("取消、过载、关闭；一份报告", "cancel, overload, stop; one report"),
            verify,
            "fill",
        ),
    ]
    top, row, rail = 16, 66, 32
    c.line((rail, top + 26), (rail, top + row * (len(stages) - 1) + 26))
    for i, (number, title, leaves, kind, tone) in enumerate(stages):
        y = top + i * row
        c.circle(rail, y + 26, 18, tone)
        c.text(rail, y + 30.5, number, bold=True)
        c.rect(64, y, RIGHT - 64, 52, tone)
        c.text(76, y + 21, title, anchor="start", bold=True)
        c.text(RIGHT - 12, y + 21, kind, anchor="end", size=SMALL, tone="" if tone == "fill" else tone)
        c.text(76, y + 41, leaves, anchor="start", size=SMALL, limit=RIGHT - 64 - 20)
    c.note(
        top + row * len(stages) + 14,
        t(
            "同一份代码、请求格式与日志从上到下贯穿：每一阶段留下的东西，下一阶段接着用。",
            "The same code, request format and logs run from top to bottom: each stage uses what the last one left.",
        ),
    )


# -- 5-2 -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Moment:
    """One sequence just before the model runs: the numbers of teaching cases A and D."""

    heading_zh: str
    heading_en: str
    total: int
    cached: int
    scheduled: int
    remark_zh: str
    remark_en: str

    @property
    def finishes_known(self) -> bool:
        """Only a round that reaches the last known token chooses a new one."""
        return self.cached + self.scheduled == self.total


MOMENTS = (
    Moment(
        "prefill，全部算完",
        "prefill, all at once",
        3,
        0,
        3,
        "选出 t4：已知，还没有 KV",
        "t4 is chosen: known, no KV yet",
    ),
    Moment(
        "decode，只算最新一个",
        "decode, the newest only",
        4,
        3,
        1,
        "选出 t5；t4 现在有了 KV",
        "t5 is chosen; t4 has KV now",
    ),
    Moment(
        "分块 prefill，第一块",
        "chunked prefill, first chunk",
        700,
        0,
        512,
        "候选被丢弃，还剩 188",
        "candidate dropped, 188 left",
    ),
    Moment(
        "分块 prefill，第二块",
        "chunked prefill, last chunk",
        700,
        512,
        188,
        "选出第 701 个 token",
        "token 701 is chosen",
    ),
)


def three_ranges(c: Canvas) -> None:
    t = c.pick
    c.name(
        t("已知 token、有效 KV、本轮新算", "Known tokens, valid KV, newly computed"),
        t(
            "四个时刻的 total、cached、scheduled：3/0/3、4/3/1、700/0/512、700/512/188。"
            "已知的范围总不短于有 KV 的范围。",
            "total, cached and scheduled at four moments: 3/0/3, 4/3/1, 700/0/512, 700/512/188. The known range is "
            "never shorter than the range that has KV.",
        ),
    )
    legend = [
        ("cool", t("有效 KV（cached）", "valid KV (cached)")),
        ("accent", t("本轮新算（scheduled）", "computed (scheduled)")),
        ("fill", t("已知，本轮不算", "known, not computed")),
        ("warm", t("本轮选出", "chosen by this round")),
    ]
    for i, (tone, label) in enumerate(legend):
        x, y = MARGIN + (i % 2) * 172, 14 + (i // 2) * 22
        c.rect(x, y, 14, 14, tone, radius=2, dashed=tone == "warm")
        c.text(x + 20, y + 11.5, label, anchor="start", size=SMALL)
    c.text(RIGHT, 78, "total / cached / scheduled", anchor="end", mono=True, size=SMALL, tone="soft")
    for i, moment in enumerate(MOMENTS):
        _ranges_of(c, moment, top=88 + i * 130)


def _ranges_of(c: Canvas, m: Moment, top: float) -> None:
    t = c.pick
    left, width, bar = MARGIN, 270.0, 30
    scale = width / m.total
    c.text(left, top + 12, t(m.heading_zh, m.heading_en), anchor="start", bold=True)
    c.text(RIGHT, top + 12, f"{m.total} / {m.cached} / {m.scheduled}", anchor="end", mono=True, size=SMALL)
    y = top + 42
    c.bracket(left, left + width, y - 6, t(f"已知 {m.total}", f"known {m.total}"), below=False)
    c.rect(left, y, width, bar, "fill", radius=0)
    x: float = left
    for tone, count in (("cool", m.cached), ("accent", m.scheduled)):
        if not count:
            continue
        c.rect(x, y, count * scale, bar, tone, radius=0)
        label = f"KV {count}" if tone == "cool" else t(f"新算 {count}", f"new {count}")
        c.text(x + count * scale / 2, y + 19.5, label, size=SMALL, limit=count * scale)
        x += count * scale
    if rest := m.total - m.cached - m.scheduled:
        c.text(x + rest * scale / 2, y + 19.5, str(rest), size=SMALL)
    if m.finishes_known:
        c.rect(left + width + 6, y, 54, bar, "warm", radius=0, dashed=True)
        c.text(left + width + 33, y + 19.5, f"t{m.total + 1}", size=SMALL, tone="warm")
    c.text(left, y + bar + 18, t(m.remark_zh, m.remark_en), anchor="start", size=SMALL, tone="soft")


# -- 5-3 -------------------------------------------------------------------------------------------------------


def candidate_to_output(c: Canvas) -> None:
    t = c.pick
    c.name(
        t("从候选到输出", "From candidate to output"),
        t(
            "前向与采样给出候选；只有到达最后一个已知位置的轮次，postprocess 才接受它为输出；"
            "停止检查随后看 EOS 与 max_tokens。",
            "Forward and sampler give a candidate; only a round that reaches the last known position lets postprocess "
            "accept it as output; the stop check then looks at EOS and max_tokens.",
        ),
    )
    left, width, spine = MARGIN, 212, MARGIN + 106
    yes, no = t("是", "yes"), t("否", "no")

    def step(y: float, h: float, tone: str, *lines: str, dashed: bool = False) -> None:
        c.box(left, y, width, h, *lines, tone=tone, bold=True, dashed=dashed)

    step(
        12,
        48,
        "accent",
        t("模型前向 + 采样", "forward + sampler"),
        t("每个序列一个 token id", "one token id a sequence"),
    )
    c.arrow((spine, 60), (spine, 84))
    step(84, 48, "warm", t("候选", "candidate"), t("序列还不知道它", "not yet known to the sequence"), dashed=True)
    c.arrow((spine, 132), (spine, 156))
    step(156, 48, "plain", t("算到最后一个已知位置？", "last known position?"), "cached + scheduled = total")
    c.arrow((spine, 204), (spine, 234))
    step(
        234,
        66,
        "warm",
        t("输出", "output"),
        t("postprocess 接受：total + 1", "postprocess: total + 1"),
        t("EOS 也先被接受", "an EOS is accepted too"),
    )
    c.arrow((spine, 300), (spine, 324))
    step(
        324,
        66,
        "plain",
        t("停止检查", "stop check"),
        t("EOS（除非 ignore_eos）", "EOS, unless ignore_eos"),
        t("或已有 max_tokens 个输出", "or max_tokens outputs"),
    )
    c.arrow((spine, 390), (spine, 420))
    step(420, 48, "cool", "FINISHED", t("块归还，cached 归 0", "blocks returned, cached 0"))
    for y in (223, 409):
        c.text(spine + 8, y, yes, anchor="start", size=SMALL, tone="soft")

    side, rail, wide = 246, RIGHT, 90  # what is not accepted, or not stopped, comes back through the rail
    c.box(side, 147, wide, 66, t("丢弃", "dropped"), t("只有 cached", "only cached"), t("前进", "advances"), bold=True)
    c.box(side, 324, wide, 66, t("继续", "goes on"), t("它是下一轮", "it is the next"), t("的输入", "input"), bold=True)
    for y in (180, 357):
        c.arrow((left + width, y), (side, y))
        c.text(left + width + 10, y - 6, no, size=SMALL, tone="soft")
    c.line((side + wide, 357), (rail, 357), (rail, 180), dashed=True)
    c.line((side + wide, 180), (rail, 180), dashed=True)
    c.arrow((rail, 180), (rail, 36), (left + width, 36), dashed=True)
    c.text(290, 28, t("下一轮", "next round"), size=SMALL, tone="soft")
