"""Shapes of layer 0 and of the logits, from the model's own sizes (Qwen3-0.6B: qkv 4096 = 2048 + 1024 + 1024)."""

from __future__ import annotations

from typing import Any

from nanolab.observe import ModelDims

from .findings import Findings
from .inputs import last_rows
from .log import EventLog

NAMES = {"q": "Q", "k": "K", "v": "V"}


def analyze_shapes(log: EventLog) -> Findings:
    """Every model_shape event of the log, against rows x the width that config.json gives."""
    findings = Findings(log.trace_of("lifecycle", "chunk", "prefix"))
    case = findings.run["case"]
    log.one("model_shape", f"python scripts/labs/03_trace_engine.py --case {case} --shapes")
    dims = ModelDims(**findings.run["dims"])
    table = []
    for step in log.steps():
        rows, sequences = step.inputs["input_shape"][0], len(step.scheduled["batch"])
        seen = {e["name"]: e["shape"] for e in log.all("model_shape") if e["step"] == step.number}
        for name, shape in expected_shapes(dims, rows, sequences).items():
            findings.expect(f"step {step.number} ({step.phase}), {NAMES.get(name, name)}", seen.get(name), shape)
        table.append({"step": step.number, "phase": step.phase, "shapes": seen})
    rows_of = {str(s.number): last_rows(s) for s in log.steps() if s.phase == "prefill"}
    stated = {"lifecycle": ("1", [63, 159]), "chunk": ("2", [187, 219])}
    if case in stated:
        step_number, wanted = stated[case]
        findings.expect(f"step {step_number}, rows whose logits are used", rows_of.get(step_number), wanted)
    findings.facts = {"case": case, "packed_qkv_rows": packed_rows(dims), "last_rows": rows_of, "rounds": table}
    return findings


def expected_shapes(dims: ModelDims, rows: int, sequences: int) -> dict[str, list[int]]:
    """{name: shape} of a step with `rows` input positions of `sequences` sequences."""
    kv = [rows, dims.num_key_value_heads, dims.head_dim]
    return {
        "embedding": [rows, dims.hidden_size],
        "qkv_proj": [rows, dims.q_size + 2 * dims.kv_size],
        "q": [rows, dims.num_attention_heads, dims.head_dim],
        "k": kv,
        "v": kv,
        "o_proj": [rows, dims.hidden_size],
        "gate_up_proj": [rows, 2 * dims.intermediate_size],
        "down_proj": [rows, dims.hidden_size],
        "logits": [sequences, dims.vocab_size],
    }


def packed_rows(dims: ModelDims) -> dict[str, Any]:
    """Which rows of the packed QKV weight belong to Q, K and V."""
    q, kv = dims.q_size, dims.kv_size
    return {"q": [0, q], "k": [q, q + kv], "v": [q + kv, q + 2 * kv]}
