"""Figures B-1 to B-3: who is selected, how a batch is laid out, and what crosses from CPU to GPU."""

from dataclasses import dataclass

from nanolab.principles.layout import num_blocks

from .canvas import MARGIN, SMALL, WIDTH, Canvas

RIGHT = WIDTH - MARGIN
INNER = RIGHT - MARGIN
BUDGET, BLOCK, POOL = 512, 256, 8  # of case D; the pool is an example
A, B = 700, 32


# -- B-1 -------------------------------------------------------------------------------------------------------


def three_limits(c: Canvas) -> None:
    t = c.pick
    first, rest = min(A, BUDGET), A - min(A, BUDGET)
    blocks_a, blocks_b = num_blocks(A, BLOCK), num_blocks(B, BLOCK)
    c.name(
        t("队列、预算与 KV 共同决定本轮", "Queue, budget and KV choose together"),
        t(
            f"请求 A 有 {A} 个 token，B 有 {B} 个，每轮预算 {BUDGET}。"
            f"第 1 轮只选 A 的 {first}；第 2 轮选 A 的 {rest} 与 B 的 {B}。",
            f"Request A has {A} tokens, B has {B}, the budget is {BUDGET} a round. Round 1 selects {first} of A; "
            f"round 2 selects {rest} of A and {B} of B.",
        ),
    )
    columns = [
        (t("队列", "queue"), f"A {A}, B {B}", t("有谁等着", "who waits"), "fill"),
        (
            t("预算", "budget"),
            t(f"{BUDGET} 个位置", f"{BUDGET} positions"),
            t("每轮算多少", "work per round"),
            "accent",
        ),
        (t("KV 块池", "KV pool"), t(f"空闲 {POOL} 块", f"{POOL} blocks free"), t("放得下多少", "room to keep"), "cool"),
    ]
    for i, (heading, number, role, tone) in enumerate(columns):
        x = MARGIN + i * 116
        c.box(x, 12, 104, 66, heading, number, role, tone=tone, bold=True)
        c.arrow((x + 52, 78), (x + 52, 104))
    c.box(MARGIN, 104, INNER, 32, "schedule()", tone="plain", mono=True)
    c.arrow((WIDTH / 2, 136), (WIDTH / 2, 160))

    rounds = [
        (
            t("第 1 轮 prefill", "round 1, prefill"),
            [("A", first)],
            t(f"A 取走 {blocks_a} 块，为整个输入", f"A takes {blocks_a} blocks, for its whole prompt"),
            t("预算用完：A 被切块，B 等待", "budget used up: A is cut, B waits"),
            blocks_a,
            0,
        ),
        (
            t("第 2 轮 prefill", "round 2, prefill"),
            [("A", rest), ("B", B)],
            t(f"B 取走 {blocks_b} 块", f"B takes {blocks_b} block"),
            t(f"{rest} + {B} = {rest + B}，没有人等了", f"{rest} + {B} = {rest + B}, nobody waits"),
            blocks_a,
            blocks_b,
        ),
    ]
    for i, (heading, parts, takes, why, held_a, held_b) in enumerate(rounds):
        _round(c, 172 + i * 150, heading, parts, takes, why, "A" * held_a + "B" * held_b)

    y = 488.0
    c.text(MARGIN, y, t("哪个先不够", "Which runs short first"), anchor="start", bold=True)
    for limit, effect in (
        (t("队列空", "queue empty"), t("这一轮做 decode", "this round decodes")),
        (t("预算尽", "budget used"), t("首个请求切块，其余等待", "the first is cut, the others wait")),
        (t("KV 不够", "KV short"), t("prefill 等待；decode 抢占队尾", "prefill waits; decode preempts the tail")),
    ):
        y += 21
        c.text(MARGIN, y, limit, anchor="start", size=SMALL)
        c.text(MARGIN + 86, y, effect, anchor="start", size=SMALL, tone="soft")


def _round(c: Canvas, top: float, heading: str, parts: list[tuple[str, int]], takes: str, why: str, held: str) -> None:
    c.text(MARGIN, top + 10, heading, anchor="start", bold=True)
    y, scale = top + 22, INNER / BUDGET
    x: float = MARGIN
    if sum(count for _, count in parts) < BUDGET:
        c.rect(MARGIN, y, INNER, 28, "plain", dashed=True, radius=0)
    for name, count in parts:
        c.rect(x, y, count * scale, 28, "accent", radius=0)
        if count * scale > 60:
            c.text(x + count * scale / 2, y + 18.5, f"{name} {count}", size=SMALL)
        else:
            c.text(x + count * scale + 8, y + 18.5, f"{name} {count}", anchor="start", size=SMALL)
        x += count * scale
    c.text(MARGIN, y + 46, why, anchor="start", size=SMALL, tone="soft")
    for i in range(POOL):
        owner = held[i : i + 1]
        c.rect(MARGIN + i * 28, y + 58, 24, 24, "cool" if owner else "plain", radius=3, dashed=not owner)
        if owner:
            c.text(MARGIN + i * 28 + 12, y + 74.5, owner, size=SMALL)
    c.text(MARGIN, y + 100, takes, anchor="start", size=SMALL, tone="soft")


# -- B-2 -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    """One request's rows of a round: `cached` positions are read from KV, `new` ones are computed."""

    name: str
    cached: int
    new: int
    tone: str


LIFECYCLE = (Part("R1", 0, 64, "accent"), Part("R2", 0, 96, "warm"))
CHUNK = (Part("A", 512, 188, "accent"), Part("B", 0, 32, "warm"))


def concatenated_rows(c: Canvas) -> None:
    t = c.pick
    c.name(
        t("拼接的行、各自的位置、累计边界", "Concatenated rows, own positions, cumulative boundaries"),
        t(
            "lifecycle：64 与 96 行拼成 160 行，cu_seqlens_q 为 0, 64, 160。"
            "分块：188 与 32 行拼成 220 行，cu_seqlens_k 为 0, 700, 732。",
            "lifecycle: 64 and 96 rows make 160, cu_seqlens_q is 0, 64, 160. Chunk: 188 and 32 rows make 220, "
            "cu_seqlens_k is 0, 700, 732.",
        ),
    )
    _packed(c, 12, t("没有历史：两个新请求", "No history: two new requests"), LIFECYCLE)
    _packed(c, 286, t("有历史：A 的第二块，加新请求 B", "With history: last chunk of A, and B"), CHUNK)


def _packed(c: Canvas, top: float, heading: str, parts: tuple[Part, ...]) -> None:
    t = c.pick
    total = sum(p.new for p in parts)
    scale, y = INNER / total, top + 48
    c.text(MARGIN, top + 12, heading, anchor="start", bold=True)
    c.text(MARGIN, top + 34, f"input_ids [{total}]", anchor="start", mono=True, size=SMALL)

    boundaries, keys, last = [0], [0], []
    x: float = MARGIN
    for p in parts:
        w = p.new * scale
        c.rect(x, y, w, 34, p.tone, radius=0)
        c.text(x + w / 2, y + 22, f"{p.name}: {p.new}" if w > 40 else p.name, size=SMALL)
        c.line((x + w - 2, y + 34), (x + w - 2, y + 44), tone=p.tone)
        boundaries.append(boundaries[-1] + p.new)
        keys.append(keys[-1] + p.cached + p.new)
        last.append(boundaries[-1] - 1)
        x += w
    c.text(
        RIGHT,
        y + 58,
        t("每段最后一行给出 logits", "the last row of each part gives logits"),
        anchor="end",
        size=SMALL,
        tone="soft",
    )

    history = t("有：旧的键从 KV 里读", "yes: old keys are read from KV")
    no_history = t("无：没有历史可读", "none: no history to read")
    y += 82
    for name, value, remark in (
        ("positions", " | ".join(f"{p.cached}..{p.cached + p.new - 1}" for p in parts), ""),
        ("cu_seqlens_q", str(boundaries), ""),
        ("cu_seqlens_k", str(keys), ""),
        ("block_tables", "", no_history if keys == boundaries else history),
        ("last rows", f"{last} -> [{len(parts)}, vocab]", ""),
    ):
        c.text(MARGIN, y, name, anchor="start", mono=True, size=SMALL)
        c.text(
            MARGIN + 104, y, value or remark, anchor="start", mono=bool(value), size=SMALL, tone="" if value else "soft"
        )
        y += 22


# -- B-3 -------------------------------------------------------------------------------------------------------


def cpu_to_gpu(c: Canvas) -> None:
    t = c.pick
    c.name(
        t("从 CPU 到 GPU 的是什么", "What crosses from CPU to GPU"),
        t(
            "每一步只有新的 token id 与元数据从 CPU 到 GPU，只有选出的 token id 回来；权重与 KV 一直留在 GPU。",
            "In each step only new token ids and metadata go from CPU to GPU, and only the chosen ids come back; "
            "weights and KV stay on the GPU.",
        ),
    )
    c.rect(MARGIN, 12, INNER, 104, "plain", radius=8)
    c.text(MARGIN + 12, 34, "CPU", anchor="start", bold=True)
    c.text(RIGHT - 12, 34, t("决定算什么", "decides what to compute"), anchor="end", size=SMALL, tone="soft")
    for x, w, name, holds in (
        (20, 96, "Sequence", t("token id", "token ids")),
        (122, 96, "Scheduler", t("队列", "queues")),
        (224, 116, "BlockManager", t("块表", "block tables")),
    ):
        c.box(x, 48, w, 56, name, holds, bold=True)

    c.arrow((84, 116), (84, 300), tone="accent")
    c.arrow((300, 300), (300, 116), tone="warm")
    c.text(98, 142, t("每一步，几 KiB", "every step, a few KiB"), anchor="start", size=SMALL, tone="accent")
    for i, name in enumerate(
        ("input_ids, positions", "slot_mapping", "cu_seqlens_q / k", "context_lens", "block_tables")
    ):
        c.text(98, 166 + i * 20, name, anchor="start", mono=True, size=SMALL)
    c.text(290, 266, t("选出的 id", "chosen ids"), anchor="end", size=SMALL, tone="warm")
    c.text(290, 284, t("每序列一个", "one a sequence"), anchor="end", size=SMALL, tone="soft")

    c.rect(MARGIN, 300, INNER, 214, "plain", radius=8)
    c.text(MARGIN + 12, 322, "GPU", anchor="start", bold=True)
    c.text(RIGHT - 12, 322, t("算，并且保存", "computes, and keeps"), anchor="end", size=SMALL, tone="soft")
    c.box(
        MARGIN + 8,
        336,
        156,
        66,
        t("权重", "weights"),
        t("加载一次", "loaded once"),
        t("从不移动", "never move"),
        tone="cool",
        bold=True,
    )
    c.box(
        MARGIN + 172,
        336,
        156,
        66,
        t("KV 块池", "KV pool"),
        t("每 token 112 KiB", "112 KiB a token"),
        t("原地追加", "written in place"),
        tone="cool",
        bold=True,
    )
    c.arrow((98, 402), (98, 426))
    c.arrow((230, 402), (230, 426))
    c.arrow((270, 426), (270, 402))
    c.box(
        MARGIN + 8,
        426,
        INNER - 16,
        48,
        t("28 层前向", "28 layers forward"),
        t("读旧 KV，写新 KV", "reads old KV, writes new KV"),
        tone="accent",
        bold=True,
    )
    c.text(WIDTH / 2, 498, t("logits 与采样也在这里", "logits and sampling happen here too"), size=SMALL, tone="soft")
