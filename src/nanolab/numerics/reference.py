"""The other side: Transformers computes each row from the whole prefix, without a cache.

Same weights, dtype and position ids; nothing else is shared with the engine: no paging, no batching, plain "eager"
attention. The trajectory comes from the suite alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from nanolab.errors import LabError, MissingPrerequisite
from nanolab.observe import model_dims

from .forced import ForcedRun, GroupFacts
from .suites import Group, Suite, identity


def settle_device(device: str) -> str:
    """ "auto" becomes cuda where there is one."""
    import torch

    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        raise MissingPrerequisite("no CUDA device is visible to torch; use --device cpu, or run scripts/e2e/doctor.py")
    return device


def load_reference(model: Path, device: str, dtype: str) -> Any:
    """The Transformers model with eager attention, in `dtype` ("auto": as stored), on `device`."""
    import torch
    from transformers import AutoModelForCausalLM

    if dtype == "auto":
        dtype = model_dims(model).dtype
    if dtype not in ("float32", "float16", "bfloat16"):
        raise LabError(f"--dtype {dtype}: give auto, bfloat16, float16 or float32")
    loaded = AutoModelForCausalLM.from_pretrained(
        str(model), dtype=getattr(torch, dtype), attn_implementation="eager", local_files_only=True
    )
    return loaded.to(device).eval()


def collect_reference(model: Any, suite: Suite, progress: Any = iter) -> ForcedRun:
    """Every row of the suite, one forward pass each; `progress` wraps the iteration."""
    run = ForcedRun(groups=[GroupFacts(group.name, len(group.prompts)) for group in suite.groups])
    for group, request, round_ in progress(list(_rows(suite))):
        forced = group.forced[request]
        prefix = [*group.prompts[request], *forced[: round_ - 1]]
        position_ids, logits = last_row(model, prefix)
        run.rows.append(identity(group.name, request, round_, prefix, position_ids[-1], prefix[-1], forced[round_ - 1]))
        run.logits.append(logits)
    return run


def _rows(suite: Suite) -> Iterable[tuple[Group, int, int]]:
    for group in suite.groups:
        for request, forced in enumerate(group.forced):
            for round_ in range(1, len(forced) + 1):
                yield group, request, round_


def last_row(model: Any, prefix: list[int]) -> tuple[list[int], Any]:
    """(position ids given, logits [vocab] float32) of the last position; the whole prefix is recomputed."""
    import torch

    ids = torch.tensor([prefix], device=model.device)
    positions = torch.arange(len(prefix), device=model.device)[None]
    with torch.inference_mode():
        out = model(input_ids=ids, position_ids=positions, use_cache=False, logits_to_keep=1)
    return positions[0].tolist(), out.logits[0, -1].float().cpu().numpy()
