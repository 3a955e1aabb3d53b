"""Check and time the Triton kernels on this machine's GPU, at the shapes of a Qwen3-0.6B decode step.

\b
python scripts/maintain/bench_kernels.py --out runs/bench-kernels-gpu.json
python scripts/maintain/bench_kernels.py --section attention --section step --tune

Every kernel is compared with its plain torch meaning first (bfloat16 against float32 arithmetic). Times are medians
of CUDA graph replays over enough different data that nothing stays in the L2 cache; each is shown with the bytes it
must move, the bandwidth that makes, and its share of a copy's bandwidth measured on the same card. --tune also times
other tile sizes than the chosen ones. A case that fails is reported and the rest goes on; after --budget seconds no
new case starts.
"""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click
import torch
import torch.nn.functional as F

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests" / "kernels")]

from decode_model import Model  # noqa: E402 - found through the path above
from kernel_bench import Bench, measure_copy, summary, tables  # noqa: E402
from kernel_cases import rotary_cache  # noqa: E402
from shape_checks import (  # noqa: E402
    BF16,
    DEVICE,
    DIM,
    EPS,
    HEADS,
    HIDDEN,
    INNER,
    KV_HEADS,
    LAYERS,
    LINEARS,
    PAGE,
    QKV,
    SCALE,
    VOCABULARY,
    check_all,
    norm_weights,
    rand,
    workspace,
)

from nanoengine.layers import kernels  # noqa: E402
from nanolab import cli, sources  # noqa: E402
from nanolab.errors import MissingPrerequisite  # noqa: E402
from nanolab.evidence import Recording, describe_device  # noqa: E402
from nanolab.verdicts import EvidenceType, Verdict  # noqa: E402

HAS_FLASH = importlib.util.find_spec("flash_attn") is not None


# ---- timing -----------------------------------------------------------------------------------------------------


def tag(sizes: dict[str, int]) -> str:
    return " ".join(f"{name}={value}" for name, value in sizes.items())


SMALL: list[dict[str, int]] = [{}, {"min_chunk": 64}, {"min_chunk": 256}, {"block_n": 32, "num_stages": 7}]
LARGE: list[dict[str, int]] = [
    {},
    {"min_splits": 1},
    {"min_splits": 2},
    {"min_splits": 2, "num_stages": 7},
    {"min_splits": 2, "block_n": 32, "num_stages": 7},
    {"min_splits": 2, "block_n": 128},
    {"min_splits": 2, "num_warps": 2},
    {"min_splits": 8},
]


def time_attention(bench: Bench) -> None:
    unequal = [100 + (i * 131 % 256) * 1948 // 255 for i in range(256)]
    time_decode(bench, "256 x 1100", [1100] * 256, LARGE)
    time_decode(bench, "256 x 100..2048", unequal, LARGE)
    time_decode(bench, "64 x 1024", [1024] * 64, LARGE[:4])
    for n, context in [(1, 16), (1, 272), (1, 2048), (2, 512), (8, 512), (16, 160)]:
        time_decode(bench, f"{n} x {context}", [context] * n, SMALL)


def time_decode(bench: Bench, name: str, lengths: list[int], variants: list[dict[str, int]]) -> None:
    n, needed = len(lengths), [-(-length // PAGE) for length in lengths]
    pages, layers = sum(needed), max(1, min(LAYERS, 2**10 // sum(needed)))
    cache = torch.randn(2, layers, pages, PAGE, KV_HEADS, DIM, dtype=BF16, device=DEVICE)
    order = torch.randperm(pages).tolist()
    rows = torch.zeros(n, 16, dtype=torch.int32)
    for row, count in enumerate(needed):
        rows[row, :count] = torch.tensor([order.pop() for _ in range(count)])
    tables, lens = rows.to(DEVICE), torch.tensor(lengths, dtype=torch.int32, device=DEVICE)
    q, moved, repeats = rand(n, HEADS, DIM), sum(lengths) * KV_HEADS * DIM * 2 * 2, max(layers, 4)

    def ours(scratch: kernels.DecodeWorkspace, i: int) -> None:
        k, v = cache[0, i % layers], cache[1, i % layers]
        kernels.paged_decode_attention(q, k, v, tables, lens, SCALE, scratch, pdl=True)

    for sizes in variants if bench.tune else [{}]:
        label = f"{name} {tag(sizes)}"
        bench.time("paged_decode_attention", label, partial(ours, workspace(n, **sizes)), moved, repeats)

    def theirs(i: int) -> None:
        from flash_attn import flash_attn_with_kvcache

        k, v = cache[0, i % layers], cache[1, i % layers]
        flash_attn_with_kvcache(
            q[:, None], k, v, cache_seqlens=lens, block_table=tables, softmax_scale=SCALE, causal=True
        )

    if HAS_FLASH:
        bench.time("flash_attn_with_kvcache", name, theirs, moved, repeats)


def time_prefill(bench: Bench) -> None:
    for name, lengths in [("16 x 128", [128] * 16), ("1 x 2048", [2048]), ("16 x 1024", [1024] * 16)]:
        time_prefill_case(bench, name, lengths)


def time_prefill_case(bench: Bench, name: str, lengths: list[int]) -> None:
    total, longest = sum(lengths), max(lengths)
    q, k, v = rand(total, QKV // DIM, DIM).split([HEADS, KV_HEADS, KV_HEADS], dim=1)
    k, v = k.contiguous(), v.contiguous()
    bounds = torch.tensor([0, *lengths]).cumsum(0).to(DEVICE, torch.int32)
    moved = 2 * total * (HEADS + KV_HEADS) * DIM * 2

    def ours(tunables: kernels.PrefillTunables, _: int) -> None:
        kernels.prefill_attention(q, k, v, bounds, longest, SCALE, tunables=tunables)

    variants: list[dict[str, int]] = [{}, {"block_m": 64, "num_warps": 4}, {"block_n": 128}]
    for sizes in variants if bench.tune else [{}]:
        launch = partial(ours, kernels.PrefillTunables(**sizes))
        bench.time("prefill_attention", f"{name} {tag(sizes)}", launch, moved, 8)

    def theirs(_: int) -> None:
        from flash_attn import flash_attn_varlen_func

        flash_attn_varlen_func(q, k, v, bounds, bounds, longest, longest, softmax_scale=SCALE, causal=True)

    if HAS_FLASH:
        bench.time("flash_attn_varlen_func", name, theirs, moved, 8)


def time_elementwise(bench: Bench) -> None:
    cache = torch.zeros(2, 80, PAGE, KV_HEADS, DIM, dtype=BF16, device=DEVICE)
    angles = rotary_cache(4096, DIM).to(DEVICE)
    for n in (1, 16, 256, 16384):
        time_row_kernels(bench, n, cache, angles)
    for n in (1, 16, 256):
        time_sample(bench, n)


def time_row_kernels(bench: Bench, n: int, cache: torch.Tensor, angles: torch.Tensor) -> None:
    x, gate_up, qkv = rand(n, HIDDEN), rand(n, 2 * INNER), rand(n, QKV)
    w, head_w = norm_weights(HIDDEN), norm_weights(DIM)
    positions = torch.arange(n, device=DEVICE, dtype=torch.int32) % 4096
    step = (qkv, head_w, head_w, EPS, angles, positions, positions, cache[0], cache[1], HEADS, KV_HEADS, DIM)
    calls: list[tuple[str, Callable[[int], object], float]] = [
        ("add_rms_norm", lambda _: kernels.add_rms_norm(x, x, w, EPS, pdl=True), 4 * x.nbytes),
        ("silu_and_mul", lambda _: kernels.silu_and_mul(gate_up, pdl=True), 1.5 * gate_up.nbytes),
        ("qk_norm_rope_store", lambda _: kernels.qk_norm_rope_store(*step, keep_k=False, pdl=True), 2 * qkv.nbytes),
    ]
    for name, launch, moved in calls:
        bench.time(name, f"n={n}", launch, moved, 20)


def time_sample(bench: Bench, n: int) -> None:
    logits, ones, seeds = rand(n, VOCABULARY), torch.ones(n, device=DEVICE), torch.arange(n, device=DEVICE)
    zeros, moved = torch.zeros_like(ones), logits.nbytes
    bench.time("sample", f"n={n}", lambda _: kernels.sample(logits, ones, seeds, seeds, pdl=True), moved, 8)
    bench.time("sample, greedy", f"n={n}", lambda _: kernels.sample(logits, zeros, seeds, seeds, pdl=True), moved, 8)
    bench.time("torch.argmax", f"n={n}", lambda _: logits.argmax(-1), moved, 8)


def time_linear(bench: Bench) -> None:
    for name, (outputs, width) in {**LINEARS, "head": (VOCABULARY, HIDDEN)}.items():
        weights = [rand(outputs, width, scale=width**-0.5) for _ in range(2 if name == "head" else LAYERS)]
        for n in (1, 2, 3, 4, 8, 16, 32, 64, 128, 256):
            time_linear_case(bench, name, weights, n)


def time_linear_case(bench: Bench, name: str, weights: list[torch.Tensor], n: int) -> None:
    copies, width = len(weights), weights[0].shape[1]
    x, norm, moved, repeats = rand(n, width), norm_weights(width), weights[0].nbytes, 2 * copies

    def ours(tunables: kernels.LinearTunables, i: int) -> None:
        kernels.linear(x, weights[i % copies], pdl=True, tunables=tunables)

    variants = linear_variants(n) if bench.tune else [{}]
    for sizes in variants if n <= 16 else []:
        launch = partial(ours, kernels.LinearTunables(**sizes))
        bench.time(f"linear {name}", f"n={n} {tag(sizes)}", launch, moved, repeats)
    calls: dict[str, Callable[[int], object]] = {"F.linear": lambda i: F.linear(x, weights[i % copies])}
    if n == 1 and width == HIDDEN:
        calls["norm_linear"] = lambda i: kernels.norm_linear(x, norm, EPS, weights[i % copies], pdl=True)
    if n > 16 and kernels.splits_well(n, weights[0]):
        calls["split_linear"] = lambda i: kernels.split_linear(x, weights[i % copies], pdl=True)
    if name == "gate_up" and n <= 16:
        calls["gate_up_silu,"] = lambda i: kernels.gate_up_silu(x, weights[i % copies], pdl=True)
    for kernel, launch in calls.items():
        bench.time(f"{kernel} {name}", f"n={n}", launch, moved, repeats)


def linear_variants(n: int) -> list[dict[str, int]]:
    """The chosen sizes, then others; for 2 to 4 rows both kernels."""
    if n == 1:
        tiles = [{"gemv_tile": 4096}, {"gemv_tile": 8192}, {"gemv_tile": 16384, "gemv_warps": 8}]
        return [{}, *tiles]
    skinny = {"gemv_rows": 1}
    if n <= 4:
        return [{}, skinny, {"gemv_products": 2**40}]
    return [{}, {**skinny, "skinny_block_n": 32}, {**skinny, "skinny_warps": 8, "skinny_block_k": 64}]


# ---- a whole decode step ----------------------------------------------------------------------------------------


STEPS = [(1, 16), (1, 272), (1, 2048), (2, 272), (4, 272), (8, 160), (16, 160), (32, 600), (64, 600), (256, 1100)]


def time_step(bench: Bench) -> None:
    for n, context in STEPS:
        try:
            model = Model(n, context)
            if n == 1:
                bench.check("step n=1: one row against cuBLAS", partial(both_ways, model), 3e-2)
            for name in step_variants(n):
                time_step_variant(bench, model, name, f"n={n} context={context}")
        except Exception as problem:
            click.echo(f"step n={n} context={context}: {summary(problem)}")


def both_ways(model: Model) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of the fused and of the plain grouping: 28 layers of bfloat16 rounding apart."""
    scratch = workspace(model.n)
    return model.one_row(scratch, True), model.rows(scratch, False, "cuBLAS")


def step_variants(n: int) -> list[str]:
    """Norms fused into the products (one row only), products written here, products in cuBLAS; and the one that runs
    at this size with its attention in parts."""
    here = "skinny" if n <= 16 else "pieces"
    return (["one row"] if n == 1 else []) + [here, "cuBLAS", f"{here} in parts"]


def time_step_variant(bench: Bench, model: Model, name: str, label: str) -> None:
    scratch = workspace(model.n)

    def step(pdl: bool) -> tuple[torch.Tensor, torch.Tensor]:
        if name == "one row":
            logits = model.one_row(scratch, pdl)
        else:
            logits = model.rows(scratch, pdl, name.split()[0], name.endswith("in parts"))
        return logits, model.sample(logits, pdl)

    bench.time(f"step, {name}, PDL", label, lambda _: step(True), model.floor_bytes, 1)
    bench.time(f"step, {name}", label, lambda _: step(False), model.floor_bytes, 1)
    bench.check(f"step, {name}, {label}: PDL changes nothing", lambda: race_check(step), 1e-9)


def race_check(step: Callable[[bool], tuple[torch.Tensor, torch.Tensor]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of many graph replays under PDL against one run without; a race would make some differ."""
    wanted = step(False)[0].clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step(True)[0]
    worst: torch.Tensor | None = None
    for _ in range(30):
        graph.replay()
        if not torch.equal(out, wanted):
            worst = out.clone()
    return out if worst is None else worst, wanted


SECTIONS: dict[str, Callable[[Bench], None]] = {
    "check": check_all,
    "step": time_step,
    "attention": time_attention,
    "linear": time_linear,
    "prefill": time_prefill,
    "elementwise": time_elementwise,
}


@click.command(help=__doc__)
@click.option("--section", "sections", multiple=True, type=click.Choice(list(SECTIONS)), help="Default: all.")
@click.option("--budget", default=210.0, show_default=True, help="Seconds after which no new case starts.")
@click.option("--tune", is_flag=True, help="Also other tile sizes than the chosen ones.")
@cli.out_option
def main(sections: tuple[str, ...], budget: float, tune: bool, out: Path | None) -> None:
    if not torch.cuda.is_available():
        raise MissingPrerequisite("kernel times are facts of a GPU, and torch sees none here")
    titles = {"title_en": "The kernels, checked and timed", "title_zh": "逐个核对并计时的 kernel"}
    modules = [
        ROOT / "tests" / "kernels" / name
        for name in ("decode_model.py", "kernel_bench.py", "kernel_cases.py", "shape_checks.py")
    ]
    with Recording(out.stem if out else "bench-kernels", **titles, out=out, sources=modules) as rec:
        torch.manual_seed(0)
        rec.engine, rec.device = sources.resolve(ROOT / "src").describe(), describe_device("cuda")
        bench = Bench(budget, tune)
        bench.copy_bandwidth = measure_copy()
        device = f"{torch.cuda.get_device_name()}, torch {torch.__version__}"
        click.echo(f"{device}: copy {bench.copy_bandwidth / 1e12:.2f} TB/s")
        if not HAS_FLASH:
            rec.notes.append("flash-attn cannot be imported here (not on sys.path): its rows are left out")
            click.echo(rec.notes[-1])
        rec.config = {"sections": list(sections or SECTIONS), "tune": tune, "dtype": "bfloat16", "page": PAGE}
        run_sections(bench, list(sections or SECTIONS), rec.notes)
        failed = [entry["kernel"] for entry in bench.checks if not entry["ok"]]
        rec.notes += [f"failed: {name}" for name in failed]
        rec.result = {
            "copy_tb_s": round(bench.copy_bandwidth / 1e12, 3),
            "checks": len(bench.checks),
            "failed": failed,
            "times": {key_of(row): rounded(row) for row in bench.rows},
            **tables(bench.rows),
        }
        rec.volatile += [name for name in rec.result if name not in ("checks", "failed")]
        click.echo(f"{len(bench.checks)} checks, failed: {failed or 'none'}")
        rec.finish(Verdict.FAIL if failed else Verdict.PASS, EvidenceType.GPU)


def key_of(row: dict[str, Any]) -> str:
    """A name that a page can look up: `step_one_row_PDL_n1_context16`."""
    words = f"{row['kernel']} {row['case']}".replace("=", "").replace(",", "").split()
    return "_".join(words).replace(".", "-")


def rounded(row: dict[str, Any]) -> dict[str, Any]:
    if "us" not in row:
        return {"problem": row["problem"]}
    return {"us": round(row["us"], 2), "gb_per_s": round(row["gb_per_s"]), "of_copy": round(row["of_copy"], 3)}


def run_sections(bench: Bench, todo: list[str], notes: list[str]) -> None:
    for name in todo:
        begun = time.monotonic()
        try:
            with torch.inference_mode():
                SECTIONS[name](bench)
        except Exception as problem:
            click.echo(f"section {name} stopped: {summary(problem)}")
            bench.checks.append({"kernel": f"section {name}", "ok": False, "problem": summary(problem)})
        click.echo(f"-- {name}: {time.monotonic() - begun:.0f} s")
        if not gpu_answers():
            notes.append(f"the GPU context was lost in section {name}; what follows it was not run")
            return


def gpu_answers() -> bool:
    """False after an illegal access: every later call of this process would fail too."""
    try:
        torch.cuda.synchronize()
        return True
    except RuntimeError:
        return False


if __name__ == "__main__":
    main()
