"""The sixteen notes of the manual: what each must hold, and templates that never overwrite a learner's text."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from nanolab.errors import LabError

__all__ = ["NOTES", "Note", "init_notes", "is_written"]


@dataclass(frozen=True)
class Note:
    """One note: its file stem, its section in the manual, its title, and (zh, en) of everything it must hold."""

    name: str
    section: str
    zh: str
    en: str
    points: tuple[tuple[str, str], ...]

    def template(self) -> str:
        """The file's first text: a heading for each thing to hold, and room below it."""
        head = f"# {self.zh} · {self.en}\n\n手册章节 · Manual section: {self.section}\n"
        body = "".join(f"\n## {zh} · {en}\n\n" for zh, en in self.points + _EVERY_NOTE)
        return head + body


_EVERY_NOTE = (
    ("证据：文件与证据类型", "Evidence: files, and their evidence type"),
    ("尚未验证的", "What is not verified yet"),
)

NOTES = (
    Note("tokenizer", "B.1.1", "词元与采样", "Tokens and sampling", (
        ("真实的 id、片段与还原文本", "Real ids, pieces and the decoded text"),
        ("聊天模板怎样标出角色", "How the chat template marks roles"),
        ("权重固定，上下文增长：各举一例", "Weights stay fixed, the context grows: one example of each"),
        ("贪心与采样的区别", "Greedy against sampling"),
    )),
    Note("attention", "B.1.2", "因果注意力", "Causal attention", (
        ("最后一行的分数、权重与输出，手算", "Scores, weights and output of the last row, by hand"),
        ("改动未来位置，为何前面不变", "Why earlier positions stay when the future changes"),
        ("去掉掩码后差了多少", "How much differs without the mask"),
    )),
    Note("kv-cache-math", "B.1.3, B.1.4", "已知词元与 KV", "Known tokens and KV", (
        ("每轮输入宽度，以及 known = kv + 1", "Input width of every round, and known = kv + 1"),
        ("540 与 71 的算式", "The sums behind 540 and 71"),
        ("为何计算次数之比不是加速比", "Why a ratio of counts is not a speed-up"),
    )),
    Note("memory-budget", "B.1.5", "显存、时延与吞吐", "Memory, latency and throughput", (
        ("假设：层数、KV 头数、精度、长度", "Assumptions: layers, KV heads, dtype, lengths"),
        ("每词元、每块、每请求的字节数", "Bytes a token, a block and a request"),
        ("每个指标的起点与终点", "Where each metric starts and ends"),
    )),
    Note("lifecycle", "B.2.1", "请求的一生", "Life of a request", (
        ("每轮的 total / cached / scheduled", "total / cached / scheduled of every round"),
        ("候选何时成为输出", "When a candidate becomes an output"),
        ("结束时 cached 为何是 0", "Why cached is 0 at the end"),
    )),
    Note("scheduler", "B.2.2", "分块预填与抢占", "Chunked prefill and preemption", (
        ("预算怎样切开长提示", "How the budget cuts a long prompt"),
        ("C 为何要重新预填", "Why C is prefilled again"),
        ("被抢占者保留了什么，交还了什么", "What a preempted sequence keeps and gives back"),
    )),
    Note("kv-pages", "B.2.3", "从位置到槽", "From position to slot", (
        ("逻辑块、物理块与块内偏移", "Logical block, physical block and offset"),
        ("一个位置的完整换算", "One position, converted in full"),
        ("长度 255 / 256 / 257 各占几块", "Blocks held at lengths 255 / 256 / 257"),
    )),
    Note("model-execution", "B.3", "模型怎样执行一轮", "How the model runs a round", (
        ("h = x + Attn(Norm1(x))，y = h + MLP(Norm2(h))", "h = x + Attn(Norm1(x)), y = h + MLP(Norm2(h))"),
        ("融合归一化的 residual 参数在哪里相加", "Where the fused norm's `residual` parameter adds"),
        ("一个真实形状及产生它的函数", "One real shape and the function that makes it"),
    )),
    Note("graph-fallback", "B.4, B.5", "修复缺失的图桶", "Repairing a missing graph bucket", (
        ("原因", "Cause"),
        ("最小改动", "Minimal diff"),
        ("路线表：批量 1、9、16、17、20", "Route matrix: batches 1, 9, 16, 17, 20"),
        ("数值与性能", "Numbers and performance"),
    )),
    Note("prefix-cache", "B.6", "前缀缓存", "Prefix cache", (
        ("命中的块数与重算的后缀", "Blocks hit and the suffix computed again"),
        ("ref_count 为 0 为何不是“显存已归还”", "Why ref_count 0 is not “memory returned”"),
        ("ref_count 为 0 为何不是“哈希失效”", "Why ref_count 0 is not “hash invalid”"),
    )),
    Note("engine-logits", "5.2.5", "数值护栏", "The numeric guardrail", (
        ("固定了什么：模型、位置、每步输入", "What is fixed: model, positions, input of every step"),
        ("最大绝对误差、相对 L2、top-1", "Max absolute error, relative L2, top-1"),
        ("阈值从何而来，何时要人复核", "Where thresholds come from, and when a person reviews"),
    )),
    Note("service-runtime", "5.3", "服务运行时", "The service runtime", (
        ("谁拥有引擎线程，消息怎样进出", "Who owns the engine thread; how messages cross"),
        ("每个指标的观察者与时钟", "Observer and clock of each metric"),
        ("我加的诊断字段与它的证据", "The diagnostic field I added, and its evidence"),
    )),
    Note("scheduling-change", "5.4", "调度改动", "The scheduling change", (
        ("预期", "Expected"),
        ("实测：同一到达文件，三次重复", "Measured: one arrival file, three repeats"),
        ("谁受益，谁付出", "Who gains and who pays"),
    )),
    Note("execution-change", "5.5", "执行改动", "The execution change", (
        ("时间线上的一段", "A piece of the timeline"),
        ("函数与改动", "Function and diff"),
        ("改动前后", "Before and after"),
    )),
    Note("parallel-service", "5.6", "两张卡", "Two cards", (
        ("两个副本与 TP=2：对齐了哪些上限", "Two replicas against TP=2: which limits are aligned"),
        ("共同窗口吞吐与分类时延", "Common-window throughput, latency by class"),
        ("KV 池大小、峰值显存、通信", "KV pool size, peak memory, communication"),
        ("路由策略与离线验证", "The routing policy and its offline check"),
    )),
    Note("service-lifecycle", "5.7", "收尾与回收", "Closing and reclaiming", (
        ("取消、过载、慢读、异常、关闭：会发生什么", "Cancel, overload, slow reader, error, shutdown: what may happen"),
        ("必须恢复什么", "What must be recovered"),
        ("请求集合：每个请求恰有一个终止事件", "The request set: exactly one terminal event each"),
        ("KV 回收的证据", "Evidence that KV was reclaimed"),
    )),
)  # fmt: skip


def init_notes(directory: Path) -> tuple[list[Path], list[Path]]:
    """Make the missing templates in `directory`; returns (made, kept). A file that exists is never touched."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LabError(
            f"{directory} cannot hold the note templates: {error.strerror}; nothing was made. Move what is there away, "
            "or make that directory yourself, then type the same command again."
        ) from error
    made, kept = [], []
    for note in NOTES:
        path = directory / f"{note.name}.md"
        try:
            with path.open("x", encoding="utf-8") as handle:  # x: fails rather than overwrite, whoever was first
                handle.write(note.template())
        except FileExistsError:
            kept.append(path)
        else:
            made.append(path)
    return made, kept


def is_written(directory: Path, note: Note) -> bool:
    """Whether the learner has changed the note since its template."""
    path = directory / f"{note.name}.md"
    if not path.is_file():
        return False
    return path.read_text(encoding="utf-8", errors="replace").strip() != note.template().strip()
